"""Runs the DAGs of conformance_cases.py in memory, and compares how runs end. Both stores of tries must give the same result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from textwrap import dedent, indent
from typing import Any

from paceline.authoring import xcom
from paceline.authoring.context import DagRun
from paceline.authoring.dag import DAG
from scheduler.dagfiles.load import load
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.testing.in_memory.run import MemoryRun

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
HEAD = """
import os, time
from datetime import timedelta
from paceline import *
from paceline.authoring.operator import Operator
from paceline.exceptions import *
from paceline.operators import *
from paceline.sensors import *
from paceline.triggers import *

class Defers(Operator):
    def __init__(self, trigger, timeout=None, **options):
        super().__init__(**options)
        self.make, self.limit = trigger, timeout
    def execute(self, context):
        context["ti"].xcom_push("before", context["ti"].try_number)
        self.defer(trigger=self.make(), method_name="after", kwargs={"since": "then"}, timeout=self.limit)
    def after(self, context, event=None, since=None):
        return [type(event).__name__, since, context["ti"].try_number, context["ti"].xcom_pull(key="before")]

class Broken(BaseTrigger):
    def serialize(self):
        return f"{__name__}.Broken", {}
    async def run(self):
        raise OSError("no such event")
        yield

@task
def add(x, y=10): return x + y
@task
def give(value): return value
"""


@dataclass(frozen=True)
class Case:
    """A DAG and its expected result. `states` and `xcoms` have the keys `task` or `task[map index]`, and `task:key` for an XCom
    that is not the return value.
    """

    body: str
    states: Mapping[str, str]
    xcoms: Mapping[str, Any] = field(default_factory=dict)
    #: The try numbers that differ from the usual: 1 for a task that ran, 0 for one that did not.
    tries: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    run: str = "success"
    options: str = ""

    def source(self, name: str) -> str:
        return f"{HEAD}\nwith DAG({name!r}, {self.options}):\n{indent(dedent(self.body), '    ')}"

    def expected(self) -> "Outcome":
        ran = {name: 0 if state in {"upstream_failed", "none"} else 1 for name, state in self.states.items()}
        return Outcome(self.run, dict(self.states), ran | dict(self.tries), dict(self.xcoms), dict(self.labels))


@dataclass
class Outcome:
    """How a run ended."""

    run: str
    states: dict[str, str]
    tries: dict[str, int]
    xcoms: dict[str, Any]
    labels: dict[str, str]


CONNECTION = ("store", "postgresql://me:password@host/db")


def parsed(settings: Settings, name: str, case: Case) -> tuple[DAG, SerializedDag]:
    """Write the DAG of a case to a file, and load and serialize it."""
    (settings.dags_folder / f"{name}.py").write_text(case.source(name), encoding="utf-8")
    dag = load(settings.dags_folder, f"{name}.py")[name]
    return dag, from_dag(dag, file=f"{name}.py", core=settings.core, scheduler=settings.scheduler)


def memory_run(settings: Settings, name: str, case: Case) -> MemoryRun:
    """A run of a case without a database."""
    return MemoryRun(settings, *parsed(settings, name, case), dag_run(name))


def dag_run(dag_id: str) -> DagRun:
    moments = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "start_date", "run_after"), MOMENT)
    return DagRun(dag_id=dag_id, run_id="r1", run_type="manual", conf={}, **moments)


def outcome(run: MemoryRun) -> Outcome:
    """How a run in memory ended."""
    rows = [(run.store.plan.tasks[one.task_no].task_id, one) for one in run.store.at.values()]
    return Outcome(
        str(run.state),
        {named(task, one.map_index): one.state.value for task, one in rows},
        {named(task, one.map_index): one.try_number for task, one in rows},
        {named(task, one.map_index, key): xcom.decode(text) for task, one in rows for key, text in one.xcoms.items()},
        {named(task, one.map_index): one.label for task, one in rows if one.label is not None},
    )


def named(task_id: str, map_index: int, key: str = "return_value") -> str:
    return task_id + (f"[{map_index}]" if map_index >= 0 else "") + ("" if key == "return_value" else f":{key}")
