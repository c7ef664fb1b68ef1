"""The DAG as data: what the parser writes and everything else reads.

Immutable, free of user code; equal content has an equal hash.
"""

import hashlib
import json
from collections import deque
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from typing import Any, Self, get_origin

from scheduler.authoring import timetable, weights
from scheduler.authoring.dag import DAG
from scheduler.authoring.operator import DEFAULT_POOL, Operator
from scheduler.authoring.setup_teardown import Scopes, setup_scopes
from scheduler.operators import routing
from scheduler.settings import Core, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class SerializedTask:
    """One task with every default filled in; durations in seconds."""

    task_id: str
    operator: str
    runtime: str
    upstream: tuple[str, ...] = ()
    trigger_rule: str = "all_success"
    retries: int = 0
    retry_delay_s: float = 300.0
    retry_exponential_backoff: float = 0.0
    max_retry_delay_s: float = 86400.0
    execution_timeout_s: float | None = None
    #: It runs only while its worker has a lease, see docs/explanation/exclusive-tasks.md.
    exclusive: bool = False
    queue: str | None = None
    pool: str = "default_pool"
    #: A pool of this name, if there is one, is its pool: that of the Spark cluster it submits to, called as its connection.
    cluster: str | None = None
    pool_slots: int = 1
    #: Effective weight: own plus that of the tasks its weight_rule counts.
    priority_weight: int = 1
    #: The innermost task group, for people.
    group: str | None = None
    is_setup: bool = False
    is_teardown: bool = False
    on_failure_fail_dagrun: bool = False
    #: Setups whose scope it lies in, also indirect ones: each of these must have succeeded, unless its trigger rule is `always`.
    setups: tuple[str, ...] = ()
    #: Of a teardown: what else lies between its setups and itself, and must have ended.
    scope: tuple[str, ...] = ()
    #: How many instances it becomes, see deciding/expansion; None for a task that is not mapped.
    expand: dict[str, Any] | None = None
    #: The mapped task group it belongs to: instance i waits for instance i of the group's other tasks.
    mapped_group: str | None = None
    depends_on_past: bool = False
    wait_for_downstream: bool = False
    ignore_first_depends_on_past: bool = True
    wait_for_past_depends_before_skipping: bool = False
    start_date: str | None = None
    end_date: str | None = None
    max_active_tis_per_dag: int | None = None
    max_active_tis_per_dagrun: int | None = None
    #: What gives a notice: on_execute, on_success, on_failure, on_retry, on_skipped, email_failure, email_retry, asset.
    notify: tuple[str, ...] = ()
    email: tuple[str, ...] = ()
    sla_s: float | None = None
    #: URIs of the assets it updates.
    outlets: tuple[str, ...] = ()
    #: It may decide to skip tasks below it.
    branches: bool = False

    @property
    def is_mapped(self) -> bool:
        return self.expand is not None

    @property
    def indirect_setups(self) -> tuple[str, ...]:
        """Setups further up than directly above it."""
        return tuple(name for name in self.setups if name not in self.upstream) if self.setups else ()

    @property
    def is_limited(self) -> bool:
        """Whether instances of this very task are counted."""
        return self.max_active_tis_per_dag is not None or self.max_active_tis_per_dagrun is not None


@dataclass(frozen=True, kw_only=True)
class SerializedDag:
    """One version of a DAG. `tasks` are in topological order, siblings side by side; a task's place is its number, `task_no`."""

    dag_id: str
    file: str
    schedule: dict[str, Any]
    timezone: str = "UTC"
    description: str | None = None
    start_date: str | None = None
    end_date: str | None = None
    catchup: bool = False
    max_active_runs: int = 16
    max_active_tasks: int = 16
    is_paused_upon_creation: bool | None = None
    tags: tuple[str, ...] = ()
    dagrun_timeout_s: float | None = None
    fail_fast: bool = False
    #: 0: never. Else the DAG is paused after so many failed runs in a row.
    max_consecutive_failed_dag_runs: int = 0
    #: What gives a notice: dag_success, dag_failure.
    notify: tuple[str, ...] = ()
    #: {name: {"value", "schema", "description"}}, see authoring/params.
    params: dict[str, Any] = field(default_factory=dict)
    #: {"reference", "interval_s", ...} each, see authoring/deadline.
    deadlines: tuple[dict[str, Any], ...] = ()
    sla_miss_callback: bool = False
    #: Its runs go on with the newest version as soon as there is one, instead of the one they were made from.
    disable_bundle_versioning: bool = False
    #: Whether cleared runs go on with the newest version; None: core.rerun_with_latest_version.
    rerun_with_latest_version: bool | None = None
    #: Which kinds of runs it takes; empty: all.
    allowed_run_types: tuple[str, ...] = ()
    #: [{"group_id", "parent", "tooltip"}, ...], outer groups first.
    groups: tuple[dict[str, Any], ...] = ()
    #: {uri: name} of the assets it names, as far as the name is another.
    asset_names: dict[str, str] = field(default_factory=dict)
    tasks: tuple[SerializedTask, ...] = ()

    def to_json(self) -> str:
        """Canonical JSON: the same DAG gives the same bytes in any process."""
        return self._json

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> Self:
        """The DAG that `to_json` wrote; keys of a newer writer are passed over."""
        data = json.loads(text) if isinstance(text, str) else text
        tasks = tuple(SerializedTask(**_known(SerializedTask, task)) for task in data["tasks"])
        return cls(**_known(cls, data) | {"tasks": tasks})

    @cached_property
    def _json(self) -> str:
        return json.dumps(self, default=_as_dict, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def content_hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def number(self) -> dict[str, int]:
        """task_id -> task_no."""
        return {task.task_id: no for no, task in enumerate(self.tasks)}

    @cached_property
    def upstream(self) -> tuple[tuple[int, ...], ...]:
        """By task_no: the numbers of its direct upstream tasks, ascending."""
        return tuple(tuple(sorted(self.number[name] for name in task.upstream)) for task in self.tasks)

    @cached_property
    def downstream(self) -> tuple[tuple[int, ...], ...]:
        """By task_no: the numbers of its direct downstream tasks, ascending."""
        below: list[list[int]] = [[] for _ in self.tasks]
        for no, above in enumerate(self.upstream):
            for upstream_no in above:
                below[upstream_no].append(no)
        return tuple(map(tuple, below))

    @cached_property
    def upstream_ranges(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """By task_no: its upstream numbers as inclusive ranges, so that one index probe covers a wide fan-in."""
        return tuple(tuple(_ranges(above)) for above in self.upstream)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """The tasks whose ends decide how a run ends: those with nothing but teardowns below them.

        A teardown counts only with on_failure_fail_dagrun, or where a DAG has nothing else.
        """
        teardown = [task.is_teardown for task in self.tasks]
        counted = [
            no
            for no, below in enumerate(self.downstream)
            if (not teardown[no] and all(teardown[one] for one in below)) or self.tasks[no].on_failure_fail_dagrun
        ]
        return tuple(counted or [no for no, below in enumerate(self.downstream) if not below])

    @cached_property
    def below_branch(self) -> frozenset[int]:
        """Tasks that some task above them may decide to skip."""
        below: set[int] = set()
        for no, task in enumerate(self.tasks):
            if task.branches or no in below:
                below.update(self.downstream[no])
        return frozenset(below)

    @cached_property
    def depends_on_past(self) -> bool:
        return any(task.depends_on_past for task in self.tasks)

    @cached_property
    def has_branches(self) -> bool:
        return any(task.branches for task in self.tasks)

    @cached_property
    def is_plain(self) -> bool:
        """Whether a run of it is decided from its states alone, and nothing has to be made, collected or stopped for that."""
        more = self.fail_fast or self.disable_bundle_versioning or self.depends_on_past or self.has_branches
        return not more and not any(task.is_mapped for task in self.tasks)

    def follows(self, above: int, below: int) -> bool:
        """Whether a worker that ends task `above` may decide task `below` from the states of its direct upstream tasks alone.

        Not if it looks at other runs or at setups further up, or has to be expanded first. Instances of a mapped group follow
        each other where nothing outside the group is waited for.
        """
        if below in self._looks_further:
            return False
        task = self.tasks[below]
        if not task.is_mapped:
            return True
        group = task.mapped_group
        return group is not None and all(self.tasks[no].mapped_group == group for no in self.upstream[below])

    @cached_property
    def _looks_further(self) -> frozenset[int]:
        """Tasks that look at more than their direct upstream tasks."""
        return frozenset(
            no
            for no, task in enumerate(self.tasks)
            if task.depends_on_past or task.is_teardown or not self._upstream_vouches_for_setups(task)
        )

    def _upstream_vouches_for_setups(self, task: SerializedTask) -> bool:
        """Whether, once its direct upstream tasks have succeeded, each setup further up has."""
        above = [self.tasks[self.number[name]] for name in task.upstream]
        return all(
            task.trigger_rule == "always"
            or (
                task.trigger_rule == "all_success"
                and any(
                    (setup in one.setups and one.trigger_rule == "all_success")
                    or (setup in one.indirect_setups and one.trigger_rule != "always")
                    for one in above
                )
            )
            for setup in task.indirect_setups
        )

    @cached_property
    def start(self) -> datetime | None:
        return datetime.fromisoformat(self.start_date) if self.start_date else None

    @cached_property
    def end(self) -> datetime | None:
        return datetime.fromisoformat(self.end_date) if self.end_date else None


def _as_dict(part: object) -> dict[str, Any]:
    """A part as JSON has it. Unlike `asdict` it copies nothing, which was a quarter of the time that a small DAG file takes."""
    if not is_dataclass(part):
        raise TypeError(f"Object of type {type(part).__name__} is not JSON serializable")
    return {one.name: getattr(part, one.name) for one in fields(part)}


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """Those of `data` that `kind` has a field for; JSON knows lists only, some of these are tuples."""
    names, tuples = _names(kind)
    values = dict(data) if data.keys() <= names else {name: value for name, value in data.items() if name in names}
    for name in tuples & values.keys():
        values[name] = tuple(values[name])
    return values


@cache
def _names(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """The names of all fields, and of those that are tuples."""
    found = fields(kind)
    return frozenset(one.name for one in found), frozenset(one.name for one in found if get_origin(one.type) is tuple)


def from_dag(dag: DAG, *, file: str, core: Core, scheduler: Scheduler) -> SerializedDag:
    """Turn an authored DAG into data; `file` is its path relative to the DAGs folder."""
    weight = weights.effective(dag)
    scopes = setup_scopes(dag)
    return SerializedDag(
        dag_id=dag.dag_id,
        file=file,
        schedule=timetable.configured(
            dag.schedule,
            dag.timetable,
            cron_intervals=scheduler.create_cron_data_intervals,
            delta_intervals=scheduler.create_delta_data_intervals,
        ).to_spec(),
        timezone=dag.timezone,
        description=dag.description,
        start_date=_iso(dag.start_date),
        end_date=_iso(dag.end_date),
        catchup=scheduler.catchup_by_default if dag.catchup is None else dag.catchup,
        max_active_runs=core.max_active_runs_per_dag if dag.max_active_runs is None else dag.max_active_runs,
        max_active_tasks=core.max_active_tasks_per_dag if dag.max_active_tasks is None else dag.max_active_tasks,
        is_paused_upon_creation=dag.is_paused_upon_creation,
        tags=tuple(sorted(dag.tags or ())),
        dagrun_timeout_s=_seconds(dag.dagrun_timeout),
        fail_fast=dag.fail_fast,
        max_consecutive_failed_dag_runs=(
            core.max_consecutive_failed_dag_runs_per_dag
            if dag.max_consecutive_failed_dag_runs is None
            else dag.max_consecutive_failed_dag_runs
        ),
        notify=dag.notify,
        params=dag.params_spec,
        deadlines=tuple(dag.deadline_specs),
        sla_miss_callback=dag.sla_miss_callback is not None,
        disable_bundle_versioning=dag.disable_bundle_versioning,
        rerun_with_latest_version=dag.rerun_with_latest_version,
        allowed_run_types=dag.allowed_run_types,
        groups=tuple(dag.group_specs),
        asset_names=dag.asset_names,
        tasks=tuple(_task(dag.task_dict[name], weight[name], scopes[name], core) for name in _topological(dag)),
    )


def next_timetable(dag: SerializedDag) -> timetable.Timetable:
    """The timetable that computes this DAG's next run."""
    return timetable.from_spec(dag.schedule)


def _task(task: Operator, priority_weight: int, scopes: Scopes, core: Core) -> SerializedTask:
    retry_delay_s = _seconds(task.retry_delay)
    max_delay_s = _seconds(task.max_retry_delay)
    return SerializedTask(
        task_id=task.task_id,
        operator=task.operator_class.__name__,
        runtime=task.runtime,
        upstream=tuple(sorted(task.upstream_task_ids)),
        trigger_rule=str(task.trigger_rule),
        retries=core.default_task_retries if task.retries is None else task.retries,
        retry_delay_s=core.default_task_retry_delay if retry_delay_s is None else retry_delay_s,
        retry_exponential_backoff=float(task.retry_exponential_backoff),
        max_retry_delay_s=min(core.max_task_retry_delay, max_delay_s or core.max_task_retry_delay),
        execution_timeout_s=_seconds(task.execution_timeout),
        exclusive=task.exclusive,
        queue=task.queue or routing.default_queue(task, core),
        pool=task.pool,
        cluster=routing.cluster(task) if task.pool == DEFAULT_POOL else None,
        pool_slots=task.pool_slots,
        priority_weight=priority_weight,
        group=task.group_id,
        is_setup=task.is_setup,
        is_teardown=task.is_teardown,
        on_failure_fail_dagrun=task.on_failure_fail_dagrun,
        setups=tuple(scopes.setups),
        scope=tuple(scopes.between),
        expand=task.expand_spec,
        mapped_group=task.mapped_group_id,
        depends_on_past=task.depends_on_past or task.wait_for_downstream,
        wait_for_downstream=task.wait_for_downstream,
        ignore_first_depends_on_past=task.ignore_first_depends_on_past,
        wait_for_past_depends_before_skipping=task.wait_for_past_depends_before_skipping,
        start_date=_iso(task.start_date),
        end_date=_iso(task.end_date),
        max_active_tis_per_dag=task.max_active_tis_per_dag,
        max_active_tis_per_dagrun=task.max_active_tis_per_dagrun,
        notify=task.notify,
        email=task.email,
        sla_s=_seconds(task.sla),
        outlets=tuple(sorted(task.outlet_uris)),
        branches=task.branches,
    )


def _topological(dag: DAG) -> list[str]:
    """Kahn's algorithm, first come first served: tasks of one level get neighbouring numbers."""
    waits_for = {name: len(task.upstream_task_ids) for name, task in dag.task_dict.items()}
    ready = deque(name for name, count in waits_for.items() if count == 0)
    order = []
    position = {name: place for place, name in enumerate(dag.task_dict)}
    while ready:
        name = ready.popleft()
        order.append(name)
        for below in sorted(dag.task_dict[name].downstream_task_ids, key=position.__getitem__):
            waits_for[below] -= 1
            if waits_for[below] == 0:
                ready.append(below)
    return order


def _ranges(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
