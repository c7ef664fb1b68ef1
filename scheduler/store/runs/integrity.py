"""Fits the task instances of a run to another version of its DAG.

The caller has the row of the run locked. A task instance that a worker has continues; its report names the version with which
it was claimed, so fast-follow does not use the old version.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from paceline.states import RUN_UNFINISHED, STARTED
from paceline.states import TaskState as S
from scheduler.deciding import expansion
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.dags.versions import Versions
from scheduler.store.queueing.limits import OWN_RANK
from scheduler.store.runs import new_instances, selection
from scheduler.store.runs.new_instances import COMMON, COMMON_OF_INSTANCE
from scheduler.store.runs.selection import Change, Instance, Run
from scheduler.store.worker import deferrals, dispatches

REMOVED_TRY = dispatches.KEEP_TRY.format(state="'removed'", ended_at="t.ended_at")


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
    """Switch a locked run to `version_id`, whose DAG is `dag`, and fit its task instances. Returns the changes."""
    instances = selection.lock_instances(connection, run.id)
    wanted = new_instances.wanted(dag, run.logical_date, is_backfill=run.is_backfill)
    plan = _plan(dag, instances, {dag.tasks[no].task_id for no in wanted})
    number = connection.exec_driver_sql(
        """
        update dag_run r set version_id = v.id, notify = %(notify)s from dag_version v
         where r.id = %(run)s and v.id = %(version)s returning v.number
        """,
        {"run": run.id, "version": version_id, "notify": list(dag.notify) or None},
    ).scalar_one()
    if plan.deleted:
        connection.exec_driver_sql("delete from task_instance where id = any(%s)", ([ti.id for ti in plan.deleted],))
    remove(connection, plan.removed, f"version {number} of the DAG has no such task instance")
    _renumber(connection, run, dag, instances, plan.unmapped)
    restore(connection, dag, plan.restored)
    new_instances.refresh(connection, dag, run.id, is_backfill=run.is_backfill, default_queue=default_queue)
    new_instances.insert(connection, dag, run.id, plan.created, is_backfill=run.is_backfill, default_queue=default_queue)
    grow(connection, dag, plan.grown)
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
    #: Map indexes to add (-1: to be expanded again, see store/runs/unexpand), each with an existing instance of the task.
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


def remove(connection: Connection, instances: Sequence[Instance], reason: str) -> None:
    """none, waiting or ended -> removed; the XComs are deleted, so that no mapped task counts them."""
    if not instances:
        return
    ids = [ti.id for ti in instances]
    deferrals.forget(connection, ids)
    connection.exec_driver_sql("delete from xcom where task_instance_id = any(%s)", (ids,))
    note_results(connection, ids)
    connection.exec_driver_sql(
        f"""
        update task_instance
           set state = 'removed', reason = %(reason)s, due_at = null, resume = null, decision = null,
               ended_at = coalesce(ended_at, clock_timestamp())
         where id = any(%(ids)s) and (state is null or state not in {STARTED.sql})
        """,
        {"ids": ids, "reason": reason},
    )


def note_results(connection: Connection, ti_ids: Sequence[int]) -> None:
    """Record that the run of these task instances loses or gets results outside of a try, see store/worker/xcoms.RESULTS."""
    connection.exec_driver_sql(
        "update dag_run set results_changed_at = clock_timestamp()"
        " where id in (select dag_run_id from task_instance where id = any(%s))",
        (list(ti_ids),),
    )


def restore(connection: Connection, dag: SerializedDag, instances: Sequence[Instance]) -> None:
    """removed -> none: the task came back. The earlier try is kept in task_try."""
    if not instances:
        return
    connection.exec_driver_sql(
        f"{REMOVED_TRY} where t.id = any(%s) and t.state = 'removed' and t.started_at is not null order by t.id",
        ([ti.id for ti in instances],),
    )
    connection.exec_driver_sql(
        f"""
        update task_instance t
           set state = null, reason = 'the task came back', rank = {OWN_RANK}, max_tries = t.try_number + n.retries,
               ended_at = null, started_at = null, dispatch_id = null, dispatched_at = null, queued_by = null, worker = null,
               scheduled_at = null, queued_at = null, map_label = null
          from unnest(%(ids)s::bigint[], %(retries)s::int[]) n (id, retries)
         where t.id = n.id and t.state = 'removed'
        """,
        {
            "ids": [ti.id for ti in instances],
            "retries": [dag.tasks[dag.number[ti.task_id]].retries for ti in instances],
        },
    )


def _renumber(
    connection: Connection, run: Run, dag: SerializedDag, instances: Sequence[Instance], unmapped: Sequence[Instance]
) -> None:
    """Give every task instance the number of its task in `dag`; removed tasks get the numbers after those.

    Temporary negative numbers avoid conflicts with the unique key. The SLAs of tasks are renumbered too.
    """
    gone = sorted({ti.task_id for ti in instances} - dag.number.keys())
    number = dag.number | {task_id: len(dag.tasks) + place for place, task_id in enumerate(gone)}
    old = {ti.task_no: number[ti.task_id] for ti in instances if number[ti.task_id] != ti.task_no}
    moves = {"run": run.id, "old": list(old), "new": [-1 - no for no in old.values()]}
    for table, of_task in (("task_instance", "true"), ("deadline", "t.kind = 'sla'")) if old else ():
        connection.exec_driver_sql(
            f"update {table} t set task_no = n.new from unnest(%(old)s::int[], %(new)s::int[]) n (old, new)"
            f" where t.dag_run_id = %(run)s and t.task_no = n.old and {of_task}",
            moves,
        )
        connection.exec_driver_sql(
            f"update {table} t set task_no = -1 - task_no where dag_run_id = %(run)s and task_no < 0 and {of_task}", moves
        )
    if unmapped:
        connection.exec_driver_sql(
            "update task_instance set map_index = -1, map_label = null where id = any(%s)", ([ti.id for ti in unmapped],)
        )


def grow(connection: Connection, dag: SerializedDag, grown: Sequence[tuple[Instance, int]]) -> None:
    """Add instances to mapped tasks, as copies of existing instances."""
    if grown:
        connection.exec_driver_sql(
            f"""
            insert into task_instance (dag_run_id, task_no, task_id, map_index, max_tries, {COMMON})
            select t.dag_run_id, t.task_no, t.task_id, n.map_index, n.retries, {COMMON_OF_INSTANCE}
              from unnest(%(ids)s::bigint[], %(indexes)s::int[], %(retries)s::int[]) n (id, map_index, retries)
              join task_instance t on t.id = n.id
             order by t.id, n.map_index
            """,
            {
                "ids": [ti.id for ti, _ in grown],
                "indexes": [index for _, index in grown],
                "retries": [dag.tasks[dag.number[ti.task_id]].retries for ti, _ in grown],
            },
        )
