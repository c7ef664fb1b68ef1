"""The data of the pages of a DAG: grid, graph, calendar and timeline."""

from datetime import date, datetime
from typing import Any

from pydantic import Field

from paceline.states import RunState, TaskState
from scheduler.api.models.base import Model, Page, from_row
from scheduler.api.models.dag_runs import DagRun
from scheduler.api.models.operations import InstanceWhy, RecentRun
from scheduler.api.models.task_instances import TaskInstance, TaskInstanceTry


class LogLines(Model):
    """Some lines of a log."""

    lines: list[str]
    #: The number of the first of them, from 0; null if that is not known without reading the whole log.
    first_line: int | None
    total_lines: int | None
    #: Bytes: where these lines begin, where the next ones begin, and the size of the log.
    offset: int
    next_offset: int
    size: int
    #: Whether the try has ended, so that no more lines follow.
    is_final: bool


class LogMatch(Model):
    """A line of a log that contains the text."""

    line: int
    offset: int
    text: str


class LogMatches(Model):
    """The lines that contain a text. Unless it is complete, continue the search with next_offset and next_line."""

    matches: list[LogMatch]
    next_offset: int
    next_line: int
    size: int
    is_complete: bool


class Group(Model):
    """A task group."""

    group_id: str
    #: The group that contains it.
    parent: str | None = None
    tooltip: str = ""


class GridTask(Model):
    """A row of the grid."""

    task_id: str
    #: The innermost task group.
    group: str | None
    is_mapped: bool


class GridRun(Model):
    """A column of the grid."""

    dag_run_id: str = from_row("run_id")
    run_type: str
    state: RunState
    logical_date: datetime | None
    run_after: datetime
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")
    version_number: int
    #: One character for each task, see `codes`. A space is a task that this run does not have.
    states: str
    #: Numbers of tries above 1, by the index of the task.
    tries: dict[int, int]
    #: Instances of mapped tasks by state, by the index of the task.
    mapped: dict[int, dict[TaskState, int]]


class Grid(Page):
    """Tasks and runs of a DAG."""

    dag_id: str
    version_number: int
    tasks: list[GridTask]
    groups: list[Group]
    runs: list[GridRun]
    #: The state that each character stands for.
    codes: dict[str, TaskState]


class Node(Model):
    """A task in the graph."""

    task_id: str
    operator: str
    group: str | None
    is_mapped: bool
    is_setup: bool
    is_teardown: bool
    trigger_rule: str
    queue: str | None
    pool: str


class Graph(Model):
    """The structure of a version of a DAG. It never changes."""

    dag_id: str
    version_number: int
    #: Equal for versions with equal content.
    content_hash: str
    nodes: list[Node]
    groups: list[Group]
    #: Pairs of indexes of nodes: upstream, downstream.
    edges: list[tuple[int, int]]


class Bar(Model):
    """A try in the timeline. It waits from scheduled_when to queued_when, is queued until start_date, and runs until end_date."""

    task_id: str
    map_index: int
    try_number: int
    state: TaskState | None
    scheduled_when: datetime | None = from_row("scheduled_at")
    queued_when: datetime | None = from_row("queued_at")
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")
    worker: str | None
    #: More than 1 for a mapped task with many instances, which share one bar.
    instances: int


class Failure(Model):
    """The task instance of a run that failed first."""

    task_id: str
    map_index: int
    try_number: int
    end_date: datetime | None = from_row("ended_at")
    reason: str | None
    #: Task instances of the run that failed.
    failed: int
    #: The end of its log; null if this machine has none.
    log: LogLines | None


class ListedRun(DagRun):
    """A run with its first failed task instance, if it failed."""

    failed_task_id: str | None
    failed_map_index: int | None
    failed_reason: str | None


class RunList(Page):
    """Runs for a list on a page."""

    dag_runs: list[ListedRun]


class RunsOf(Model):
    """Runs in one state."""

    state: RunState
    count: int


class DayOfRuns(RunsOf):
    """Runs of one day in one state."""

    day: date


class HourOfRuns(RunsOf):
    """Runs of one hour of the day in one state, whatever the day."""

    hour: int


class PlannedDay(Model):
    """Runs that the schedule plans for one day."""

    day: date
    count: int


class Calendar(Model):
    """The runs of a DAG by day and by hour of the day."""

    #: The name of the time zone of all days and hours.
    timezone: str
    days: list[DayOfRuns]
    hours: list[HourOfRuns]
    #: Those of the next 7 days; none of a DAG that is paused.
    planned: list[PlannedDay]
    #: Whether more runs are planned: the first 400 are counted.
    planned_more: bool
    next_run_after: datetime | None


class Timeline(Model):
    """The timeline of a run."""

    run: DagRun

    dag_run_id: str = from_row("run_id")
    state: RunState
    queued_at: datetime | None
    start_date: datetime | None = from_row("started_at")
    end_date: datetime | None = from_row("ended_at")
    #: The time of the database, for bars that have not ended.
    now: datetime
    bars: list[Bar]
    #: The tasks that decided how long the run took, the first one first.
    critical_path: list[str]
    #: Of a run that has not succeeded.
    failure: Failure | None


class MappedError(Model):
    """An error that instances of a mapped task have in common."""

    reason: str
    state: TaskState
    count: int
    #: The first of these instances.
    map_index: int


class TaskInstanceView(Model):
    """The data that the page of a task instance shows first."""

    #: More than 0 for a mapped task as a whole, of which nothing else is shown.
    mapped_instances: int
    #: The number of its instances in each state, and their errors, the most frequent ones first.
    mapped_states: dict[TaskState, int] = Field(default_factory=dict)
    mapped_errors: list[MappedError] = Field(default_factory=list)
    task_instance: TaskInstance | None = None
    tries: list[TaskInstanceTry]
    #: The try of `log`, which is null if no lines were asked for or there is none.
    log_try_number: int | None = None
    log: LogLines | None = None
    #: Of a task instance without a try.
    why: InstanceWhy | None = None


class RecentRuns(Model):
    """The newest runs of several DAGs, by DAG, the newest first."""

    dags: dict[str, list[RecentRun]]


class Progress(Model):
    """The progress of a Spark task, and the applications that it submitted."""

    state: TaskState | None
    try_number: int
    #: Stages, tasks, rows and bytes; null if the task reports none.
    progress: dict[str, Any] | None
    seen_at: datetime | None
    applications: list["Application"]


class Application(Model):
    """A Spark application."""

    try_number: int
    kind: str
    deploy_mode: str
    master: str
    application_id: str | None
    driver_id: str | None
    ui_url: str | None
    state: str
    detail: str
    submitted_at: datetime
    ended_at: datetime | None


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
