"""Runs the DAGs of a folder in memory, each in a process of its own, and prints how their task instances end, as JSON.

`python run_here.py FOLDER SECONDS` is the counterpart of run_in_airflow.py, with the same form of the answer.
"""

import functools
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apart

from paceline.authoring.dag import DAG
from scheduler.settings import Settings
from scheduler.testing import runs
from scheduler.testing.folder import load_folder

DATE = datetime(2026, 1, 5, tzinfo=UTC)


def main(folder: str, limit_s: float) -> None:
    settings = Settings.load({**os.environ, "PACELINE_DAGS_FOLDER": folder})
    bag = load_folder(settings)
    with tempfile.TemporaryDirectory() as temporary:
        works = {dag_id: functools.partial(run, dag, settings) for dag_id, dag in sorted(bag.dags.items())}
        found = apart.answers(works, folder=Path(temporary), limit_s=limit_s)
    print(json.dumps({"runs": found, "errors": bag.import_errors}))


def run(dag: DAG, settings: Settings) -> Any:
    done = runs.run_dag(dag, settings, logical_date=DATE, retries=True)
    return {"state": done.state, "tasks": dict(done.states)}


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
