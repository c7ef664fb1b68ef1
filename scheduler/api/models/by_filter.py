"""Changes of everything that a filter selects."""

from typing import Annotated

from pydantic import Field

from scheduler.api.models import base
from scheduler.api.models.base import Body, Model, with_bounds
from scheduler.api.models.task_instances import MARKABLE

#: An empty list or pattern is rejected, because it would select everything.
Names = Annotated[list[str], Field(min_length=1, max_length=10_000)]
Numbers = Annotated[list[int], Field(min_length=1, max_length=10_000)]
Pattern = Annotated[str, Field(min_length=1)]


class Filter(with_bounds("run_after", "logical_date", "start_date", "end_date", signs=("gte", "lte"))):  # type: ignore[misc]
    """Conditions that must all hold. A pattern is an SQL LIKE pattern that ignores case."""

    dag_ids: Names | None = None
    dag_id_pattern: Pattern | None = None
    dag_run_ids: Names | None = None
    run_id_pattern: Pattern | None = None


class InstanceFilter(Filter):
    """Task instances for which all of these hold. A pattern is an SQL LIKE pattern that ignores case."""

    task_ids: Names | None = None
    task_id_pattern: Pattern | None = None
    #: `none` is undecided.
    state: Annotated[Names, base.TaskStates] | None = None
    pool: Names | None = None
    queue: Names | None = None
    map_index: Numbers | None = None
    operator: Names | None = None


class RunFilter(Filter):
    """Runs for which all of these hold."""

    state: Annotated[Names, base.RunStates] | None = None
    run_type: Annotated[Names, base.RunTypes] | None = None


class _Change(Body):
    dry_run: bool = True
    #: The number that the dry run returned. If it differs now, nothing is changed.
    expected: Annotated[int, Field(ge=0)] | None = None


class ClearByFilter(_Change):
    """Clear the task instances that a filter selects, with the setups that they need."""

    filter: InstanceFilter
    #: Continue with the newest version of the DAG; null: the default of the DAG or the settings.
    run_on_latest_version: bool | None = None


class MarkByFilter(_Change):
    """Mark the task instances that a filter selects."""

    filter: InstanceFilter
    new_state: MARKABLE


class DeleteByFilter(_Change):
    """Delete the runs that a filter selects."""

    filter: RunFilter


class Change(Model):
    """The number of task instances with the same change."""

    state: str | None
    #: The new state: shutdown if a worker stops it first.
    becomes: str
    count: int


class OfDag(Model):
    """The number of changes of a DAG."""

    dag_id: str
    count: int
    runs: int


class ByFilter(Model):
    """The changes that were made, or that the same request would make without dry_run."""

    dry_run: bool
    #: Task instances; for deletions, runs.
    count: int
    runs: int
    changes: list[Change]
    #: The DAGs with most changes, at most 100.
    dags: list[OfDag]
    #: The objects that could not be changed, with the reason.
    errors: list[str] = Field(default_factory=list)
