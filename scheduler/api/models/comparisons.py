"""Two runs of a DAG side by side."""

from typing import Any

from paceline.states import TaskState
from scheduler.api.models.base import Model
from scheduler.api.models.dag_runs import DagRun
from scheduler.api.models.pictures import RecentRun


class ComparedSide(Model):
    """A task in one of two runs."""

    #: Its instances by state: one, unless the task is mapped.
    states: dict[TaskState, int]
    tries: int
    #: How long its newest tries ran and waited before, over all instances; null if none has started.
    seconds: float | None
    waited: float | None


class ComparedTask(Model):
    """A task of two runs; null where a run does not have it."""

    task_id: str
    now: ComparedSide | None
    before: ComparedSide | None


class ComparedXCom(Model):
    """An XCom that differs between two runs, as the first 600 characters of its JSON; null where a run does not have it."""

    task_id: str
    map_index: int
    key: str
    now: str | None
    before: str | None


class Difference(Model):
    """A value that differs between two runs."""

    name: str
    now: Any
    before: Any


class ComparedCode(Model):
    """The DAG file of two versions of a DAG."""

    before: str
    now: str


class Comparison(Model):
    """A run beside another run of its DAG. Without another run, only `run` and `others` have content."""

    run: DagRun
    other: DagRun | None
    #: The newest other runs of the DAG.
    others: list[RecentRun]
    tasks: list[ComparedTask]
    #: Values of params that differ: those of the run's version, replaced by its conf.
    params: list[Difference]
    #: At most 200.
    xcoms: list[ComparedXCom]
    #: The texts of the DAG file, if the runs have different versions of the DAG.
    code: ComparedCode | None
