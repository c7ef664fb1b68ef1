"""Short forms for what tests declare as DAG authors do: tasks, edges and schedules."""

from datetime import UTC, datetime
from typing import Any

from paceline import DAG
from paceline.authoring.timetable import Timetable
from paceline.operators import EmptyOperator


def empty(name: str, **arguments: Any) -> EmptyOperator:
    return EmptyOperator(task_id=name, **arguments)


def edges(dag: DAG) -> set[str]:
    """Each edge of a DAG as "upstream>downstream"."""
    return {f"{t.task_id}>{below}" for t in dag.tasks for below in t.downstream_task_ids}


def timetable_of(schedule: object, **arguments: object) -> Timetable:
    """The timetable of a DAG with this schedule."""
    return DAG("d", schedule=schedule, **arguments).timetable  # type: ignore[arg-type]


def at(text: str) -> datetime:
    """A time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
