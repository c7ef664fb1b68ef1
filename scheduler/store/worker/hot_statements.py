"""The SQL of the hot path, prepared once on each connection of a pool process; hot_path.py uses it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from paceline.states import FINISHED, IDLE, NEVER_RUN
from scheduler.store.queueing.limits import LOWEST_RANK


@dataclass(frozen=True)
class Prepared:
    """A statement with `$name` for each parameter; `types` has the types of these, and may have others."""

    name: str
    types: Mapping[str, str]
    body: str

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The types of its parameters, in the order of the numbers that they get."""
        used = set(re.findall(r"\$(\w+)", self.body))
        return {name: kind for name, kind in self.types.items() if name in used}

    @cached_property
    def prepare(self) -> str:
        """The statement that prepares it, which a connection runs once."""
        numbers = {name: str(number) for number, name in enumerate(self.parameters, 1)}
        numbered = re.sub(r"\$(\w+)", lambda found: f"${numbers[found.group(1)]}", self.body.strip())
        return f"prepare {self.name} ({', '.join(self.parameters.values())}) as\n{numbered};"

    @cached_property
    def execute(self) -> str:
        """The statement that executes it, with a mapping of its parameters. Arrays are cast, since an empty one has no type."""
        values = [f"%({name})s{f'::{kind}' if kind.endswith('[]') else ''}" for name, kind in self.parameters.items()]
        return f"execute {self.name}({', '.join(values)})"


#: The type of each parameter, the same in every statement.
TYPES = {
    **dict.fromkeys(("ti_id", "dag_run_id", "version_id", "successor"), "bigint"),
    **dict.fromkeys(("dispatch_id", "next_dispatch_id", "in_place_id"), "uuid"),
    **dict.fromkeys(("worker", "state", "reason", "classpath", "file"), "text"),
    **dict.fromkeys(("tasks", "lows", "highs", "task_nos", "map_indexes", "joins"), "int[]"),
    **dict.fromkeys(("verdicts", "reasons"), "text[]"),
    **dict.fromkeys(("decision", "resume", "kwargs"), "jsonb"),
    **dict.fromkeys(("aging", "line_in_place"), "boolean"),
    **{
        "map_index": "int",
        "place": "int",
        "is_repeated": "boolean",
        "due_in_s": "double precision",
        "result": "json",
        "below_branch": "boolean[]",
    },
}
#: How many of those first in line for a pool a report considers for its slots.
LINE = 8
# Where a row is found by its ID, its state is compared as coalesce(state, ''). With plain `state`, the planner could choose a
# partial index whose statistics show it as empty, and read all of it, with dead entries, for that one row.


def _statement(name: str, body: str) -> Prepared:
    return Prepared(name, TYPES, body)


# A statement that waits for a lock then reads the new version of that one row, and everything else as of its start. So a statement
# that decides by other rows too must not wait. It comes after one of these, in the same message and thus the same transaction,
# and begins when the locks are held; see docs/explanation/locks.md.
HOLD = _statement("hold", "select from task_instance where id = $ti_id and dispatch_id = $dispatch_id for no key update")

#: As HOLD, with the rows that the report moves, in ID order. Those of another version have other numbers; then it moves none.
HOLD_MOVES = _statement(
    "hold_moves",
    """
select from task_instance
 where id = any (array (select $ti_id union all
                        select t.id from unnest($task_nos, $map_indexes) n (task_no, map_index)
                         cross join lateral (  -- "offset 0": one index lookup for each number, instead of a scan of the whole run
                               select id from task_instance
                                where dag_run_id = $dag_run_id and task_no = n.task_no and map_index = n.map_index offset 0) t))
 order by id for no key update
""",
)

#: Runs after HOLD. With `is_repeated` it also returns what an earlier attempt of this process claimed, if its answer was lost.
CLAIM = _statement(
    "claim",
    """
update task_instance t
   set state = 'running', worker = $worker, reason = null,
       started_at = case when t.resume is null then clock_timestamp() else coalesce(t.started_at, clock_timestamp()) end
  from dag_run r
 where t.id = $ti_id and t.dispatch_id = $dispatch_id and r.id = t.dag_run_id
   and (coalesce(t.state, '') = 'queued' or ($is_repeated and coalesce(t.state, '') = 'running' and t.worker = $worker))
   -- Work of a worker that was declared lost would never be recovered.
   and exists (select from process p where p.id = $worker and p.stopped_at is null)
   -- Nothing that was queued before a crash of PostgreSQL: the crash may have undone its claim, which its worker then repeats. If
   -- no worker does, the rescue service sends it under a new dispatch ID.
   and exists (select from crash_free c where c.one and t.queued_at > c.since)
returning t.id, t.dispatch_id::text, t.task_id, t.map_index, t.task_no, t.try_number, t.max_tries, t.queue, t.pool, t.pool_slots,
          t.priority_weight, t.started_at, t.resume, r.id as dag_run_id, r.dag_id, r.run_id, r.run_type, r.logical_date,
          r.data_interval_start, r.data_interval_end, r.run_after, r.started_at as run_started_at, r.conf, r.version_id,
          r.partition_key, r.partition_date
""",
)

#: Those of `tasks` (one element for each range of their upstream tasks) with an upstream task that no worker has yet.
#: Read from the high end: tasks are queued from the low end, so the first row met is nearly always the answer.
UNSTARTED_TASKS = f"""
      from unnest($tasks, $lows, $highs) n (task_no, low, high)
     cross join lateral (
           select 1 from task_instance t
            where t.dag_run_id = $dag_run_id and t.task_no between n.low and n.high
              and {IDLE.or_none("t.state")}
            order by t.task_no desc limit 1) found
"""
UNSTARTED = _statement("unstarted", f"select distinct n.task_no {UNSTARTED_TASKS}")

#: Whether one of `tasks`, as above, is undecided although all its upstream tasks have ended, or nothing in the run waits any more.
NEEDS_SCHEDULER = _statement(
    "needs_scheduler",
    f"""
with unfinished as (
    select n.task_no
      from unnest($tasks, $lows, $highs) n (task_no, low, high)
     cross join lateral (
           select 1 from task_instance t
            where t.dag_run_id = $dag_run_id and t.task_no between n.low and n.high
              and (t.state is null or t.state not in {FINISHED.sql})
            order by t.task_no desc limit 1) found
)
select exists (select 1 from task_instance t
                where t.dag_run_id = $dag_run_id and t.task_no = any($tasks) and t.state is null
                  and t.task_no not in (select task_no from unfinished))
    or not exists (select 1 from task_instance t
                    where t.dag_run_id = $dag_run_id and {IDLE.or_none("t.state")}
                    order by t.task_no desc limit 1)
""",
)

#: The last two siblings must not each see the other as unfinished: the second to get these locks sees the result of the first.
LOCK_JOINS = _statement(
    "lock_joins",
    """
select id from task_instance
 where id = any (array (select $ti_id union all
                        select t.id from task_instance t
                         where t.dag_run_id = $dag_run_id and t.task_no = any($tasks) and t.map_index in (-1, $map_index)))
 order by id for no key update
""",
)

UPSTREAM_STATES = _statement(
    "upstream_states",
    """
select n.task_no, coalesce(t.state, 'none') as state, count(*) as instances
  from unnest($tasks, $lows, $highs) n (task_no, low, high)
  join task_instance t on t.dag_run_id = $dag_run_id and t.task_no between n.low and n.high and t.id <> $ti_id
 group by 1, 2
""",
)

#: The instances of these tasks of one mapped group with one map index.
PEER_STATES = _statement(
    "peer_states",
    """
select task_no, coalesce(state, 'none') as state
  from task_instance where dag_run_id = $dag_run_id and task_no = any($tasks) and map_index = $map_index
""",
)

#: The end of a try, with the moves of downstream task instances. `successor` is the position, from 1, of the move that gets the
#: slots. `next_dispatch_id` is the dispatch ID of the task instance that gets them: the successor, or else the first one waiting.
#: With `in_place_id` it goes straight to running under that ID, in the process that reports, unless it must go by message.
#: It runs after HOLD, HOLD_MOVES or LOCK_JOINS, so that no run changes its version in the meantime.
#: Nothing is stored if workers have all upstream tasks of one of `joins`: it may be ready, which must be decided under locks.
REPORT = _statement(
    "report",
    f"""
with probe as materialized (
    select coalesce(array_agg(n.task_no), '{{}}') as waiting {UNSTARTED_TASKS}
), below as materialized (
    select t.*, n.state, n.reason, n.below_branch, n.place
      from unnest($task_nos, $map_indexes, $verdicts, $reasons, $below_branch)
           with ordinality n (task_no, map_index, state, reason, below_branch, place)
     cross join lateral (  -- "offset 0": one index lookup for each number, instead of a scan of the whole run
           select id, pool, pool_slots, queue, rank, reason as was from task_instance
            where dag_run_id = $dag_run_id and task_no = n.task_no and map_index = n.map_index and state is null offset 0) t
), done as (
    update task_instance
       set state = $state, ended_at = clock_timestamp(), reason = $reason, resume = null, decision = $decision,
           due_at = clock_timestamp() + $due_in_s * interval '1 second'
     where id = $ti_id and dispatch_id = $dispatch_id and coalesce(state, '') = 'running' and (select waiting @> $joins from probe)
 returning id, dag_run_id, pool, pool_slots, queue
), stored as (
    insert into xcom (task_instance_id, key, value) select id, 'return_value', $result from done where $result is not null
    on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now()
), around as (
    select done.dag_run_id, done.pool, done.pool_slots, done.queue, s.is_paused,
           r.state = 'running' and r.version_id = $version_id as run_goes_on,
           next.id as first_id, next.rank as first_rank, next.dag_run_id = done.dag_run_id as first_is_ours,
           other.waits is not null as others_wait, p.passes_slots_on,
           -- As for a claim: work of a worker that was declared lost would never be recovered.
           $in_place_id is not null and coalesce(p.passes_slots_on, false)
           and exists (select from process w where w.id = $worker and w.stopped_at is null) as in_place
      from done
      join dag_run r on r.id = done.dag_run_id
      join dag_schedule s on s.dag_id = r.dag_id
      left join pool p on p.name = done.pool
      left join lateral (
           select w.id, w.rank, w.dag_run_id from task_instance w
            where w.pool = done.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit 1) next on next.rank > {LOWEST_RANK}
      left join lateral (  -- from the high end, as in unstarted
           select true as waits from task_instance o
            where o.dag_run_id = done.dag_run_id
              and {IDLE.or_none("o.state")}
            order by o.task_no desc limit 1) other on true
), verdict as (
    select v.*, v.inherits and v.same_queue as in_place from (
        select b.id, b.state, b.reason, a.in_place and b.queue = a.queue as same_queue,
               b.place = coalesce($successor, 0) and not a.is_paused and b.pool = a.pool and b.pool_slots <= a.pool_slots
               and (a.first_id is null
                    or (not $aging and (b.rank > a.first_rank or (b.rank = a.first_rank and b.id < a.first_id)
                                        -- A task of another run waits for the budget of this process at most.
                                        or (not a.first_is_ours and a.in_place and b.queue = a.queue)))) as inherits
          from around a cross join below b
         -- A cleared task below a branch is left to the scheduler, which has the branch's decision.
         where a.run_goes_on and (b.was is null or not b.below_branch)
         order by b.id) v
), moved as (
    update task_instance t
       set state = case when v.in_place then 'running' when v.inherits then 'queued' else v.state end,
           reason = case when not v.in_place then v.reason end,
           try_number = t.try_number + case when v.state = 'scheduled' then 1 else 0 end,
           scheduled_at = case when v.state = 'scheduled' then clock_timestamp() end,
           queued_at = case when v.inherits then clock_timestamp() end,
           queued_by = case when v.inherits then $worker end,
           dispatch_id = case when v.in_place then $in_place_id when v.inherits then $next_dispatch_id end,
           worker = case when v.in_place then $worker else t.worker end,
           started_at = case when v.in_place then clock_timestamp() else t.started_at end,
           ended_at = case when v.state in {NEVER_RUN.sql} then clock_timestamp() end
      from verdict v
     where t.id = v.id and coalesce(t.state, '') = ''
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots, t.task_no, t.try_number, t.max_tries, t.started_at, t.rank
), line as (  -- Those first in line for the pool, and whether each may have these slots without any limit being counted again.
    select w.id, w.rank, bool_and(w.fits) over (order by w.rank desc, w.id) as is_next
      from around a
     cross join lateral (
           select w.id, w.rank, w.dag_run_id = a.dag_run_id and w.queue = a.queue and w.pool_slots <= a.pool_slots
                  and w.max_active_tis_per_dag is null and w.max_active_tis_per_dagrun is null as fits
             from task_instance w
            where w.pool = a.pool and w.state = 'scheduled'
            order by w.rank desc, w.id limit {LINE}) w
     where w.rank > {LOWEST_RANK}
       and $next_dispatch_id is not null and not $aging and a.first_is_ours and a.run_goes_on and not a.is_paused
       and a.passes_slots_on
       -- Reads `moved`, so that this runs after it: a transaction that locks the next in line then waits for no other lock.
       and not exists (select from moved m
                        where m.dispatch_id is not null
                           or (m.state = 'scheduled' and m.pool = a.pool
                               and (m.rank > a.first_rank or (m.rank = a.first_rank and m.id < a.first_id))))
), next as (  -- Rows that another process is taking are skipped.
    -- What resumes an earlier dispatch has an event of its own when it starts, so it goes by message.
    select t.id, a.in_place and $line_in_place and t.resume is null as in_place
      from around a cross join line join task_instance t on t.id = line.id
     -- "coalesce": looked up by id. As `state = 'scheduled'` it would let the planner read the whole line for each.
     where line.is_next and coalesce(t.state, '') = 'scheduled'
     -- The processes of a worker prefer different ones of equal rank. After losing a race for one, PostgreSQL checks the row again,
     -- and for that prepares the plans of all these queries again.
     order by line.rank desc, (line.id - a.first_id + $place) % {LINE}, line.id limit 1
       for no key update of t skip locked
), handed as (
    update task_instance t
       set state = case when next.in_place then 'running' else 'queued' end,
           dispatch_id = case when next.in_place then $in_place_id else $next_dispatch_id end,
           queued_at = clock_timestamp(), queued_by = $worker, dispatched_at = null,
           worker = case when next.in_place then $worker else t.worker end,
           started_at = case when next.in_place then clock_timestamp() else t.started_at end,
           reason = case when not next.in_place then t.reason end
      from next
     where t.id = next.id and coalesce(t.state, '') = 'scheduled'
 returning t.id, t.task_id, t.map_index, t.queue, t.priority_weight, t.dispatch_id::text, t.state, t.pool,
           t.pool_slots, t.task_no, t.try_number, t.max_tries, t.started_at
)
select probe.waiting, a.first_id is not null as pool_has_waiting, a.others_wait, a.run_goes_on, $version_id as version_id, m.*
  from probe
  left join around a on true
  left join (select false as was_waiting, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots,
                    task_no, try_number, max_tries, started_at
               from moved
             union all
             select true, id, task_id, map_index, queue, priority_weight, dispatch_id, state, pool, pool_slots,
                    task_no, try_number, max_tries, started_at from handed) m
    on true
""",
)

#: Suspends a try: when it is due, the data for its next dispatch, and the trigger of a deferral.
SUSPEND = _statement(
    "suspend",
    f"""
with done as (
    update task_instance
       set state = $state, reason = $reason, due_at = clock_timestamp() + $due_in_s * interval '1 second', resume = $resume
     where id = $ti_id and dispatch_id = $dispatch_id and coalesce(state, '') = 'running'
 returning id, dispatch_id, pool
), deferred as (
    insert into deferral as d (task_instance_id, dispatch_id, classpath, kwargs, file)
    select id, dispatch_id, $classpath, $kwargs, $file from done where $classpath is not null
    on conflict (task_instance_id) do update
       set dispatch_id = excluded.dispatch_id, classpath = excluded.classpath, kwargs = excluded.kwargs, file = excluded.file,
           created_at = now(), waiter = null
)
select coalesce((select w.rank > {LOWEST_RANK} from task_instance w
                  where w.pool = done.pool and w.state = 'scheduled'
                  order by w.rank desc limit 1), false) as pool_has_waiting from done
""",
)

ALL = (HOLD, HOLD_MOVES, CLAIM, UNSTARTED, NEEDS_SCHEDULER, LOCK_JOINS, UPSTREAM_STATES, PEER_STATES, REPORT, SUSPEND)
#: The statements that a new connection runs.
STATEMENTS = "".join(f"\n{one.prepare}" for one in ALL)
