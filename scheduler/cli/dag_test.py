"""Runs a DAG in this process, without a database, broker or workers."""

import contextlib
import sys
from datetime import datetime
from typing import Any

import click

from scheduler.process import masked_output
from scheduler.settings import Settings
from scheduler.testing import folder, runs


def run(settings: Settings, dag_id: str, *, logical_date: datetime, conf: dict[str, Any], quiet: bool = False) -> dict[str, Any]:
    """Run a DAG of the DAGs folder. Returns its state, and the state, seconds, result and reason of each task.

    With `quiet`, the output of tasks goes to stderr. NotFoundError if there is no such DAG; DagError if its file cannot be loaded.
    """
    dag, file = folder.find(settings, dag_id)
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
