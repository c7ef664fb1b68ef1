"""Task instances, their tries and logs, and changes of everything that a filter selects."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, model_validator

from scheduler.api.models import base
from scheduler.api.models.base import (
    INSTANCE_NUMBER,
    Body,
    CursorPage,
    Model,
    Moment,
    Note,
    Page,
    Version,
    from_row,
    numbered,
    with_bounds,
)
from scheduler.api.models.dag_runs import DagRunsFilter

#: Airflow's states, for filters. Ours have `shutdown`, which Airflow calls restarting.
State = Literal[
    "removed", "scheduled", "queued", "running", "success", "restarting", "failed", "up_for_retry", "up_for_reschedule",
    "upstream_failed", "skipped", "deferred", "awaiting_input",
]  # fmt: skip
MARKABLE = Literal["success", "failed", "skipped"]


class TaskInstanceTry(Model):
    """One try of a task instance."""

    dag_id: str
    dag_run_id: str = from_row("run_id")
    task_id: str
    map_index: int
    try_number: int
    max_tries: int
    state: State | None
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")
    duration: float | None
    task_display_name: str = from_row("task_id")
    dag_display_name: str = from_row("dag_id")
    hostname: str | None = from_row("host")
    unixname: str | None = None
    pool: str
    pool_slots: int
    queue: str | None
    priority_weight: int | None
    operator: str | None = None
    operator_name: str | None = None
    queued_when: datetime | None = from_row("queued_at")
    scheduled_when: datetime | None = from_row("scheduled_at")
    pid: int | None
    executor: str | None = None
    executor_config: str = "{}"
    dag_version: Version | None
    #: Additions of Paceline: why the try is in its state, and which processes queued and ran it.
    reason: str | None = None
    worker: str | None = None
    queued_by: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: Any) -> Any:
        if not isinstance(row, dict) or "version_id" not in row:
            return row
        state = "restarting" if row["state"] == "shutdown" else row["state"]
        return row | {"state": state, "dag_version": row}


class TaskInstance(TaskInstanceTry):
    """A task instance with its newest try."""

    id: Annotated[UUID, numbered(INSTANCE_NUMBER)]
    logical_date: datetime | None
    run_after: datetime
    rendered_map_index: str | None = from_row("map_label")
    rendered_fields: dict[str, Any] = Field(default_factory=dict)
    note: str | None
    trigger: dict[str, Any] | None = None
    triggerer_job: dict[str, Any] | None = None
    #: Additions of Paceline: when a retry or the next poke is due, and the progress of a Spark task.
    due_at: datetime | None = None
    progress: Any = None


class TaskInstancePage(CursorPage):
    """A page of task instances."""

    task_instances: list[TaskInstance]


class MarkedTaskInstances(TaskInstancePage):
    """The task instances that a request marked, or that a dry run would mark."""

    #: The selected runs that have none of the requested tasks or map indexes.
    passed_over: int = 0


class TaskInstanceTries(Page):
    """The tries of a task instance."""

    task_instances: list[TaskInstanceTry]


class NewTask(Model):
    """A task that a cleared run would get from a newer version of its DAG."""

    task_id: str
    task_display_name: str


class MovedRun(Model):
    """A cleared run that continues with another version of its DAG."""

    dag_run_id: str
    from_version: int
    to_version: int


class ClearedTaskInstances(Page):
    """The task instances that a request cleared, or that a dry run would clear."""

    task_instances: list[TaskInstance | NewTask]
    #: The selected runs that have none of the requested tasks or map indexes.
    passed_over: int = 0
    #: The runs that continue with the newest version of their DAG.
    moved: list[MovedRun] = []


class Dependency(Model):
    """A condition that a task instance waits for."""

    name: str
    reason: str


class Dependencies(Model):
    """Everything that a task instance waits for."""

    dependencies: list[Dependency]


class LogLine(Model):
    """A line of a log. The output of user code has neither time nor level."""

    timestamp: datetime | None = None
    level: str | None = None
    event: str


class Log(Model):
    """A part of a log, and the token for the part after it."""

    content: list[LogLine]
    continuation_token: str | None


class ExternalLogUrl(Model):
    """The address of a log outside of Paceline."""

    url: str


class ExtraLinks(Page):
    """Links of a task instance by name."""

    extra_links: dict[str, str | None]


class ClearTaskInstances(Body):
    """Which task instances of a DAG to clear."""

    dry_run: bool = True
    start_date: Moment | None = None
    end_date: Moment | None = None
    only_failed: bool = True
    only_running: bool = False
    reset_dag_runs: bool = True
    task_ids: list[str | Annotated[list[Any], Field(min_length=2, max_length=2)]] | None = None
    dag_run_id: str | None = None
    include_upstream: bool = False
    include_downstream: bool = False
    include_future: bool = False
    include_past: bool = False
    run_on_latest_version: bool | None = None
    prevent_running_task: bool = False
    note: Note | None = None


class TaskInstancePatch(Body):
    """A new state of a task instance, or a note."""

    new_state: State | None = None
    note: Note | None = None
    include_upstream: bool = False
    include_downstream: bool = False
    include_future: bool = False
    include_past: bool = False


class TaskInstanceRef(TaskInstancePatch):
    """A task instance in a bulk request."""

    task_id: str
    map_index: int | None = None
    dag_id: str | None = None
    dag_run_id: str | None = None


class TaskInstancesFilter(DagRunsFilter):
    """A list of task instances by filters in the body."""

    states: None = None
    conf_contains: None = None
    dag_run_ids: list[str] | None = None
    task_ids: list[str] | None = None
    state: list[State | None] | None = None
    pool: list[str] | None = None
    queue: list[str] | None = None
    executor: list[str] | None = None


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
