"""The hot path of a worker child: claim, report and follow as prepared statements on one connection of its own.

No engine, no ORM, no planning: a claim is one round trip that does not wait for the disk, a report with its follow is one
that does. A claim that a crash of PostgreSQL undoes is asserted again by the worker's heartbeat (store/processes.reassert).
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import Json

from scheduler.serialized import SerializedDag
from scheduler.settings import Settings
from scheduler.states import TaskState
from scheduler.store import crashes, shutdown, versions
from scheduler.store.claims import Claim, Ending, Moved, Moves, Reported
from scheduler.store.database import lost, options, socket_options

#: Returned by pull_xcom where nothing was stored (None is a value).
MISSING = object()

#: Where a row is known by its id, its state is asked for as coalesce(state, ''): written plainly, it would let the planner take a
#: partial index that it believes to be empty, and read all of it, dead entries and all, for that one row.
STATEMENTS = """
prepare claim (bigint, uuid, text, double precision) as
update task_instance t
   set state = 'running', worker = $3, reason = null,
       started_at = case when t.resume is null then clock_timestamp() else coalesce(t.started_at, clock_timestamp()) end
  from dag_run r
 where t.id = $1 and coalesce(t.state, '') = 'queued' and t.dispatch_id = $2 and r.id = t.dag_run_id
   -- Nobody would miss what runs under the name of a worker that was declared dead.
   and exists (select from process p where p.id = $3 and p.stopped_at is null)
   -- For $4 seconds after a crash of PostgreSQL nothing that was queued before: the crash may have undone its claim, which its
   -- worker asserts again. Rescue sends the message anew.
   and exists (select from crash_free c
                where c.one and (t.queued_at > c.since or c.since < clock_timestamp() - $4 * interval '1 second'))
returning t.id, t.dispatch_id::text, t.task_id, t.map_index, t.task_no, t.try_number, t.max_tries, t.queue, t.pool, t.pool_slots,
          t.priority_weight, t.started_at, t.resume, r.id, r.dag_id, r.run_id, r.run_type, r.logical_date, r.data_interval_start,
          r.data_interval_end, r.run_after, r.started_at, r.conf, r.version_id;

-- Joins of $2 (task numbers, one row a range of their upstream tasks) with an upstream task that no worker has yet.
-- Read from the high end: tasks are queued from the low end, so the first row met is nearly always the answer.
prepare unstarted (bigint, int[], int[], int[]) as
select distinct n.task_no
  from unnest($2, $3, $4) n (task_no, low, high)
 cross join lateral (
       select 1 from task_instance t
        where t.dag_run_id = $1 and t.task_no between n.low and n.high
          and (t.state is null or t.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
        order by t.task_no desc limit 1) found;

-- Two last siblings must not each think the other unfinished: whoever gets these rows second sees the first's result.
prepare lock_joins (bigint, bigint, int[], int) as
select id from task_instance
 where id = any (array (select $1 union all
                        select t.id from task_instance t
                         where t.dag_run_id = $2 and t.task_no = any($3) and t.map_index in (-1, $4)))
 order by id for no key update;

prepare upstream_states (bigint, int[], int[], int[], bigint) as
select n.task_no, t.state, count(*)
  from unnest($2, $3, $4) n (task_no, low, high)
  join task_instance t on t.dag_run_id = $1 and t.task_no between n.low and n.high and t.id <> $5
 group by 1, 2;

-- Of the tasks $2 of one mapped group, the instances of one index.
prepare peer_states (bigint, int[], int) as
select task_no, state from task_instance where dag_run_id = $1 and task_no = any($2) and map_index = $3;

-- $1 id, $2 dispatch id, $3 state, $4 reason, $5 seconds until due, $6 return value, $7 worker, $8 what a branch decided,
-- $9 the version that was followed, $10 whether rank rises with age; what to move: $11 task numbers, $12 map indexes,
-- $13 verdicts, $14 reasons, $15 whether a branch lies above; $16 which of them is the heir (NULL: none), $17 the dispatch id of
-- whoever gets the slots: the heir, or else the next that waits for them (NULL: nobody).
prepare report (bigint, uuid, text, text, double precision, json, text, jsonb, bigint, boolean,
                int[], int[], text[], text[], boolean[], bigint, uuid) as
with done as (
    update task_instance
       set state = $3, ended_at = clock_timestamp(), reason = $4, due_at = clock_timestamp() + $5 * interval '1 second',
           resume = null, decision = $8
     where id = $1 and dispatch_id = $2 and coalesce(state, '') = 'running'
 returning id, dag_run_id, pool, pool_slots, queue
), stored as (
    insert into xcom (task_instance_id, key, value) select id, 'return_value', $6 from done where $6 is not null
    on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now()
), around as (
    select done.dag_run_id, done.pool, done.pool_slots, done.queue, r.state = 'running' and r.version_id = $9 as run_goes_on,
           s.is_paused, first.id as first_id, first.rank as first_rank, first.dag_run_id = done.dag_run_id as first_is_ours,
           other.waits is not null as others_wait
      from done
      join dag_run r on r.id = done.dag_run_id
      join dag_schedule s on s.dag_id = r.dag_id
      left join lateral (
           select w.id, w.rank, w.dag_run_id from task_instance w
            where w.pool = done.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 1) first on true
      left join lateral (  -- from the high end, as in unstarted
           select true as waits from task_instance o
            where o.dag_run_id = done.dag_run_id
              and (o.state is null or o.state in ('scheduled', 'queued', 'up_for_retry', 'up_for_reschedule', 'deferred'))
            order by o.task_no desc limit 1) other on true
), verdict as (
    select t.id, n.state, n.reason,
           n.place = $16 and not a.is_paused and t.pool = a.pool and t.pool_slots <= a.pool_slots
           and (a.first_id is null
                or (not $10 and (t.rank > a.first_rank or (t.rank = a.first_rank and t.id < a.first_id)))) as inherits
      from around a
     cross join unnest($11, $12, $13, $14, $15) with ordinality n (task_no, map_index, state, reason, below_branch, place)
     cross join lateral (  -- "offset 0": one look by number for each, never the whole run with the numbers picked out of it
           select id, pool, pool_slots, rank, reason from task_instance
            where dag_run_id = a.dag_run_id and task_no = n.task_no and map_index = n.map_index and state is null offset 0) t
     -- A cleared task below a branch is the scheduler's: it knows what the branch decided.
     where a.run_goes_on and (t.reason is null or not n.below_branch)
), moved as (
    update task_instance t
       set state = case when v.inherits then 'queued' else v.state end,
           reason = v.reason,
           try_number = t.try_number + case when v.state = 'scheduled' then 1 else 0 end,
           scheduled_at = case when v.state = 'scheduled' then clock_timestamp() end,
           queued_at = case when v.inherits then clock_timestamp() end,
           queued_by = case when v.inherits then $7 end,
           dispatch_id = case when v.inherits then $17 end,
           ended_at = case when v.state in ('skipped', 'upstream_failed') then clock_timestamp() end
      from verdict v
     where t.id = v.id and coalesce(t.state, '') = ''
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots, t.rank
), line as (  -- Those first in line for the pool, and whether each may have these slots without any limit being counted again.
    select w.id, w.rank, bool_and(w.fits) over (order by w.rank desc, w.id) as is_next
      from around a
     cross join lateral (
           select w.id, w.rank, w.dag_run_id = a.dag_run_id and w.queue = a.queue and w.pool_slots <= a.pool_slots
                  and w.max_active_tis_per_dag is null and w.max_active_tis_per_dagrun is null as fits
             from task_instance w
            where w.pool = a.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 8) w
     where $17 is not null and not $10 and a.first_is_ours and a.run_goes_on and not a.is_paused
       and exists (select from pool p where p.name = a.pool and p.hands_on)
       -- Asked of `moved`, so that this comes after it: whoever holds the next in line waits for nobody any more.
       and not exists (select from moved m
                        where m.dispatch_id is not null
                           or (m.state = 'scheduled' and m.pool = a.pool
                               and (m.rank > a.first_rank or (m.rank = a.first_rank and m.id < a.first_id))))
), next as (  -- Passed over are those that somebody is taking at this moment.
    select t.id from line join task_instance t on t.id = line.id
     -- "coalesce": looked up by id. As `state = 'scheduled'` it would let the planner read the whole line for each.
     where line.is_next and coalesce(t.state, '') = 'scheduled'
     order by line.rank desc, line.id limit 1
       for no key update of t skip locked
), handed as (
    update task_instance t
       set state = 'queued', dispatch_id = $17, queued_at = clock_timestamp(), queued_by = $7, dispatched_at = null
      from next
     where t.id = next.id and coalesce(t.state, '') = 'scheduled'
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots
)
select a.first_id is not null, a.others_wait, m.*
  from around a
  left join (select false, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots from moved
             union all
             select true, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots from handed) m
    on true;

-- $3 up_for_reschedule or deferred, $4 reason, $5 seconds until due, $6 what the next dispatch goes on from, $7-$9 the trigger.
prepare suspend (bigint, uuid, text, text, double precision, jsonb, text, jsonb, text) as
with done as (
    update task_instance
       set state = $3, reason = $4, due_at = clock_timestamp() + $5 * interval '1 second', resume = $6
     where id = $1 and dispatch_id = $2 and coalesce(state, '') = 'running'
 returning id, dispatch_id, pool
), deferred as (
    insert into deferral as d (task_instance_id, dispatch_id, classpath, kwargs, file)
    select id, dispatch_id, $7, $8, $9 from done where $7 is not null
    on conflict (task_instance_id) do update
       set dispatch_id = excluded.dispatch_id, classpath = excluded.classpath, kwargs = excluded.kwargs, file = excluded.file,
           created_at = now(), waiter = null
)
select exists (select 1 from task_instance w where w.pool = done.pool and w.state = 'scheduled') from done;
"""


class HotPath:
    """One connection for the life of a pool child; after an error the next call opens a new one."""

    def __init__(self, settings: Settings, worker_id: str) -> None:
        self.worker_id = worker_id
        self._acts_as: str | None = None
        self._settings = settings
        self._connection: Connection | None = None
        self._cursor: Cursor | None = None
        self._versions = versions.Versions()

    def claim(self, ti_id: int, dispatch_id: str) -> Claim | None:
        """queued -> running for exactly this dispatch; None if it is not there to be claimed (a duplicate), or not yet."""
        row = self._one(
            "set synchronous_commit = off; execute claim(%s, %s, %s, %s)",
            (ti_id, dispatch_id, self.worker_id, self._settings.worker.heartbeat_timeout),
        )
        return None if row is None else Claim(*row)

    def unstarted(self, dag_run_id: int, joins: Sequence[int], dag: SerializedDag) -> set[int]:
        """Those of `joins` that wait for a task which no worker has; they cannot become ready by this report."""
        rows = self._all("execute unstarted(%s, %s::int[], %s::int[], %s::int[])", (dag_run_id, *_ranges(joins, dag)))
        return {row[0] for row in rows}

    @contextmanager
    def deciding(self, claim: Claim, joins: Sequence[int]) -> Iterator[None]:
        """A transaction that holds this task instance and `joins`, locked in id order."""
        self._execute(
            "begin; set local synchronous_commit = on; execute lock_joins(%s, %s, %s::int[], %s)",
            (claim.id, claim.dag_run_id, list(joins), claim.map_index),
        )
        try:
            yield
        except BaseException:
            self.close()
            raise
        self._execute("commit")

    def upstream_states(self, claim: Claim, joins: Sequence[int], dag: SerializedDag) -> dict[int, list[tuple[TaskState, int]]]:
        """By join: how many of its upstream task instances, other than the claimed one, are in which state."""
        states: dict[int, list[tuple[TaskState, int]]] = {join: [] for join in joins}
        if joins:
            rows = self._all(
                "execute upstream_states(%s, %s::int[], %s::int[], %s::int[], %s)",
                (claim.dag_run_id, *_ranges(joins, dag), claim.id),
            )
            for join, state, count in rows:
                states[join].append((TaskState(state or "none"), count))
        return states

    def peer_states(self, claim: Claim, tasks: Collection[int]) -> dict[int, TaskState]:
        """By task number: the instances of these tasks with the claimed one's map index."""
        rows = self._all("execute peer_states(%s, %s::int[], %s)", (claim.dag_run_id, list(tasks), claim.map_index))
        return {no: TaskState(state or "none") for no, state in rows}

    def report(self, claim: Claim, ending: Ending, moves: Moves, *, aging: bool = False) -> Reported | None:
        """running -> how it ended, durably, and `moves`; None if this dispatch no longer holds the task."""
        rows = self._all(
            "set synchronous_commit = on; execute report(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
            " %s::int[], %s::int[], %s::text[], %s::text[], %s::boolean[], %s, %s)",
            (
                claim.id,
                claim.dispatch_id,
                ending.state.value,
                ending.reason,
                ending.delay_s,
                ending.result,
                self.worker_id,
                None if ending.skip is None else Json({"skip": list(ending.skip)}),
                claim.version_id,
                aging,
                [one.task_no for one in moves.decisions],
                [one.map_index for one in moves.decisions],
                [one.state.value for one in moves.decisions],
                [one.reason for one in moves.decisions],
                [one.task_no in moves.below_branch for one in moves.decisions],
                None if moves.heir is None else moves.heir + 1,
                moves.dispatch_id,
            ),
        )
        if not rows:
            return None
        moved = tuple(_moved(row[3:]) for row in rows if row[2] is False)
        handed_on = next((_moved(row[3:]) for row in rows if row[2]), None)
        return Reported(rows[0][0], rows[0][1], moved, handed_on)

    def suspend(self, claim: Claim, ending: Ending) -> bool | None:
        """running -> up_for_reschedule or deferred, durably; whether others wait for the slots, None if it was refused."""
        deferral = ending.deferral
        found = self._one(
            "set synchronous_commit = on; execute suspend(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                claim.id,
                claim.dispatch_id,
                ending.state.value,
                ending.reason,
                ending.delay_s,
                Json(ending.resume or {}),
                deferral and deferral.classpath,
                Json(deferral.kwargs if deferral else {}),
                deferral and deferral.file,
            ),
        )
        return None if found is None else bool(found[0])

    def obey(self, claim: Claim) -> bool:
        """shutdown -> what was asked, once the user code has ended; False if this dispatch is not being stopped."""
        return bool(self._all(shutdown.OBEY.format(which="id = %s and dispatch_id = %s"), (claim.id, claim.dispatch_id)))

    def claim_again(self, claim: Claim) -> bool:
        """queued -> running once more for this dispatch, because a crash of PostgreSQL undid the claim; False if it did not."""
        claimed = self._one(
            "update task_instance set state = 'running', worker = %s, reason = null, started_at = %s"
            " where id = %s and dispatch_id = %s and state = 'queued' returning id",
            (self.worker_id, claim.started_at, claim.id, claim.dispatch_id),
        )
        return claimed is not None

    def ended_as(self, claim: Claim, state: TaskState) -> bool:
        """Whether this dispatch is already stored as ended so: the report before got through although its answer was lost."""
        found = self._one("select state from task_instance where id = %s and dispatch_id = %s", (claim.id, claim.dispatch_id))
        return found is not None and found[0] == state.value

    def dag(self, version_id: int) -> SerializedDag:
        """The DAG of a version, cached."""
        return self._versions.get(version_id, lambda: self._all(versions.READ, (version_id,))[0][0])

    def pull_xcom(self, dag_run_id: int, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """The stored value, MISSING if there is none."""
        row = self._one(
            "select x.value from task_instance t join xcom x on x.task_instance_id = t.id"
            " where t.dag_run_id = %s and t.task_id = %s and t.map_index = %s and x.key = %s",
            (dag_run_id, task_id, map_index, key),
        )
        return MISSING if row is None else row[0]

    def previous_success(self, dag_id: str, before: datetime) -> tuple[Any, ...] | None:
        """Data interval and start and end of the DAG's last successful run of an earlier logical date."""
        return self._one(
            "select data_interval_start, data_interval_end, started_at, ended_at from dag_run"
            " where dag_id = %s and logical_date < %s and state = 'success' order by logical_date desc limit 1",
            (dag_id, before),
        )

    def now(self) -> datetime:
        """The database's clock."""
        found: datetime = self._all("select clock_timestamp()", ())[0][0]
        return found

    def push_xcom(self, ti_id: int, key: str, json_text: str) -> None:
        """Store one value for a running task instance."""
        self._execute(
            "insert into xcom (task_instance_id, key, value) values (%s, %s, %s)"
            " on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now()",
            (ti_id, key, json_text),
        )

    def label(self, claim: Claim, text: str) -> None:
        """Store the rendered map_index_template of a running task instance."""
        self._execute(
            "update task_instance set map_label = %s where id = %s and dispatch_id = %s", (text, claim.id, claim.dispatch_id)
        )

    def clear_xcoms(self, ti_id: int) -> None:
        """Forget what an earlier try stored."""
        self._execute("delete from xcom where task_instance_id = %s", (ti_id,))

    def read(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of a statement of another store module, such as external and variables."""
        return self._all(statement, parameters)

    def close(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            connection.close()

    def _open(self) -> Cursor:
        if self._cursor is None:
            self._connection = psycopg2.connect(
                self._settings.database_url,
                application_name="paceline worker",
                # Statistics of a young or emptied table are worthless and every statement has its index, in the order it
                # asks for: look rows up one by one, and never plan again.
                # The task instances that a stopped child has locked must be free when its worker is taken for dead.
                options=f"{options(self._settings)} -c idle_in_transaction_session_timeout=5s"
                " -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c enable_sort=off"
                " -c plan_cache_mode=force_generic_plan -c jit=off",
                **socket_options(self._settings),
            )
            self._connection.autocommit = True
            cursor = self._connection.cursor()
            cursor.execute(f"{crashes.NOTE};{STATEMENTS}")
            self._cursor, self._acts_as = cursor, None
        if self._acts_as != self.worker_id:
            self._cursor.execute("select set_config('paceline.actor', %s, false)", (self.worker_id,))
            self._acts_as = self.worker_id
        return self._cursor

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run one statement; after an error nothing of this connection is used again."""
        try:
            cursor = self._open()
            cursor.execute(statement, parameters)
        except psycopg2.Error as error:
            self.close()
            raise lost(error) or error from None
        return cursor

    def _one(self, statement: str, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
        rows = self._all(statement, parameters)
        return rows[0] if rows else None

    def _all(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._execute(statement, parameters).fetchall()


def _moved(row: tuple[Any, ...]) -> Moved:
    *columns, state, pool, pool_slots = row
    return Moved(*columns, TaskState(state), pool, pool_slots)  # type: ignore[call-arg]  # a row has the columns of Moved


def _ranges(joins: Sequence[int], dag: SerializedDag) -> tuple[list[int], list[int], list[int]]:
    rows = [(join, low, high) for join in joins for low, high in dag.upstream_ranges[join]]
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
