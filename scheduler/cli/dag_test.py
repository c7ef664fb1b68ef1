"""Runs a DAG in this process, without a database, broker or workers."""

import contextlib
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from scheduler.authoring.dag import DAG
from scheduler.dagfiles import load, problem
from scheduler.exceptions import DagError, NotFoundError
from scheduler.process import masked_output
from scheduler.settings import Settings
from scheduler.testing import folder as dag_folder
from scheduler.testing import runs


def run(settings: Settings, dag_id: str, *, logical_date: datetime, conf: dict[str, Any], quiet: bool = False) -> dict[str, Any]:
    """Run a DAG of the DAGs folder. Returns its state, and the state, seconds, result and reason of each task.

    With `quiet`, the output of tasks goes to stderr. NotFoundError if there is no such DAG; DagError if its file cannot be loaded.
    """
    dag, file = find(settings, dag_id)
    test_run = runs.prepare(dag, settings, file=file, logical_date=logical_date, conf=conf)
    tasks = []
    with contextlib.ExitStack() as stack:
        stack.callback(runs.end_spark)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout))
        stack.enter_context(masked_output.masked((1,), (2,)))
        for row in runs.finished(settings, test_run):
            if not quiet:
                index = f"[{row['map_index']}]" if row["map_index"] >= 0 else ""
                click.echo(f"{row['task_id']}{index}: {row['state']}{': ' + row['reason'] if row['reason'] else ''}")
            tasks.append({name: value for name, value in row.items() if name != "xcoms"})
    return {"dag_id": dag_id, "run_id": test_run.store.dag_run.run_id, "state": str(test_run.state), "tasks": tasks}


def find(settings: Settings, dag_id: str) -> tuple[DAG, str]:
    """Return a DAG and its file in the DAGs folder. Files that mention its ID are loaded first."""
    load.configure(settings.core.default_timezone, airflow_imports=settings.core.airflow_imports)
    folder, files = settings.dags_folder, dag_folder.listed(settings)
    if files is None:
        raise NotFoundError(f"The DAGs folder {folder} cannot be read: correct PACELINE_DAGS_FOLDER.")
    failed: dict[str, str] = {}
    for file in sorted(files, key=lambda file: not _mentions(folder / file, dag_id)):
        try:
            dags = load.load(folder, file, all_errors=True)
        except (Exception, SystemExit) as error:
            limit_mb = settings.scheduler.dag_file_memory_limit_mb
            failed[file] = problem.of_exception(error, folder / file, memory_limit_mb=limit_mb).with_line
            continue
        if dag_id in dags:
            return dags[dag_id], file
    for file, message in failed.items():
        if _mentions(folder / file, dag_id):
            raise DagError(f"{folder / file}, which mentions {dag_id!r}, cannot be read: {message}")
    raise NotFoundError(f"No file in {folder} defines a DAG {dag_id!r}: correct the id, or PACELINE_DAGS_FOLDER.")


def _mentions(path: Path, dag_id: str) -> bool:
    with contextlib.suppress(OSError):
        return dag_id.encode() in path.read_bytes()
    return False
