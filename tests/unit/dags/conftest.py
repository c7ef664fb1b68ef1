"""Makes the parts of the flights pipeline importable as in a DAG file: from the end of the path."""

import sys
from pathlib import Path

DAGS_FOLDER = str(Path(__file__).parents[3] / "dags")

if DAGS_FOLDER not in sys.path:
    sys.path.append(DAGS_FOLDER)
