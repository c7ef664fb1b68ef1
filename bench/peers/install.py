"""Apache Airflow in an environment of its own, outside of the repository: made once, every version pinned."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

VERSION = "3.3.2"
#: All versions that were measured; Airflow's own constraints are not in the package index.
PINS = Path(__file__).with_name("airflow.txt")
#: Names the folder of the environment, as --airflow does.
VARIABLE = "BENCH_AIRFLOW"


def default_folder() -> Path:
    """$BENCH_AIRFLOW, else a folder of the user's cache named by the version."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "paceline" / f"airflow-{VERSION}"


def install(folder: Path, *, say: Callable[[str], None]) -> Path:
    """The folder of the environment's programs; made if this version with these pins is not there yet (some minutes, 1 GB)."""
    mark, wanted = folder / ".installed", f"{VERSION}\n{PINS.read_text(encoding='utf-8')}"
    if not mark.exists() or mark.read_text(encoding="utf-8") != wanted:
        say(f"Installing Apache Airflow {VERSION} into {folder}; once, some minutes")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--constraint", str(PINS), f"apache-airflow[celery,postgres]=={VERSION}"], check=True)
        mark.write_text(wanted, encoding="utf-8")
    return folder / "bin"
