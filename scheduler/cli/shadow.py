"""`paceline migrate-airflow --shadow`: compares the finished runs of an Airflow with those of Paceline."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import click

from scheduler.cli import options, output
from scheduler.cli.late import reads
from scheduler.dagfiles.migrate import shadow
from scheduler.dagfiles.migrate.shadow import Airflow, Difference, States

TOKEN, USER, PASSWORD = "AIRFLOW_API_TOKEN", "AIRFLOW_API_USER", "AIRFLOW_API_PASSWORD"
#: The name of a state that a system does not have.
MISSING = "none"


def run(url: str, dag_ids: Sequence[str], *, since: datetime, every: float | None) -> None:
    """Compare all finished runs since then, again every so many seconds if `every` is given. Each run is reported once.

    Ends the command with exit code 1 if a state differs.
    """
    airflow = _client(url)
    done: set[tuple[str, str]] = set()
    differences: list[Difference] = []
    while True:
        chosen = dag_ids or [row["dag_id"] for row in options.transact(reads.dags)]
        new = [difference for dag_id in chosen for difference in _compared(airflow, dag_id, since, done)]
        differences += new
        if every is None and output.json_wanted():
            output.print_json({"runs": len(done), "differences": [asdict(difference) for difference in differences]})
        else:
            _print(new)
            output.say(f"{len(done)} runs compared, {len(differences)} differences.")
        if every is None:
            break
        time.sleep(every)
    if differences:
        click.get_current_context().exit(1)


def _client(url: str) -> Airflow:
    if token := os.environ.get(TOKEN):
        return Airflow(url, token)
    if USER not in os.environ or PASSWORD not in os.environ:
        raise click.UsageError(f"Set {TOKEN}, or {USER} and {PASSWORD}, to a user who may read DAG runs in Airflow.")
    return Airflow.log_in(url, os.environ[USER], os.environ[PASSWORD])


def _compared(airflow: Airflow, dag_id: str, since: datetime, done: set[tuple[str, str]]) -> list[Difference]:
    """The differences of the runs of a DAG that are not in `done`, which gets them."""
    ours = [
        run
        for row in options.transact(reads.runs, dag_id=dag_id)
        if (run := shadow.run_of(row["run_id"], row["logical_date"], row["state"])) is not None and run.logical_date >= since
    ]
    pairs = [pair for pair in shadow.pairs(airflow.runs(dag_id, since), ours) if (dag_id, pair[1].run_id) not in done]
    done |= {(dag_id, own.run_id) for _, own in pairs}
    return [
        difference
        for run, own in pairs
        for difference in shadow.differences(dag_id, (run, own), airflow.states(dag_id, run.run_id), _states(dag_id, own.run_id))
    ]


def _states(dag_id: str, run_id: str) -> States:
    rows = options.transact(reads.task_instances, dag_id, run_id)
    return {(row["task_id"], row["map_index"]): None if row["state"] == MISSING else row["state"] for row in rows}


def _print(differences: Sequence[Difference]) -> None:
    rows = [{**asdict(one), "airflow": one.airflow or MISSING, "paceline": one.paceline or MISSING} for one in differences]
    if rows:
        output.table(rows, ["dag_id", "logical_date", "task_id", "map_index", "airflow", "paceline"], empty="")
