"""What user code sees of a running task: the type of the context, and the task instance and run in it (`ti`, `dag_run`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, NotRequired, Protocol, TypedDict

from paceline.authoring.triggers import Counts, Target
from paceline.states import RunState, TaskState

if TYPE_CHECKING:
    from pendulum import DateTime

    from paceline.authoring.asset import Asset, AssetEvents, OutletEvents
    from paceline.authoring.connection import Connections
    from paceline.authoring.graph import Graph, Node
    from paceline.authoring.params import Params
    from paceline.authoring.state_store import AssetStateStores, TaskStateStore
    from paceline.authoring.variable import Variables


TaskInstanceState = TaskState
DagRunState = RunState

_OTHER_RUNS = "use ExternalTaskSensor, depends_on_past, or the REST API"
#: Attributes of Airflow's task instances and runs that tasks do not have here, and what to use instead.
ADVICE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "get_dagrun_state", "get_dr_count", "get_previous_dagrun", "get_previous_ti", "get_task_breadcrumbs",
            "get_dag", "get_relevant_upstream_map_indexes", "get_task_instance", "get_task_instances",
            "get_task_states", "get_ti_count", "find", "get_previous_scheduled_dagrun",
        ),
        f"a task does not read other runs and tasks; {_OTHER_RUNS}",
    ),
    "get_first_reschedule_date": "a sensor counts its timeout by itself",
    "render_templates": "its templates are rendered already; use task.render_template",
    "refresh_from_db": "a task has no access to the database of Paceline",
    "set_state": "raise SkipTask or FailTask, or return",
    "mark_success_url": "use log_url, whose page marks the task",
    "note": "the notes of runs are read by the REST API",
    "triggering_user_name": "the audit log names who triggered a run",
}  # fmt: skip


def lacks(what: str, name: str) -> AttributeError:
    """The error for an attribute that does not exist, with the advice for one of Airflow's."""
    advice = f": {ADVICE[name]}" if name in ADVICE else ""
    return AttributeError(f"{what} has no attribute {name!r}{advice}.")


class TaskInstance(Protocol):
    """The task instance as user code sees it, in the context as `ti`; the worker implements it."""

    task_id: str
    dag_id: str
    run_id: str
    try_number: int
    max_tries: int
    map_index: int
    start_date: datetime
    state: str
    #: The page of this task instance if flower.pages_url is set, else the path of the log of this try.
    log_url: str
    #: The operator, once its templates are rendered with their results.
    task: Any

    @property
    def hostname(self) -> str:
        """The name of the machine of the worker."""

    @property
    def duration(self) -> float:
        """Seconds since the start of this try."""

    def get_template_context(self) -> dict[str, Any]:
        """The context of this try."""

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        dag_id: str | None = None,
        key: str = "return_value",
        include_prior_dates: bool = False,
        *,
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
        run_id: str | None = None,
    ) -> Any:
        """The value that a task pushed under `key`, or `default`. A list of values if `task_ids` is a list.

        For a mapped task, it returns all values; in a list they follow the others. In the same mapped group, it returns the value
        of the own instance. `dag_id` and `run_id` are by default those of this run. With `include_prior_dates`, a value of the
        newest run that has one counts, up to the date of the run.
        """

    def xcom_push(self, key: str, value: Any) -> None:
        """Store `value` under `key` for this task instance; XComError if it cannot be stored as JSON."""

    async def axcom_pull(self, *args: Any, **kwargs: Any) -> Any:
        """`xcom_pull` for coroutines."""

    async def axcom_push(self, key: str, value: Any) -> None:
        """`xcom_push` for coroutines."""

    def xcom_entries(self, task_id: str, key: str) -> Sequence[Any]:
        """The list or dict that a task pushed to be mapped over (for a mapped task one entry per instance), read lazily."""

    def set_map_label(self, label: str) -> None:
        """Name this instance of a mapped task, for people."""

    @property
    def resume(self) -> Mapping[str, Any] | None:
        """The data that an earlier dispatch of this try stored: the pokes of a sensor, or the event of a trigger."""

    @property
    def catalog(self) -> Any:
        """The Iceberg tables as a catalog of pyiceberg. The success of the task publishes what it writes; no other end does.

        NoTablesError where tables are off.
        """

    def now(self) -> datetime:
        """The time by PostgreSQL's clock, which all of Paceline uses."""

    def skip(self, task_ids: Iterable[str]) -> None:
        """Skip these downstream tasks if this try succeeds; only for operators with `branches = True`."""

    def states(self, targets: Sequence[Target]) -> list[Counts]:
        """For each target, the number of its task instances (or runs) by state."""

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        """The tasks of the newest version of a DAG, each with its task groups; None if there is no such DAG."""

    def first_start(self, retries: int) -> datetime:
        """The start of the first try since the task instance was last cleared, for a task with so many retries."""

    def is_paused(self, dag_id: str) -> bool:
        """Whether a DAG is paused."""

    def trigger_run(
        self,
        dag_id: str,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        conf: Mapping[str, Any] | None = None,
        reset: bool = False,
        adopt_unless: Collection[str] | None = None,
    ) -> str:
        """Create a run of another DAG, and return its run ID. NotFoundError if there is no such DAG.

        If the run exists already, `reset` clears it and gives it `conf`; without `reset` it is a ConflictError. With
        `adopt_unless`, a retry gets the run that an earlier try created, unless it is in one of these states.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """The run of a task as user code sees it, in the context as `dag_run`."""

    dag_id: str
    run_id: str
    run_type: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    start_date: datetime | None = None
    run_after: datetime | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    #: The partition of the run, and the start of its period; None without one.
    partition_key: str | None = None
    partition_date: datetime | None = None
    #: That of the run, which runs while its tasks do; callbacks see the final one.
    state: str = "running"
    end_date: datetime | None = None

    @property
    def execution_date(self) -> datetime | None:
        """The logical date, under its name in Airflow 2."""
        return self.logical_date

    @property
    def external_trigger(self) -> bool:
        """Whether the run was triggered by hand, as in Airflow 2."""
        return self.run_type == "manual"

    def __getattr__(self, name: str) -> NoReturn:
        raise lacks("The run of a task, dag_run,", name)


class Context(TypedDict):
    """The values that a running task gets.

    A run without a logical date has none of the keys `logical_date`, `ds`, `ts` and those that start with these two.
    """

    asset_state_store: AssetStateStores
    conf: Mapping[str, Any]
    conn: Connections
    dag: Graph[Any]
    dag_run: DagRun
    data_interval_end: DateTime | None
    data_interval_start: DateTime | None
    ds: str
    ds_nodash: str
    #: In callbacks.
    exception: NotRequired[BaseException | str | None]
    expanded_ti_count: int | None
    inlet_events: AssetEvents
    inlets: list[Asset]
    logical_date: DateTime
    #: In a loop, its LoopContext.
    loop: Any
    macros: Any
    map_index: int
    map_index_template: str | None
    outlet_events: OutletEvents
    outlets: list[Asset]
    params: Params
    #: Of the run; None without partitions.
    partition_date: DateTime | None
    partition_key: str | None
    prev_data_interval_end_success: DateTime | None
    prev_data_interval_start_success: DateTime | None
    prev_end_date_success: DateTime | None
    prev_start_date_success: DateTime | None
    reason: NotRequired[str | None]
    run_id: str
    start_date: datetime
    #: The session and context of Spark, in PySpark tasks.
    spark: NotRequired[Any]
    sc: NotRequired[Any]
    task: Node
    task_instance: TaskInstance
    task_instance_key_str: str
    task_state_store: TaskStateStore
    templates_dict: Mapping[str, Any] | None
    test_mode: bool
    ti: TaskInstance
    triggering_asset_events: Mapping[Asset, Sequence[Any]]
    ts: str
    ts_nodash: str
    ts_nodash_with_tz: str
    var: Variables
