"""A try of one task without a worker: a `ti` that records calls, and a clock that the test sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from paceline.authoring import context, execution
from paceline.authoring.abstract_operator import AbstractOperator

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday


@dataclass
class Ti:
    """The `ti` that user code receives."""

    task_id: str
    dag_id: str = "d"
    run_id: str = "r"
    try_number: int = 1
    max_tries: int = 0
    map_index: int = -1
    start_date: datetime = NOON
    resume: Mapping[str, Any] | None = None
    clock: datetime = NOON
    skipped: Sequence[str] | None = None
    pushed: dict[str, Any] = field(default_factory=dict)
    #: The results of `states`, one list for each call.
    answers: list[list[dict[str, int]]] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    known: Mapping[str, Sequence[str]] | None = None
    #: The start of the first try; None for that of this one.
    first: datetime | None = None
    triggered: list[dict[str, Any]] = field(default_factory=list)

    def now(self) -> datetime:
        return self.clock

    def first_start(self, retries: int) -> datetime:
        return self.first or self.start_date

    def skip(self, task_ids: Any) -> None:
        self.skipped = list(task_ids)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def xcom_pull(self, *_: Any, default: Any = None, **__: Any) -> Any:
        return default

    def states(self, targets: Any) -> list[dict[str, int]]:
        self.asked.append(list(targets))
        return self.answers.pop(0)

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        return self.known

    def trigger_run(self, dag_id: str, **arguments: Any) -> str:
        self.triggered.append({"dag_id": dag_id, **arguments})
        return arguments["run_id"] or "made"


def run(task: AbstractOperator, ti: Ti | None = None, *, run_type: str = "scheduled", **run_fields: Any) -> tuple[object, Ti]:
    """Execute or resume one try of `task`. Returns its result and its `ti`."""
    ti = ti or Ti(task.task_id)
    dates = {"logical_date": NOON, "data_interval_start": NOON, "data_interval_end": NOON, "run_after": NOON, **run_fields}
    dag_run = context.DagRun(dag_id="d", run_id="r", run_type=run_type, **dates)
    assert task.dag is not None
    values = context.build(dag=task.dag, task=task, ti=ti, dag_run=dag_run)  # type: ignore[arg-type]
    return execution.run(task, values), ti
