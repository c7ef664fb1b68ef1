"""Selects the runs and task instances of a request, and locks them before they are read."""

import difflib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError, PacelineError, no_dag
from paceline.states import OPEN, RUN_FINISHED, RunState, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.dags import AFTER, ORDER
from scheduler.store.db import rows

#: A task ID with a map index, or with None for all instances of the task.
Entry = tuple[str, int | None]


class Place(NamedTuple):
    """A task by its number, and a map index, or None for all instances of the task."""

    no: int
    map_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of one DAG: one by its run ID (with `past` or `future` also those before or after it), or all in a range of dates."""

    dag_id: str
    run_id: str | None = None
    past: bool = False
    future: bool = False
    from_date: datetime | None = None
    to_date: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """Task instances of a run: all, or those of tasks by ID or regular expression, with their upstream or downstream tasks.

    An entry of `task_ids` can be a pair of a task and a map index. `map_index` applies to all other entries. `states` selects
    those in one of these states, and `keys` those of these rows; None selects all.
    """

    task_ids: tuple[str | tuple[str, int], ...] = ()
    regex: str | None = None
    map_index: int | None = None
    upstream: bool = False
    downstream: bool = False
    states: Collection[TaskState] | None = None
    keys: Collection[int] | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one task instance by a request; a dry run returns the same changes.

    `becomes` is its new state ("shutdown" if its worker stops it first), "created" or "deleted".
    """

    dag_run_id: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    state: str | None
    becomes: str


class Changes(list[Change]):
    """The changes of a request."""

    #: The number of selected runs that have none of the requested tasks or map indexes.
    passed_over: int = 0
    #: The teardowns that still run before the run ends.
    teardowns: Sequence[str] = ()
    #: By run ID: the number of its DAG version, and of the one that it has now.
    moved: Mapping[str, tuple[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run whose row is locked. `requested_state` is set if only its teardowns are left: it ends with this state."""

    id: int
    dag_id: str
    run_id: str
    state: RunState
    requested_state: str | None
    version_id: int
    logical_date: datetime | None
    is_backfill: bool
    is_reproduction: bool

    @property
    def has_ended(self) -> bool:
        """Whether all its tasks have ended, except teardowns that still run."""
        return self.state in RUN_FINISHED or self.requested_state is not None

    def change(self, task_id: str, map_index: int, state: str | None, becomes: str) -> Change:
        """A change of one of its task instances."""
        return Change(self.id, self.dag_id, self.run_id, task_id, map_index, state, becomes)


@dataclass(frozen=True, slots=True)
class Instance:
    """A task instance whose row is locked."""

    id: int
    task_no: int
    task_id: str
    map_index: int
    state: TaskState
    requested_state: str | None

    def change(self, run: Run, becomes: str) -> Change:
        return run.change(self.task_id, self.map_index, None if self.state is TaskState.NONE else self.state.value, becomes)


def run_keys(connection: Connection, runs: Runs) -> list[int]:
    """The keys of the selected runs, oldest first. NotFoundError if the DAG or the run does not exist."""
    keys = connection.exec_driver_sql(
        f"""
        select r.id from dag_run r
          left join dag_run n on n.dag_id = %(dag_id)s and n.run_id = %(run_id)s
         where r.dag_id = %(dag_id)s and (r.id = n.id or r.run_type <> 'reproduction')
           and (%(run_id)s::text is null or r.id = n.id
                or (%(past)s and {AFTER.format("n", "r")})
                or (%(future)s and {AFTER.format("r", "n")}))
           and (%(from)s::timestamptz is null or {ORDER.format("r")} >= %(from)s)
           and (%(to)s::timestamptz is null or {ORDER.format("r")} <= %(to)s)
         order by {ORDER.format("r")}, r.id
        """,
        {
            "dag_id": runs.dag_id,
            "run_id": runs.run_id,
            "past": runs.past,
            "future": runs.future,
            "from": runs.from_date,
            "to": runs.to_date,
        },
    )
    ids = list(keys.scalars())
    if runs.run_id is not None and not ids:
        raise NotFoundError(f"DAG {runs.dag_id!r} has no run {runs.run_id!r}; `paceline runs list --dag {runs.dag_id}` lists all.")
    if not ids:
        known = connection.exec_driver_sql("select 1 from dag where dag_id = %s", (runs.dag_id,)).first()
        if known is None:
            raise no_dag(runs.dag_id)
    return ids


def lock_all(connection: Connection, keys: Sequence[int], *, with_instances: bool) -> None:
    """Lock several runs and then their task instances, each in ID order as every other transaction does."""
    connection.exec_driver_sql("select 1 from dag_run where id = any(%s) order by id for no key update", (list(keys),))
    if with_instances:
        connection.exec_driver_sql(
            "select 1 from task_instance where dag_run_id = any(%s) order by id for no key update", (list(keys),)
        )


def lock_run(connection: Connection, key: int) -> Run | None:
    """Lock a run in any state; None if it was deleted."""
    held = connection.exec_driver_sql(
        "select id, dag_id, run_id, state, requested_state, version_id, logical_date, run_type = 'backfill' as is_backfill,"
        " run_type = 'reproduction' as is_reproduction from dag_run where id = %s for no key update",
        (key,),
    )
    return rows.first(Run, held)


def lock_instances(connection: Connection, dag_run_id: int, task_no: int | None = None, *, lock: bool = True) -> list[Instance]:
    """Lock the task instances of a locked run, or of one of its tasks, in ID order, then read them: they cannot change until the
    commit.
    """
    which = "dag_run_id = %(run)s" + ("" if task_no is None else " and task_no = %(no)s")
    place = {"run": dag_run_id, "no": task_no}
    if lock:
        connection.exec_driver_sql(f"select 1 from task_instance where {which} order by id for no key update", place)
    held = connection.exec_driver_sql(
        "select id, task_no, task_id, map_index, coalesce(state, 'none') as state, requested_state"
        f" from task_instance where {which} order by task_no, map_index",
        place,
    )
    return rows.of_result(Instance, held)


def lock_open(connection: Connection, dag_run_id: int, *, only_undecided: bool = False) -> None:
    """Lock the unfinished task instances of a locked run, or only the undecided ones, before several statements change some."""
    connection.exec_driver_sql(
        f"""
        select 1 from task_instance where dag_run_id = %(run)s and (state is null or (not %(only)s and state in {OPEN.sql}))
         order by id for no key update
        """,
        {"run": dag_run_id, "only": only_undecided},
    )


def pick(dag: SerializedDag, instances: Sequence[Instance], tasks: Tasks) -> list[Instance]:
    """The selected task instances of a run."""
    return [ti for ti in _named_with_relatives(dag, instances, tasks) if tasks.states is None or ti.state in tasks.states]


def found(dag: SerializedDag, instances: Sequence[Instance], tasks: Tasks) -> set[Entry]:
    """The entries of `tasks` that this run has: its tasks, or map indexes of them."""
    return _of_run(dag, instances, entries(tasks))


def _of_run(dag: SerializedDag, instances: Sequence[Instance], wanted: set[Entry]) -> set[Entry]:
    places = {(ti.task_id, ti.map_index) for ti in instances}
    names = {ti.task_id for ti in instances} | dag.number.keys()
    return {(name, index) for name, index in wanted if ((name, index) in places if index is not None else name in names)}


def entries(tasks: Tasks) -> set[Entry]:
    """The tasks that a request names, each with its map index, or with None for all its instances."""
    return {one if isinstance(one, tuple) else (one, tasks.map_index) for one in tasks.task_ids}


def not_found(dag_id: str, entry: Entry, known: Collection[str]) -> NotFoundError:
    """The error for an entry that no selected run has; `known` are the tasks of the DAG."""
    name, index = entry
    if name in known and index is not None:
        return NotFoundError(f"Task {name!r} has no instance of map index {index} in any of these runs.")
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"`paceline tasks list {dag_id}` lists all."
    return NotFoundError(f"DAG {dag_id!r} has no task {name!r}; {hint}")


def _named_with_relatives(dag: SerializedDag, instances: Sequence[Instance], tasks: Tasks) -> Sequence[Instance]:
    """The task instances that `tasks` names, in any state, with those upstream or downstream of them if requested."""
    if tasks.keys is not None:
        return [ti for ti in instances if ti.id in tasks.keys]
    if not tasks.task_ids and tasks.regex is None:
        return instances
    # What this run does not have has no relatives in it either.
    named = _of_run(dag, instances, entries(tasks) | {(name, tasks.map_index) for name in _matches(dag, instances, tasks.regex)})
    places = {
        Place(dag.number[name], index if index is not None and index >= 0 else None) for name, index in named if name in dag.number
    }
    around: set[Place] = set()
    if tasks.upstream:
        around |= _reach(dag, places, dag.upstream)
    if tasks.downstream:
        around |= _reach(dag, places, dag.downstream)
    numbers = {no for no, _ in around}

    def is_selected(ti: Instance) -> bool:
        if (ti.task_id, None) in named or (ti.task_id, ti.map_index) in named:
            return True
        return ti.task_id in dag.number and _covers(around, numbers, dag.number[ti.task_id], ti.map_index)

    return [ti for ti in instances if is_selected(ti)]


def with_setups(dag: SerializedDag, instances: Sequence[Instance], picked: Iterable[Instance]) -> list[Instance]:
    """`picked` with the setups and teardowns of its tasks, in any state, because the tasks cannot run without them.

    In a mapped task group, these are the setups and teardowns with the same map index.
    """
    chosen = {ti.id for ti in picked}
    teardowns_of: defaultdict[str, list[int]] = defaultdict(list)
    for no, task in enumerate(dag.tasks):
        for name in {*task.scope, *task.setups} if task.is_teardown else ():
            teardowns_of[name].append(no)
    work = {_place(dag, ti) for ti in instances if ti.id in chosen and ti.task_id in dag.number}
    setups = {_next(dag, place, dag.number[name]) for place in work for name in dag.tasks[place.no].setups}
    # The teardowns of a setup that runs again also run again.
    teardowns = {_next(dag, place, no) for place in work | setups for no in teardowns_of[dag.tasks[place.no].task_id]}
    wanted = setups | teardowns
    numbers = {no for no, _ in wanted}
    return [
        ti
        for ti in instances
        if ti.id in chosen or (ti.task_id in dag.number and _covers(wanted, numbers, dag.number[ti.task_id], ti.map_index))
    ]


def below(dag: SerializedDag, instances: Sequence[Instance], picked: Iterable[Instance]) -> list[Instance]:
    """The `instances` transitively downstream of `picked`: in a mapped task group, those with the same map index."""
    reached = _reach(dag, {_place(dag, ti) for ti in picked if ti.task_id in dag.number}, dag.downstream)
    numbers = {no for no, _ in reached}
    return [ti for ti in instances if ti.task_id in dag.number and _covers(reached, numbers, dag.number[ti.task_id], ti.map_index)]


def _matches(dag: SerializedDag, instances: Sequence[Instance], regex: str | None) -> set[str]:
    if regex is None:
        return set()
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise PacelineError(f"{regex!r} is not a regular expression: {error}; write one such as '^load_'.") from None
    return {name for name in {ti.task_id for ti in instances} | dag.number.keys() if pattern.search(name)}


def _place(dag: SerializedDag, ti: Instance) -> Place:
    return Place(dag.number[ti.task_id], ti.map_index if ti.map_index >= 0 else None)


def _next(dag: SerializedDag, place: Place, no: int) -> Place:
    """The instances of task `no` that belong to those at `place`: in the same mapped group those of its index, otherwise all."""
    group = dag.tasks[place.no].mapped_group
    return Place(no, place.map_index if group is not None and group == dag.tasks[no].mapped_group else None)


def _covers(places: Collection[Place], numbers: Collection[int], no: int, map_index: int) -> bool:
    """Whether an instance is at one of `places`, whose tasks are `numbers`. An instance that is not expanded is at any index."""
    return no in numbers and (map_index < 0 or (no, None) in places or (no, map_index) in places)


def _reach(dag: SerializedDag, start: Iterable[Place], edges: Sequence[Sequence[int]]) -> set[Place]:
    """Every place that `edges` reach from `start`."""
    seen: set[Place] = set()
    todo = list(start)
    while todo:
        place = todo.pop()
        for no in edges[place.no]:
            reached = _next(dag, place, no)
            if reached not in seen:
                seen.add(reached)
                todo.append(reached)
    return seen
