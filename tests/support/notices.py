"""Shared by the tests of callbacks: DAG files whose callbacks record their arguments, and these records."""

import json
import textwrap
from pathlib import Path
from typing import Any

from scheduler.dagfiles import load
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.services.notify import Notify
from support.scenario import Scenario
from support.waiting import eventually

HEAD = """
import json, os, pathlib, signal, time
from paceline import DAG
from paceline.operators import EmptyOperator

HERE = pathlib.Path(__file__).parent.parent

def note(what, context):
    ti = context["ti"]
    told = {"what": what, "try": ti and ti.try_number, "state": ti and ti.state, "reason": context["reason"],
            "rerun": context["is_rerun"], "attempt": context["attempt"], "run_id": context["run_id"],
            "dag": context["dag"].dag_id, "dates": [context.get("ds"), str(context.get("logical_date"))]}
    with open(HERE / "told", "a") as file:
        file.write(json.dumps(told) + "\\n")

def tell(what):
    return lambda context: note(what, context)

def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.01)
"""


def write(scenario: Scenario, source: str, dag_id: str = "d", name: str | None = None) -> SerializedDag:
    """Write a DAG file to the folder, and store its DAG."""
    name = name or f"{dag_id}.py"
    folder = scenario.settings.dags_folder
    (folder / name).write_text(HEAD + textwrap.dedent(source))
    dag = load.load(folder, name)[dag_id]
    return scenario.add(from_dag(dag, file=name, core=scenario.settings.core, scheduler=scenario.settings.scheduler))


def write_calling(scenario: Scenario, callback: str, source: str = "") -> None:
    """Write a DAG whose only task calls this, an expression of the source, when it succeeds."""
    task = f'EmptyOperator(task_id="a", on_success_callback={callback})'
    write(scenario, f'{textwrap.dedent(source)}\nwith DAG("d", schedule=None):\n    {task}\n')


def calls(scenario: Scenario) -> list[dict[str, Any]]:
    path = Path(scenario.settings.dags_folder).parent / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def signal(scenario: Scenario, name: str) -> None:
    (scenario.settings.dags_folder.parent / name).touch()


def notify(scenario: Scenario) -> None:
    """Run the notify service of every scheduler until no notice is open."""

    def turn() -> bool:
        for scheduler in scenario.schedulers:
            scheduler.service(Notify).take()
        return not scenario.rows("select 1 from notice where ended_at is null")

    eventually(turn, timeout=60, message=lambda: str(scenario.rows("select kind, attempts, error from notice")))


def errors(scenario: Scenario) -> list[str | None]:
    return [row[0] for row in scenario.rows("select error from notice order by id")]
