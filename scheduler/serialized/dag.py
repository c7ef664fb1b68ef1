"""A version of a DAG as data: immutable, free of user code; equal content has an equal hash."""

import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import Any, Self, get_origin

from scheduler.authoring import timetable
from scheduler.serialized.tasks import SerializedTask


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
        return below in self.followed

    @cached_property
    def followed(self) -> frozenset[int]:
        """The tasks of which `follows` is true, whichever task above them ends."""
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
    def mapped(self) -> frozenset[int]:
        """The mapped tasks."""
        return frozenset(no for no, task in enumerate(self.tasks) if task.is_mapped)

    @cached_property
    def above_mapped(self) -> frozenset[int]:
        """The tasks with a mapped task directly below: it may be mapped over what they push."""
        return frozenset(above for no in self.mapped for above in self.upstream[no])

    @cached_property
    def limited(self) -> frozenset[int]:
        """The tasks with a limit over their own instances."""
        return frozenset(no for no, task in enumerate(self.tasks) if task.is_limited)

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


def next_timetable(dag: SerializedDag) -> timetable.Timetable:
    """The timetable that computes this DAG's next run."""
    return timetable.from_spec(dag.schedule)


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


def _ranges(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges
