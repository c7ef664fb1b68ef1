"""Fits the task instances of a run to another version of its DAG, and those of a mapped task to another result.

The caller has the row of the run locked. A task instance that a worker has continues; its report names the version with which
it was claimed, so fast-follow does not use the old version.

If a task runs again whose result another one is mapped over, that mapped task gets an additional undecided instance with map
index -1, as before its first expansion. While it exists, the other instances wait. Once the task can run, its instances are fitted
to the new result: those in range stay or are restored, missing ones are added, and those beyond are removed, with their tries and
logs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from paceline.states import FINISHED, RUN_UNFINISHED, STARTED
from paceline.states import TaskState as S
from scheduler.deciding import expansion
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.dags.versions import Versions
from scheduler.store.moves import expand
from scheduler.store.moves import fit as moves
from scheduler.store.runs import selection
from scheduler.store.runs.selection import Change, Instance, Run

BEYOND = "there is nothing to map over at its index any more"


def follow_newest(connection: Connection, dag_run_id: int, versions: Versions, *, default_queue: str) -> int | None:
    """Switch a queued or running run, which the caller has locked, to the newest version if the DAG has
    disable_bundle_versioning.

    Returns the new version; None if the run has it already, or if runs of the DAG keep their version.
    """
    newer = connection.exec_driver_sql(
        f"""
        select d.version_id from dag_run r join dag d on d.dag_id = r.dag_id
         where r.id = %s and r.state in {RUN_UNFINISHED.sql} and d.version_id <> r.version_id
        """,
        (dag_run_id,),
    ).scalar_one_or_none()
    if newer is None or not versions.dag(connection, newer).disable_bundle_versioning:
        return None
    run = selection.lock_run(connection, dag_run_id)
    if run is None:
        return None
    fit(connection, run, versions.dag(connection, newer), newer, default_queue=default_queue)
    return int(newer)


def fit(connection: Connection, run: Run, dag: SerializedDag, version_id: int, *, default_queue: str) -> list[Change]:
    """Switch a locked run to `version_id`, whose DAG is `dag`, and fit its task instances. Returns the changes.

    Removed tasks get the numbers after those of `dag`.
    """
    instances = selection.lock_instances(connection, run.id)
    tasks = wanted(dag, run.logical_date, is_backfill=run.is_backfill)
    plan = _plan(dag, instances, {dag.tasks[no].task_id for no in tasks})
    # After the instances are locked, so each claim of the earlier version is stored with an earlier start, and none starts now.
    connection.exec_driver_sql(
        "insert into run_version (dag_run_id, version_id, until)"
        " select id, version_id, clock_timestamp() from dag_run where id = %s",
        (run.id,),
    )
    number = connection.exec_driver_sql(
        """
        update dag_run r set version_id = v.id, notify = %(notify)s from dag_version v
         where r.id = %(run)s and v.id = %(version)s returning v.number
        """,
        {"run": run.id, "version": version_id, "notify": list(dag.notify) or None},
    ).scalar_one()
    moves.delete(connection, _ids(plan.deleted))
    moves.remove(connection, _ids(plan.removed), f"version {number} of the DAG has no such task instance")
    gone = sorted({ti.task_id for ti in instances} - dag.number.keys())
    numbers = dag.number | {task_id: len(dag.tasks) + place for place, task_id in enumerate(gone)}
    changed = {ti.task_no: numbers[ti.task_id] for ti in instances if numbers[ti.task_id] != ti.task_no}
    moves.renumber(connection, run.id, changed, _ids(plan.unmapped))
    moves.restore(connection, _ids(plan.restored), _retries(dag, plan.restored))
    moves.refresh(connection, dag, run.id, is_backfill=run.is_backfill, default_queue=default_queue)
    moves.insert(connection, dag, run.id, plan.created, is_backfill=run.is_backfill, default_queue=default_queue)
    _grow(connection, dag, plan.grown)
    return plan.changes(run, dag)


@dataclass(slots=True)
class _Plan:
    """The planned changes of the task instances of a run."""

    removed: list[Instance] = field(default_factory=list)
    restored: list[Instance] = field(default_factory=list)
    deleted: list[Instance] = field(default_factory=list)
    #: Those whose map index becomes -1.
    unmapped: list[Instance] = field(default_factory=list)
    #: The numbers of new tasks.
    created: list[int] = field(default_factory=list)
    #: Map indexes to add (-1: to be expanded again), each with an existing instance of the task.
    grown: list[tuple[Instance, int]] = field(default_factory=list)

    def changes(self, run: Run, dag: SerializedDag) -> list[Change]:
        added = [
            *((dag.tasks[no].task_id, -1) for no in self.created),
            *((ti.task_id, index) for ti, index in self.grown),
        ]
        return [
            *(ti.change(run, "removed") for ti in self.removed),
            *(ti.change(run, "deleted") for ti in self.deleted),
            *(ti.change(run, "none") for ti in self.restored),
            *(run.change(name, index, None, "created") for name, index in added),
        ]


def _plan(dag: SerializedDag, instances: Sequence[Instance], wanted: Collection[str]) -> _Plan:
    """Plan the changes; `wanted` are the tasks of a run of this date."""
    by_task: defaultdict[str, list[Instance]] = defaultdict(list)
    for ti in instances:
        by_task[ti.task_id].append(ti)
    plan = _Plan()
    for task_id, own in by_task.items():
        if task_id in dag.number:
            _fit_instances(plan, dag.tasks[dag.number[task_id]], own)
        else:
            plan.removed += _removable(own)
    plan.created = [no for no, task in enumerate(dag.tasks) if task.task_id in wanted and task.task_id not in by_task]
    return plan


def _fit_instances(plan: _Plan, task: SerializedTask, own: Sequence[Instance]) -> None:
    """Plan which instances of one task, in the order of their map index, are restored, removed, deleted or added."""
    first = own[0]
    length = expansion.count(task.expand, {}) if task.expand is not None else None
    if task.expand is None or (length is None and all(ti.state is S.REMOVED for ti in own)):
        # Not mapped any more, or to be expanded by its current inputs: one instance with index -1.
        plan.deleted += [ti for ti in own[1:] if ti.state not in STARTED]
        plan.unmapped += [first] if first.map_index != -1 else []
        plan.restored += [first] if first.state is S.REMOVED else []
    elif first.map_index == -1:
        # Expanded by promote, which also fits the others, if there are any.
        plan.restored += [first] if first.state is S.REMOVED else []
    elif length is None:
        # The expansion stays. Removed instances may belong to a removed task, or have a map index beyond the inputs.
        plan.grown += [(first, -1)] if any(ti.state is S.REMOVED for ti in own) else []
    else:
        plan.restored += [ti for ti in own if ti.state is S.REMOVED and ti.map_index < length]
        plan.removed += _removable(ti for ti in own if ti.map_index >= length)
        there = {ti.map_index for ti in own}
        plan.grown += [(first, index) for index in range(length) if index not in there]


def _removable(instances: Iterable[Instance]) -> list[Instance]:
    return [ti for ti in instances if ti.state is not S.REMOVED and ti.state not in STARTED]


def _grow(connection: Connection, dag: SerializedDag, grown: Sequence[tuple[Instance, int]]) -> None:
    """Add instances with these map indexes, like the given ones."""
    if grown:
        like = [ti for ti, _ in grown]
        expand.grow(connection, _ids(like), [index for _, index in grown], _retries(dag, like))


def _ids(instances: Iterable[Instance]) -> list[int]:
    return [ti.id for ti in instances]


def _retries(dag: SerializedDag, instances: Iterable[Instance]) -> list[int]:
    return [dag.tasks[dag.number[ti.task_id]].retries for ti in instances]


def wanted(dag: SerializedDag, logical_date: datetime | None, *, is_backfill: bool) -> list[int]:
    """The numbers of the tasks whose start_date and end_date include this date; all tasks for a backfill or without a date."""
    if is_backfill or logical_date is None:
        return list(range(len(dag.tasks)))
    return [no for no, task in enumerate(dag.tasks) if _includes(task, logical_date)]


def _includes(task: SerializedTask, moment: datetime) -> bool:
    return (task.start_date is None or datetime.fromisoformat(task.start_date) <= moment) and (
        task.end_date is None or moment <= datetime.fromisoformat(task.end_date)
    )


def unexpand(connection: Connection, dag: SerializedDag, instances: Sequence[Instance], picked: Iterable[Instance]) -> None:
    """Mark expanded tasks for another expansion that will run after a task whose result they are mapped over has run again.

    `instances` are all task instances of the run, locked, and `picked` those that will run again.
    """
    chosen = {ti.id for ti in picked}
    runs_again = {ti.task_id for ti in instances if ti.id in chosen or ti.state not in FINISHED}
    is_to_run = {ti.task_id for ti in instances if ti.map_index >= 0 and (ti.id in chosen or ti.state is S.NONE)}
    first: dict[str, Instance] = {}
    for ti in instances:
        if ti.task_id in is_to_run and ti.task_id in dag.number:
            task = dag.tasks[dag.number[ti.task_id]]
            if task.expand is not None and runs_again & expansion.sources(task.expand):
                first.setdefault(ti.task_id, ti)
    like = [ti for ti in first.values() if ti.map_index != -1]
    if like:
        expand.expand_later(connection, _ids(like), _retries(dag, like))


def expand_again(connection: Connection, dag: SerializedDag, dag_run_id: int, task_no: int, count: int) -> None:
    """Fit the instances of a task to `count`; with 0, the one with index -1 is skipped. The caller has the run locked."""
    own = selection.lock_instances(connection, dag_run_id, task_no)
    stand_in = next(ti for ti in own if ti.map_index == -1)
    # Below -1: instances that an earlier version of Paceline stopped.
    out_of_range = [ti for ti in own if ti.map_index >= count or ti.map_index < -1]
    beyond = [ti for ti in out_of_range if ti.state not in STARTED | {S.REMOVED}]
    moves.remove(connection, _ids(beyond), BEYOND)
    restored = [ti for ti in own if 0 <= ti.map_index < count and ti.state is S.REMOVED]
    moves.restore(connection, _ids(restored), _retries(dag, restored))
    there = {ti.map_index for ti in own}
    _grow(connection, dag, [(stand_in, index) for index in range(count) if index not in there])
    expand.replace(connection, stand_in.id, count)
