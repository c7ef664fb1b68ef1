"""`paceline migrate-airflow --shadow`: compares the finished runs of an Airflow with those of Paceline."""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import click

from scheduler.cli import options, output
from scheduler.dagfiles.migrate.shadow import MISSING, Airflow, Difference, compare

TOKEN, USER, PASSWORD = "AIRFLOW_API_TOKEN", "AIRFLOW_API_USER", "AIRFLOW_API_PASSWORD"


def run(url: str, dag_ids: Sequence[str], *, since: datetime, every: float | None) -> None:
    """Compare all finished runs since then, again every so many seconds if `every` is given. Each run is reported once.

    Ends the command with exit code 1 if a state differs.
    """
    from scheduler.store.read import reads

    airflow = _client(url)
    done: set[tuple[str, str]] = set()
    differences: list[Difference] = []
    while True:
        chosen = dag_ids or [row["dag_id"] for row in options.transact(reads.dags)]
        new = [difference for dag_id in chosen for difference in compare(options.engine(), airflow, dag_id, since, done)]
        differences += new
        if every is None and output.json_wanted():
            output.print_json({"runs": len(done), "differences": [asdict(difference) for difference in differences]})
        else:
            _print(new)
            output.say(f"{output.count(len(done), 'run')} compared, {output.count(len(differences), 'difference')}.")
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


def _print(differences: Sequence[Difference]) -> None:
    rows = [{**asdict(one), "airflow": one.airflow or MISSING, "paceline": one.paceline or MISSING} for one in differences]
    if rows:
        output.table(rows, ["dag_id", "logical_date", "task_id", "map_index", "airflow", "paceline"], empty="")
