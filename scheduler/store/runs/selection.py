"""Selects the runs and task instances of a request, and locks them before they are read."""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from scheduler.exceptions import NotFoundError, PacelineError, no_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.states import RunState, TaskState
from scheduler.store.dags.dags import AFTER, ORDER
from scheduler.store.db import rows


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

    `states` selects those in one of these states, and `keys` those of these rows; None selects all.
    """

    task_ids: tuple[str, ...] = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run whose row is locked."""

    id: int
    dag_id: str
    run_id: str
    state: RunState
    version_id: int
    logical_date: datetime | None
    is_backfill: bool

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
    asked: str | None

    def change(self, run: Run, becomes: str) -> Change:
        return run.change(self.task_id, self.map_index, None if self.state is TaskState.NONE else self.state.value, becomes)


def run_keys(connection: Connection, runs: Runs) -> list[int]:
    """The keys of the selected runs, oldest first. NotFoundError if the DAG or the run does not exist."""
    keys = connection.exec_driver_sql(
        f"""
        select r.id from dag_run r
          left join dag_run n on n.dag_id = %(dag_id)s and n.run_id = %(run_id)s
         where r.dag_id = %(dag_id)s
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


def lock_run(connection: Connection, key: int) -> Run | None:
    """Lock a run in any state; None if it was deleted."""
    held = connection.exec_driver_sql(
        "select id, dag_id, run_id, state, version_id, logical_date, run_type = 'backfill' as is_backfill"
        " from dag_run where id = %s for no key update",
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
        "select id, task_no, task_id, map_index, coalesce(state, 'none') as state, asked"
        f" from task_instance where {which} order by task_no, map_index",
        place,
    )
    return rows.of_result(Instance, held)


def pick(dag: SerializedDag, instances: Sequence[Instance], tasks: Tasks) -> list[Instance]:
    """The selected task instances. NotFoundError if a requested task or map index does not exist."""
    return [ti for ti in _named_with_relatives(dag, instances, tasks) if tasks.states is None or ti.state in tasks.states]


def _named_with_relatives(dag: SerializedDag, instances: Sequence[Instance], tasks: Tasks) -> Sequence[Instance]:
    """The task instances that `tasks` names, in any state, with those upstream or downstream of them if requested."""
    if tasks.keys is not None:
        return [ti for ti in instances if ti.id in tasks.keys]
    if not tasks.task_ids and tasks.regex is None:
        return instances
    named = _named(dag, instances, tasks)
    numbers = [dag.number[name] for name in named if name in dag.number]
    around: set[int] = set()
    if tasks.upstream:
        around |= _reach(numbers, dag.upstream)
    if tasks.downstream:
        around |= _reach(numbers, dag.downstream)
    groups = {dag.tasks[no].mapped_group for no in numbers} - {None}

    def is_selected(ti: Instance) -> bool:
        if ti.task_id in named:
            return tasks.map_index is None or ti.map_index == tasks.map_index
        if dag.number.get(ti.task_id) not in around:
            return False
        # Inside a mapped group, the upstream and downstream instances are those with the same map index.
        peer = dag.tasks[dag.number[ti.task_id]].mapped_group in groups
        return tasks.map_index is None or not peer or ti.map_index in {tasks.map_index, -1}

    selected = [ti for ti in instances if is_selected(ti)]
    if tasks.map_index is not None and not any(ti.task_id in named for ti in selected):
        raise NotFoundError(f"Task {min(named)!r} has no instance of map index {tasks.map_index} in this run.")
    return selected


def with_setups(dag: SerializedDag, instances: Sequence[Instance], picked: Iterable[Instance]) -> list[Instance]:
    """`picked` with the setups and teardowns of its tasks, in any state, because the tasks cannot run without them."""
    chosen = {ti.id for ti in picked}
    work = {ti.task_id for ti in instances if ti.id in chosen}
    wanted = {setup for name in work if name in dag.number for setup in dag.tasks[dag.number[name]].setups}
    teardowns = [task for task in dag.tasks if task.is_teardown]
    wanted |= {task.task_id for task in teardowns if work & set(task.scope)}
    # The teardowns of a setup that runs again also run again.
    wanted |= {task.task_id for task in teardowns if (wanted | work) & set(task.setups)}
    return [ti for ti in instances if ti.id in chosen or ti.task_id in wanted]


def below(dag: SerializedDag, instances: Iterable[Instance]) -> set[str]:
    """The transitive downstream tasks of those of `instances`."""
    numbers = {dag.number[ti.task_id] for ti in instances if ti.task_id in dag.number}
    return {dag.tasks[no].task_id for no in _reach(numbers, dag.downstream)}


def _named(dag: SerializedDag, instances: Sequence[Instance], tasks: Tasks) -> set[str]:
    known = {ti.task_id for ti in instances} | dag.number.keys()
    for name in tasks.task_ids:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"`paceline tasks list {dag.dag_id}` lists all."
            raise NotFoundError(f"DAG {dag.dag_id!r} has no task {name!r}; {hint}")
    names = set(tasks.task_ids)
    if tasks.regex is not None:
        try:
            pattern = re.compile(tasks.regex)
        except re.error as error:
            raise PacelineError(f"{tasks.regex!r} is not a regular expression: {error}; write one such as '^load_'.") from None
        names |= {name for name in known if pattern.search(name)}
    return names


def _reach(start: Iterable[int], edges: Sequence[Sequence[int]]) -> set[int]:
    """Every node that `edges` reach from `start`."""
    seen: set[int] = set()
    todo = list(start)
    while todo:
        for no in edges[todo.pop()]:
            if no not in seen:
                seen.add(no)
                todo.append(no)
    return seen
