"""The scheduler's transitions of task instances: one named function each, conditional on the state that it changes.

Zero rows updated is a lost race, which is a normal result. Rows are always locked in ID order; see docs/explanation/locks.md.
Where rows are known by ID, their state is compared as coalesce(state, ''), see store/moves/claim.sql.
"""

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult

from paceline.states import DUE, OPEN, STARTED, Decision, TaskState
from scheduler.messaging.message import Message
from scheduler.store.db import rows
from scheduler.store.db.database import step
from scheduler.store.db.rows import array_literal
from scheduler.store.runs.new_instances import COMMON, COMMON_OF_INSTANCE
from scheduler.store.worker import dispatches

#: Whether a run may start, or a task instance may be due before the next check, see store/upkeep/pending_work.
PENDING = f"""
    exists (select from dag_run where state = 'queued')
    or exists (select from task_instance where state in {DUE.sql}
                  and due_at <= clock_timestamp() + make_interval(secs => $1))
"""
#: The columns of a Message about a task instance `t` of a run `r`.
MESSAGE = "t.id as ti_id, t.dispatch_id::text, t.queue, r.dag_id, r.run_id, t.task_id, t.map_index, t.priority_weight"
FAILED_TRY = dispatches.KEEP_TRY.format(state="'failed'", ended_at="t.ended_at")


def decide(connection: Connection, decisions: Mapping[int, Sequence[Decision]]) -> int:
    """none -> scheduled, skipped or upstream_failed, as decided for each run. Returns the number of rows moved."""
    flat = [(run, one) for run, of_run in decisions.items() for one in of_run]
    moved = connection.exec_driver_sql(
        """
        with found as materialized (  -- "offset 0": one index probe by number for each
            select t.id, n.state, n.reason
              from unnest(%(runs)s::bigint[], %(nos)s::int[], %(indexes)s::int[], %(states)s::text[], %(reasons)s::text[])
                   n (run, task_no, map_index, state, reason)
             cross join lateral (
                   select id from task_instance
                    where dag_run_id = n.run and task_no = n.task_no and map_index = n.map_index offset 0) t
        ), decided as (
            select t.id, f.state, f.reason
              from found f join task_instance t on t.id = f.id and coalesce(t.state, '') = ''
             order by t.id
               for no key update of t
        )
        update task_instance t
           set state = d.state, reason = d.reason,
               try_number = t.try_number + case when d.state = 'scheduled' then 1 else 0 end,
               scheduled_at = case when d.state = 'scheduled' then clock_timestamp() end,
               ended_at = case when d.state <> 'scheduled' then clock_timestamp() end
          from decided d
         where t.id = d.id and coalesce(t.state, '') = ''
        """,
        {
            "runs": array_literal(run for run, _ in flat),
            "nos": array_literal(one.task_no for _, one in flat),
            "indexes": array_literal(one.map_index for _, one in flat),
            "states": array_literal(one.state.value for _, one in flat),
            "reasons": array_literal(one.reason for _, one in flat),
        },
    )
    return moved.rowcount


def due(connection: Connection, *, limit: int) -> int:
    """up_for_retry, up_for_reschedule and deferred -> scheduled after `due_at`. Returns the number of rows moved.

    A retry is a new try, and the ended one is kept in task_try; the others continue their try. A deferred one resumes with
    the information that its trigger did not fire in time.
    """
    moved = connection.exec_driver_sql(
        f"""
        with due as (
            select id, state as was from task_instance
             where state in {DUE.sql} and due_at <= clock_timestamp()
             order by due_at, id limit %(limit)s
               for no key update skip locked
        ), kept as (
            {FAILED_TRY} join due using (id) where due.was = 'up_for_retry'
        ), awaited as (
            select d.task_instance_id as id from deferral d join due on due.id = d.task_instance_id
             where due.was = 'deferred' order by 1 for update of d
        ), given_up as (
            delete from deferral d using awaited where d.task_instance_id = awaited.id
        )
        update task_instance t
           set state = 'scheduled', try_number = t.try_number + case when due.was = 'up_for_retry' then 1 else 0 end,
               scheduled_at = clock_timestamp(), dispatch_id = null, dispatched_at = null, queued_by = null, worker = null,
               queued_at = null, ended_at = null, due_at = null,
               started_at = case when due.was <> 'up_for_retry' then t.started_at end,
               resume = case due.was when 'up_for_reschedule' then t.resume
                                     when 'deferred' then t.resume || '{{"timed_out": true}}' end,
               reason = case due.was when 'up_for_retry' then 'the retry is due'
                                     when 'up_for_reschedule' then 'the next poke is due'
                                     else 'its trigger did not fire in time' end
          from due
         where t.id = due.id and t.state = due.was
        """,
        {"limit": limit},
    )
    return moved.rowcount


def next_due_s(connection: Connection) -> float | None:
    """Seconds until the next retry, poke or timeout of a trigger is due; None if there is none."""
    return connection.exec_driver_sql(
        f"select extract(epoch from min(due_at) - clock_timestamp())::float from task_instance where state in {DUE.sql}"
    ).scalar()


def lock_open(connection: Connection, dag_run_id: int, *, only_undecided: bool = False) -> None:
    """Lock the unfinished task instances of a locked run, or only the undecided ones, before several statements change some."""
    connection.exec_driver_sql(
        f"""
        select 1 from task_instance where dag_run_id = %(run)s and (state is null or (not %(only)s and state in {OPEN.sql}))
         order by id for no key update
        """,
        {"run": dag_run_id, "only": only_undecided},
    )


def expand(connection: Connection, dag_run_id: int, task_no: int, count: int) -> bool:
    """Expand the single unexpanded instance of a mapped task to `count`, or skip it if there is nothing to map over.

    The caller has the run locked, so no other process expands it. False if it was expanded already.
    """
    first = connection.exec_driver_sql(
        """
        update task_instance
           set map_index = case when %(count)s > 0 then 0 else -1 end,
               state = case when %(count)s = 0 then 'skipped' end,
               ended_at = case when %(count)s = 0 then clock_timestamp() end,
               reason = case when %(count)s = 0 then 'there is nothing to map over' end
         where dag_run_id = %(run)s and task_no = %(no)s and map_index = -1 and state is null
        returning id
        """,
        {"run": dag_run_id, "no": task_no, "count": count},
    ).scalar_one_or_none()
    if first is None:
        return False
    if count > 1:
        connection.exec_driver_sql(
            f"""
            insert into task_instance (dag_run_id, task_no, task_id, map_index, max_tries, {COMMON})
            select t.dag_run_id, t.task_no, t.task_id, n.map_index, t.max_tries, {COMMON_OF_INSTANCE}
              from task_instance t cross join generate_series(1, %(count)s - 1) n (map_index)
             where t.id = %(first)s
             order by n.map_index
            """,
            {"first": first, "count": count},
        )
    return True


def end_rest(connection: Connection, dag_run_id: int, *, running_becomes: str, reason: str, keep: Collection[int] = ()) -> int:
    """Skip task instances that have not started, and have workers stop running ones, which get the state `running_becomes`.

    Tasks with numbers in `keep` continue. The caller has the run locked. Returns the number of task instances changed.
    """
    ended = connection.exec_driver_sql(
        f"""
        with rest as (
            select id, state as was from task_instance
             where dag_run_id = %(run)s and task_no <> all(%(keep)s::int[])
               and (state is null
                    or state in {OPEN.sql})
             order by id for no key update
        ), awaited as (
            select d.task_instance_id as id from deferral d join rest on rest.id = d.task_instance_id order by 1 for update of d
        ), given_up as (
            delete from deferral d using awaited where d.task_instance_id = awaited.id
        )
        update task_instance t
           set state = case when t.state in {STARTED.sql} then 'shutdown' else 'skipped' end,
               requested_state = case when t.state in {STARTED.sql} then %(requested_state)s end,
               ended_at = case when t.state in {STARTED.sql} then t.ended_at else clock_timestamp() end,
               due_at = null, reason = %(reason)s,
               resume = case when t.state in {STARTED.sql} then t.resume end
          from rest where t.id = rest.id
        """,
        {"run": dag_run_id, "keep": list(keep), "requested_state": running_becomes, "reason": reason},
    )
    return ended.rowcount


def queue(connection: Connection, ids: Sequence[int], queued_by: str) -> list[Message]:
    """scheduled -> queued, each with a new dispatch ID. Returns the messages to send after the commit."""
    queued = connection.exec_driver_sql(
        f"""
        with chosen as (
            select t.id, n.dispatch_id
              from unnest(%(ids)s::bigint[], %(dispatch_ids)s::uuid[]) n (id, dispatch_id)
              join task_instance t on t.id = n.id and coalesce(t.state, '') = 'scheduled'
             order by t.id
               for no key update of t
        )
        update task_instance t
           set state = 'queued', dispatch_id = c.dispatch_id, queued_at = clock_timestamp(), queued_by = %(queued_by)s,
               dispatched_at = null
          from chosen c, dag_run r
         where t.id = c.id and coalesce(t.state, '') = 'scheduled' and r.id = t.dag_run_id
        returning {MESSAGE}
        """,
        {"ids": array_literal(ids), "dispatch_ids": array_literal(str(uuid.uuid4()) for _ in ids), "queued_by": queued_by},
    )
    return _messages(queued)


def dispatch_again(connection: Connection) -> list[Message]:
    """Give all task instances queued before the last crash of PostgreSQL a new dispatch ID. Returns the messages to send.

    The crash may have undone a claim with the old ID, so no other worker may claim that ID: a worker that was cut off may
    still run it, and its writes with the old ID must have no effect.
    """
    queued = connection.exec_driver_sql(
        f"""
        with chosen as (
            select t.id from task_instance t
             where t.state = 'queued' and t.queued_at <= (select since from crash_free)
             order by t.id for no key update of t skip locked
        )
        update task_instance t
           set dispatch_id = gen_random_uuid(), queued_at = clock_timestamp(), dispatched_at = null
          from chosen c, dag_run r
         where t.id = c.id and t.state = 'queued' and r.id = t.dag_run_id
        returning {MESSAGE}
        """
    )
    return _messages(queued)


def _messages(queued: CursorResult[Any]) -> list[Message]:
    """The messages in these rows, in the order in which they are sent."""
    return sorted(rows.of_result(Message, queued), key=lambda message: (-message.priority_weight, message.ti_id))


@step("stamp", lambda _: True)
def stamp_dispatched(connection: Connection, messages: Sequence[Message]) -> None:
    """Record that the broker has these messages. If a crash undoes this, rescue only checks them again."""
    connection.exec_driver_sql("set local synchronous_commit = off")
    connection.exec_driver_sql(
        """
        with sent as (
            select t.id from unnest(%(ids)s::bigint[], %(dispatch_ids)s::uuid[]) n (id, dispatch_id)
              join task_instance t on t.id = n.id and t.dispatch_id = n.dispatch_id and coalesce(t.state, '') = 'queued'
             order by t.id for no key update of t skip locked
        )
        update task_instance t set dispatched_at = clock_timestamp() from sent where t.id = sent.id
        """,
        {"ids": array_literal(m.ti_id for m in messages), "dispatch_ids": array_literal(m.dispatch_id for m in messages)},
    )


def queued_longer_than(connection: Connection, seconds: float, *, limit: int, after_id: int = 0) -> list[Message]:
    """Messages of task instances that were queued, or last sent, at least `seconds` ago, by ID, to be checked in the broker."""
    queued = connection.exec_driver_sql(
        f"""
        select {MESSAGE}
          from task_instance t join dag_run r on r.id = t.dag_run_id
         where t.state = 'queued' and t.id > %(after_id)s
           and greatest(t.queued_at, t.dispatched_at) <= clock_timestamp() - make_interval(secs => %(seconds)s)
         order by t.id limit %(limit)s
        """,
        {"seconds": seconds, "limit": limit, "after_id": after_id},
    )
    return rows.of_result(Message, queued)


def lose(connection: Connection, *, dead_worker: str | None = None, ti_id: int | None = None,
         dispatch_id: str | None = None, reason: str, at_once: bool) -> list[int]:  # fmt: skip
    """running -> up_for_retry or failed, shutdown -> the requested state: the process that ran them is lost.

    The task instances are those of a worker, or of one dispatch. `at_once` retries without the retry_delay of the task, which
    did not cause the failure. Returns the IDs of the changed runs.
    """
    parameters = {"worker": dead_worker, "id": ti_id, "dispatch_id": dispatch_id, "reason": reason, "at_once": at_once}
    which = "(worker = %(worker)s or (id = %(id)s and dispatch_id = %(dispatch_id)s::uuid))"
    # The next statements begin when this one has the locks: a task that was stopped in the meantime ends as requested, and the
    # number of a task and the version of its run belong together.
    held = connection.exec_driver_sql(
        f"select id from task_instance where state in {STARTED.sql} and {which} order by id for no key update", parameters
    )
    ids = list(held.scalars())
    ended = dispatches.END_AS_REQUESTED.format(which="id = any(%(ids)s)")
    stopped = connection.exec_driver_sql(ended, {"ids": ids}).scalars().all()
    lost = connection.exec_driver_sql(
        """
        update task_instance t
           set state = case when t.max_tries > 0 and t.try_number <= t.max_tries then 'up_for_retry' else 'failed' end,
               ended_at = clock_timestamp(), reason = %(reason)s, resume = null,
               due_at = clock_timestamp() + case when %(at_once)s then interval '0' else
                        make_interval(secs => least(coalesce((v.data->'tasks'->t.task_no->>'retry_delay_s')::float, 0), 1e9)) end
          from dag_run r, dag_version v
         where t.id = any(%(ids)s) and t.state = 'running' and r.id = t.dag_run_id and v.id = r.version_id
        returning t.dag_run_id
        """,
        {**parameters, "ids": ids},
    )
    return sorted({*stopped, *lost.scalars()})


def states_of(connection: Connection, dag_run_ids: Collection[int]) -> dict[int, dict[int, dict[int, TaskState]]]:
    """The states of the task instances of each run, by task number and map index."""
    # One row for each state instead of each task instance: a run of ten thousand is read in a third of the time.
    rows = connection.exec_driver_sql(
        """
        select dag_run_id, case when map_index <> -1 then task_no end as mapped_no, state,
               array_agg(case when map_index = -1 then task_no else map_index end) as numbers
          from task_instance where dag_run_id = any(%s) group by 1, 2, 3
        """,
        (list(dag_run_ids),),
    )
    runs: dict[int, dict[int, dict[int, TaskState]]] = {}
    for row in rows:
        states, state = runs.setdefault(row.dag_run_id, {}), TaskState(row.state or "none")
        if row.mapped_no is not None:
            states.setdefault(row.mapped_no, {}).update(dict.fromkeys(row.numbers, state))
            continue
        for task_no in row.numbers:
            states.setdefault(task_no, {})[-1] = state
    return runs
