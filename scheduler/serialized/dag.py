"""A DAG version as data: immutable and free of user code. Equal content has an equal hash."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache, cached_property
from typing import Any, Self, get_origin

from paceline.authoring import timetable
from paceline.authoring.timetables.base import Timetable
from scheduler.serialized.tasks import SerializedTask, Stored, traits

#: Stored even if they are defaults: statements read some of them, and without the others the hash of every DAG would change.
ALWAYS_STORED = frozenset(
    {
        "dag_id", "file", "schedule", "timezone", "description", "start_date", "end_date", "catchup", "max_active_runs",
        "max_active_tasks", "is_paused_upon_creation", "tags", "owners", "doc_md", "dagrun_timeout_s", "fail_fast",
        "max_consecutive_failed_dag_runs", "notify", "params", "deadlines", "sla_miss_callback", "disable_bundle_versioning",
        "rerun_with_latest_version", "allowed_run_types", "groups", "asset_names", "tasks",
    }
)  # fmt: skip

MAX_DEFAULTED = 100


def param_order(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The `param_order` of a DAG with these params."""
    names = tuple(params)
    return () if list(names) == sorted(names, key=lambda name: (len(name.encode()), name.encode())) else names


def params_in_order(data: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a stored version, in the author's order."""
    params: dict[str, Any] = data.get("params") or {}
    return {name: params[name] for name in data.get("param_order") or () if name in params} | params


@dataclass(frozen=True, kw_only=True)
class SerializedDag(Stored):
    """One version of a DAG. `tasks` are in topological order, with siblings next to each other; the index is the `task_no`.

    Add a field only with a default, and not to ALWAYS_STORED: then no hash changes. A default must never change.
    """

    always_stored = ALWAYS_STORED

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
    #: The owners of its tasks, and its documentation, for people.
    owners: tuple[str, ...] = ()
    doc_md: str | None = None
    dagrun_timeout_s: float | None = None
    fail_fast: bool = False
    #: The DAG is paused after this many failed runs in a row; 0 for never.
    max_consecutive_failed_dag_runs: int = 0
    #: The events that create a notice: dag_success, dag_failure.
    notify: tuple[str, ...] = ()
    #: {name: {"value", "schema", "description"}}, see authoring/params.
    params: dict[str, Any] = field(default_factory=dict)
    #: Their names in the author's order, if the database, which keeps keys by length and then by bytes, has another.
    param_order: tuple[str, ...] = ()
    #: {"reference", "interval_s", ...} each, see authoring/deadline.
    deadlines: tuple[dict[str, Any], ...] = ()
    sla_miss_callback: bool = False
    #: Its runs continue with each new version, instead of the one with which they were created.
    disable_bundle_versioning: bool = False
    #: Whether cleared runs continue with the newest version; None: core.rerun_with_latest_version.
    rerun_with_latest_version: bool | None = None
    #: The types of runs that it allows; empty: all.
    allowed_run_types: tuple[str, ...] = ()
    #: When the state of the tables begins that its tasks read: try_start or run_start.
    read_at: str = "try_start"
    #: [{"group_id", "parent", "tooltip"}, ...], outer groups first.
    groups: tuple[dict[str, Any], ...] = ()
    #: {uri: name} of its assets whose name is not their URI.
    asset_names: dict[str, str] = field(default_factory=dict)
    #: The variables of which the file took the default while it was loaded; at most MAX_DEFAULTED.
    defaulted_variables: tuple[str, ...] = ()
    #: The ID of the bundle version whose code its runs execute; None: what stands in the DAGs folder. Not part of the content.
    bundle_version: int | None = None
    tasks: tuple[SerializedTask, ...] = ()

    def to_json(self) -> str:
        """Canonical JSON: equal DAGs have equal bytes, in any process."""
        return self._json

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> Self:
        """The DAG that `to_json` wrote. Unknown keys of a newer version of Paceline are ignored."""
        data = json.loads(text) if isinstance(text, str) else text
        tasks = tuple(SerializedTask.of(_known(SerializedTask, task)) for task in data["tasks"])
        return cls(**_known(cls, data) | {"tasks": tasks})

    @cached_property
    def _json(self) -> str:
        return json.dumps(self, default=_as_stored, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @cached_property
    def content_hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def number(self) -> dict[str, int]:
        """task_id -> task_no."""
        return {task.task_id: no for no, task in enumerate(self.tasks)}

    @cached_property
    def edges(self) -> dict[str, set[str]]:
        """task_id -> the IDs of its direct upstream tasks."""
        return {task.task_id: set(task.upstream) for task in self.tasks}

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
        """The tasks that decide the final state of a run: those with only teardowns downstream.

        A teardown counts only with on_failure_fail_dagrun, or if the DAG has only teardowns there.
        """
        teardown = [task.is_teardown for task in self.tasks]
        counted = [
            no
            for no, below in enumerate(self.downstream)
            if (not teardown[no] and all(teardown[next_no] for next_no in below)) or self.tasks[no].on_failure_fail_dagrun
        ]
        return tuple(counted or [no for no, below in enumerate(self.downstream) if not below])

    @cached_property
    def below_branch(self) -> frozenset[int]:
        """Tasks downstream of a branch, which can decide to skip them."""
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
    def has_loops(self) -> bool:
        return any(task.loop_gate for task in self.tasks)

    @cached_property
    def is_plain(self) -> bool:
        """Whether a run can be decided from its states alone, without expansion, other runs, branches or fail_fast."""
        more = self.fail_fast or self.disable_bundle_versioning or self.depends_on_past or self.has_branches
        return not more and not any(task.is_mapped for task in self.tasks)

    @cached_property
    def followed(self) -> frozenset[int]:
        """The tasks that a worker which ends one of their upstream tasks can decide from the states of these.

        It cannot if the task depends on other runs or on indirect setups, or must be expanded first. Instances of a mapped
        group are decided if all direct upstream tasks are in the group.
        """
        return frozenset(
            no
            for no, task in enumerate(self.tasks)
            if no not in self._looks_further
            and (
                not task.is_mapped
                or (
                    task.mapped_group is not None
                    and all(self.tasks[above].mapped_group == task.mapped_group for above in self.upstream[no])
                )
            )
        )

    @cached_property
    def teardowns(self) -> frozenset[int]:
        """The teardowns."""
        return frozenset(no for no, task in enumerate(self.tasks) if task.is_teardown)

    @cached_property
    def mapped(self) -> frozenset[int]:
        """The mapped tasks."""
        return frozenset(no for no, task in enumerate(self.tasks) if task.is_mapped)

    @cached_property
    def above_mapped(self) -> frozenset[int]:
        """The tasks with a direct downstream task that is mapped, possibly over their results."""
        return frozenset(above for no in self.mapped for above in self.upstream[no])

    @cached_property
    def limited(self) -> frozenset[int]:
        """The tasks with a limit over their own instances."""
        return frozenset(no for no, task in enumerate(self.tasks) if task.is_limited)

    @cached_property
    def in_place(self) -> frozenset[int]:
        """The tasks that may run in the process of the task before: they need no session, program or lease of their own."""
        return frozenset(no for no, task in enumerate(self.tasks) if traits(task.runtime).in_place and not task.exclusive)

    @cached_property
    def _looks_further(self) -> frozenset[int]:
        """Tasks that depend on more than their direct upstream tasks."""
        return frozenset(
            no
            for no, task in enumerate(self.tasks)
            if task.depends_on_past or task.is_teardown or task.loop_gate or not self._upstream_implies_setups(task)
        )

    def _upstream_implies_setups(self, task: SerializedTask) -> bool:
        """Whether the success of its direct upstream tasks implies the success of each indirect setup."""
        above = [self.tasks[self.number[name]] for name in task.upstream]
        return all(
            task.trigger_rule == "always"
            or (
                task.trigger_rule == "all_success"
                and any(
                    (setup in upstream.setups and upstream.trigger_rule == "all_success")
                    or (setup in upstream.indirect_setups and upstream.trigger_rule != "always")
                    for upstream in above
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


def next_timetable(dag: SerializedDag) -> Timetable:
    """The timetable of the DAG."""
    return timetable.from_spec(dag.schedule)


def _as_stored(part: object) -> dict[str, Any]:
    if not isinstance(part, Stored):
        raise TypeError(f"Object of type {type(part).__name__} is not JSON serializable")
    return part.as_stored()


def _known(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """The values of `data` for which `kind` has a field, with tuples in place of lists where the field is a tuple."""
    names, tuples = _names(kind)
    values = dict(data) if data.keys() <= names else {name: value for name, value in data.items() if name in names}
    for name in tuples & values.keys():
        values[name] = tuple(values[name])
    return values


@cache
def _names(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """The names of all fields, and of those that are tuples."""
    known = fields(kind)
    return frozenset(each.name for each in known), frozenset(each.name for each in known if get_origin(each.type) is tuple)


def _ranges(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
