"""The history of a task instance or of a run: its events, and each change of state with what it had waited for.

Database triggers write an event for each change of state. The steps scheduled -> queued -> running write none of their own: their
times and actors are columns of the task instance, and of the event that ends the dispatch. What held a limit in the past follows
from the events too. The limits are those of now.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from paceline.exceptions import NotFoundError, UnreadableVersionError
from paceline.states import HOLDS_SLOTS, STARTED, RunState, States, TaskState
from scheduler.deciding.limits import POOL, RUNS
from scheduler.deciding.waits import SHORTEST_WAIT_S, Contention, LimitFacts, PoolFacts, QueueFacts, Step, of_run, sentence
from scheduler.settings import Settings
from scheduler.store.db import rows
from scheduler.store.queueing.limits import INSTANCES, MOST_RUNS, SHARES_RUNS, allowed, counted
from scheduler.store.read import reads
from scheduler.store.read.listing import Row
from scheduler.store.read.why import LIMITS, Reader, named_holders

#: For a current dispatch, the steps are only in the row of the task instance. An event is written at the end of the statement that
#: also queues and starts the next tasks, so the time of the last end is that in its row, which is before theirs.
EVENTS = """
select case when e.from_state = 'running' and e.to_state = t.state and t.ended_at < e.at then t.ended_at else e.at end as at,
       e.task_instance_id as ti, t.task_id, t.map_index, e.try_number, e.from_state, e.to_state, e.actor, e.reason,
       e.queued_at, e.queued_by, e.started_at, e.worker
  from event e left join task_instance t on t.id = e.task_instance_id
 where e.dag_run_id = %(run)s and (%(ti)s::bigint is null or e.task_instance_id = %(ti)s)
union all
select null, t.id, t.task_id, t.map_index, t.try_number, null, null, null, null,
       t.queued_at, t.queued_by, case when t.state = 'running' then t.started_at end, t.worker
  from task_instance t
 where t.dag_run_id = %(run)s and (%(ti)s::bigint is null or t.id = %(ti)s)
   and (t.state = 'queued' or (t.state = 'running' and t.resume is null))
   and exists (select 1 from event where dag_run_id = %(run)s)
"""
#: Steps in one history: the newest ones.
MOST_STEPS = 200
#: Waits whose cause is looked up: the longest ones.
MOST_CAUSES = 10
#: The start of one of these has an event, unless it is that of a new try.
EVENT_AT_START = States(STARTED | {TaskState.DEFERRED})
#: A step to one of these may have waited for slots or places.
AWAITED: frozenset[str] = HOLDS_SLOTS - {TaskState.SHUTDOWN}
RUN_AWAITED: frozenset[str] = frozenset({RunState.RUNNING})
#: A dispatch that ended later after the moment is not found, and neither is a deferral that began earlier before it.
LONGEST = timedelta(hours=6)
#: Those of a moment that held slots or places, with their state then, and whether each counted towards the limits of %(id)s.
#: Until it ends, a dispatch has no event. A deferral has one at its start, and so have a dispatch that resumes and a stop.
HELD = f"""
with me as (
    select r.dag_id, r.run_id, t.task_id, t.pool from task_instance t join dag_run r on r.id = t.dag_run_id where t.id = %(id)s
), past as (
    select e.task_instance_id as id, case when e.started_at <= %(at)s then 'running' else 'queued' end as state from event e
     where e.at > %(at)s and e.at <= %(until)s and e.queued_at <= %(at)s
     union all
    select t.id, case when t.started_at <= %(at)s then 'running' else 'queued' end from task_instance t
     where t.state in {HOLDS_SLOTS.sql} and t.queued_at <= %(at)s
     union all
    select e.task_instance_id, e.to_state from event e
     where e.at > %(since)s and e.at <= %(at)s and e.to_state in {EVENT_AT_START.sql}
       and not exists (select from event l where l.dag_run_id = e.dag_run_id and l.task_instance_id = e.task_instance_id
                          and l.at > e.at and l.at <= %(at)s)
), t as (
    select i.id, i.dag_run_id, i.task_id, i.map_index, i.pool, i.pool_slots, i.queue, s.state
      from (select id, max(state) as state from past group by id) s join task_instance i on i.id = s.id where i.id <> %(id)s
)
select r.dag_id, r.run_id, t.task_id, t.map_index, t.pool_slots, t.queue, t.state,
       {", ".join(f'{counted(limit)} as "{limit}"' for limit in (POOL, *LIMITS))}
  from me cross join t join dag_run r on r.id = t.dag_run_id left join pool p on p.name = t.pool
"""
OWN = f"""
select t.id, t.dag_run_id, t.task_id, t.pool, t.pool_slots, t.queue, r.version_id, p.slots, {allowed(*LIMITS)}
  from {INSTANCES} where t.id = %(id)s
"""
WORKERS = """
select count(*) as workers, coalesce(sum(concurrency), 0)::bigint as places from process
 where kind = 'worker' and %(queue)s = any(queues) and started_at <= %(at)s
   and coalesce(stopped_at, heartbeat_at + make_interval(secs => %(silent)s)) > %(at)s
"""
LAST_UPSTREAM = """
select task_id from task_instance where dag_run_id = %(run)s and task_id = any(%(upstream)s) and ended_at <= %(at)s
 order by ended_at desc limit 1
"""
RUNNING_RUNS = f"""
select {MOST_RUNS} as "limit", (
       select count(*) from dag_run o where {SHARES_RUNS} and o.id <> r.id and o.started_at <= %(at)s
          and (o.ended_at is null or o.ended_at > %(at)s)) as active
  from dag_run r join dag d on d.dag_id = r.dag_id join dag_version v on v.id = d.version_id
  left join backfill b on b.id = r.backfill_id where r.id = %(run)s
"""
#: Notices that were delivered or abandoned, Spark applications, and missed SLAs and deadlines, as (at, task_id, map_index, text).
BESIDE = """
select n.ended_at as at, t.task_id, t.map_index, n.try_number,
       case when n.error is null then 'Delivered ' else 'Could not deliver ' end
           || case when n.kind like 'email%%' then 'the email ' else 'the callback ' end || n.kind
           || coalesce(': ' || n.error, '') || '.' as text
  from notice n left join task_instance t on t.id = n.task_instance_id
 where n.dag_run_id = %(run)s and n.ended_at is not null and n.kind <> 'asset'
union all
select j.submitted_at, t.task_id, t.map_index, j.try_number,
       'Submitted to ' || j.master || coalesce(' as ' || j.application_id, '') || '.'
  from external_job j join task_instance t on t.id = j.task_instance_id where t.dag_run_id = %(run)s
union all
select j.ended_at, t.task_id, t.map_index, j.try_number,
       'The application' || coalesce(' ' || j.application_id, '') || ' ended: ' || j.state
           || case when j.detail = '' then '' else ', ' || j.detail end || '.'
  from external_job j join task_instance t on t.id = j.task_instance_id
 where t.dag_run_id = %(run)s and j.ended_at is not null
union all
select d.missed_at, t.task_id, t.map_index, null,
       case d.kind when 'sla' then 'Missed its SLA of ' else 'The run missed its deadline of ' end
           || to_char(d.due_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC.'
  from deadline d left join task_instance t on t.dag_run_id = d.dag_run_id and t.task_no = d.task_no and t.map_index = -1
 where d.dag_run_id = %(run)s and d.missed_at is not null
union all
select e.created_at, e.task_id, e.map_index, null, 'Updated the asset ' || e.uri || '.'
  from asset_event e join dag_run r on r.dag_id = e.dag_id and r.run_id = e.run_id where r.id = %(run)s
"""


def events(connection: Connection, dag_run_id: int, ti_id: int | None = None) -> list[Row]:
    """The events of a run, or of one of its task instances, oldest first.

    `task_id` is None for changes of the run itself, and a state None for undecided.
    """
    found: list[Row] = []
    for row in connection.exec_driver_sql(EVENTS, {"run": dag_run_id, "ti": ti_id}).mappings():
        step = {name: row[name] for name in ("ti", "task_id", "map_index", "try_number")}
        if row["queued_at"] is not None:
            found.append(step | {"at": row["queued_at"], "to_state": "queued", "actor": row["queued_by"], "reason": None})
        if row["started_at"] is not None:
            found.append(step | {"at": row["started_at"], "to_state": "running", "actor": row["worker"], "reason": None})
        if row["at"] is not None:
            found.append(step | {name: row[name] for name in ("at", "from_state", "to_state", "actor", "reason")})
    found.sort(key=lambda event: (event["at"], event["ti"] or 0))
    states: dict[int | None, str | None] = {}
    for event in found:
        ti = event.pop("ti")
        event.setdefault("from_state", states.get(ti))
        states[ti] = event["to_state"]
    return found


def of_instance(connection: Connection, settings: Settings, ti_id: int, *, reader: Reader | None = None) -> list[Row]:
    """Each step of a task instance: `at`, `state`, `actor`, `try_number`, `seconds` since the step before, and `text`."""
    own, reader = _own(connection, settings, ti_id), reader or Reader()
    upstream = _upstream(connection, own, reader)

    def text(before: Step | None, step: Step, moment: datetime | None) -> str:
        contention = None if moment is None else _contention(connection, settings, own, moment, reader)
        last = _last_upstream(connection, own, upstream, step.at) if step.to_state == "scheduled" and not step.reason else None
        return sentence(step, before, contention, last)

    return _rows(events(connection, own["dag_run_id"], ti_id), AWAITED, text)


def of_dag_run(connection: Connection, dag_id: str, run_id: str) -> list[Row]:
    """Each step of a run, as `of_instance`."""
    run: int = reads.run_alone(connection, dag_id, run_id)["id"]

    def text(before: Step | None, step: Step, moment: datetime | None) -> str:
        return of_run(step, before, None if moment is None else _running_runs(connection, run, moment))

    return _rows([event for event in events(connection, run) if event["task_id"] is None], RUN_AWAITED, text)


def story(connection: Connection, settings: Settings, dag_id: str, run_id: str) -> list[Row]:
    """The whole history of a run in order: its own changes, those of its task instances, and what followed from them.

    Each step: `at`, `task_id` (None for the run itself), `map_index`, `try_number`, `actor` and a sentence in `text`. The longest
    waits have their cause. It names all DAGs. NotFoundError. Without core.record_events, only what followed is known.
    """
    run: int = reads.run_alone(connection, dag_id, run_id)["id"]
    beside = [{**row, "actor": None} for row in rows.dicts(connection.exec_driver_sql(BESIDE, {"run": run}))]
    return sorted([*_told(connection, settings, run), *beside], key=lambda step: step["at"])


def _told(connection: Connection, settings: Settings, run: int) -> Iterator[Row]:
    last: dict[tuple[str | None, int | None], Step] = {}
    pairs: list[tuple[Step | None, Step]] = []
    found = events(connection, run)
    for event in found:
        key = event["task_id"], event["map_index"]
        step = _step(event)
        pairs.append((last.get(key), step))
        last[key] = step
    moments = _moments(pairs, AWAITED)
    for number, (event, (before, step)) in enumerate(zip(found, pairs, strict=True)):
        moment = moments.get(number)
        if event["task_id"] is None:
            text = of_run(step, before, None if moment is None else _running_runs(connection, run, moment))
        elif moment is None:
            text = sentence(step, before)
        else:
            statement = "select id from task_instance where (dag_run_id, task_id, map_index) = (%s, %s, %s)"
            ti_id = connection.exec_driver_sql(statement, (run, event["task_id"], event["map_index"])).scalar_one()
            own = _own(connection, settings, ti_id)
            text = sentence(step, before, _contention(connection, settings, own, moment, Reader()))
        yield {name: event[name] for name in ("at", "task_id", "map_index", "try_number", "actor")} | {"text": text}


def _rows(found: Sequence[Row], awaited: frozenset[str], text: Callable[[Step | None, Step, datetime | None], str]) -> list[Row]:
    steps = [_step(event) for event in found[-MOST_STEPS:]]
    pairs: list[tuple[Step | None, Step]] = list(zip([None, *steps], steps, strict=False))
    moments = _moments(pairs, awaited)
    return [
        {
            "at": step.at,
            "state": step.to_state,
            "actor": step.actor,
            "try_number": step.try_number,
            "seconds": None if before is None else (step.at - before.at).total_seconds(),
            "text": text(before, step, moments.get(number)),
        }
        for number, (before, step) in enumerate(pairs)
    ]


def _step(event: Row) -> Step:
    return Step(**{name: event[name] for name in ("at", "from_state", "to_state", "actor", "reason", "try_number")})


def _moments(pairs: Sequence[tuple[Step | None, Step]], awaited: frozenset[str]) -> dict[int, datetime]:
    """The middle of the longest waits for a step to one of `awaited`, by the place of the step. Steps come with those before."""
    found = [
        (step.at - before.at, number, before.at)
        for number, (before, step) in enumerate(pairs)
        if before is not None and step.to_state in awaited and (step.at - before.at).total_seconds() >= SHORTEST_WAIT_S
    ]
    return {number: start + wait / 2 for wait, number, start in sorted(found, reverse=True)[:MOST_CAUSES]}


def _own(connection: Connection, settings: Settings, ti_id: int) -> Row:
    parameters = {"id": ti_id, "parallelism": settings.core.parallelism}
    found = connection.exec_driver_sql(OWN, parameters).mappings().first()
    if found is None:
        raise NotFoundError("The run of this task instance was deleted in this moment.")
    return dict(found)


def _contention(connection: Connection, settings: Settings, own: Row, at: datetime, reader: Reader) -> Contention:
    parameters = {"at": at, "since": at - LONGEST, "until": at + LONGEST, "id": own["id"]}
    held = rows.dicts(connection.exec_driver_sql(HELD, parameters))
    parameters = {"queue": own["queue"], "at": at, "silent": settings.worker.heartbeat_timeout}
    workers = connection.exec_driver_sql(WORKERS, parameters).one()
    of_queue = [TaskState(one["state"]) for one in held if one["queue"] == own["queue"]]
    active = ((limit, own[limit], sum(bool(one[limit]) for one in held)) for limit in LIMITS)
    return Contention(
        pool_name=own["pool"],
        pool=None if own["slots"] is None else _pool(connection, own, [one for one in held if one[POOL]], reader),
        pool_slots=own["pool_slots"],
        limits=tuple(LimitFacts(name=name, limit=limit, active=count) for name, limit, count in active if limit is not None),
        queue=QueueFacts(
            name=own["queue"],
            workers=workers.workers,
            places=workers.places,
            prefetch_window=settings.scheduler.prefetch_window,
            queued=of_queue.count(TaskState.QUEUED),
            running=sum(state in STARTED for state in of_queue),
        ),
    )


def _pool(connection: Connection, own: Row, held: list[Row], reader: Reader) -> PoolFacts:
    found = named_holders(connection, sorted(held, key=lambda one: -one["pool_slots"]), reader)
    used = sum(one.slots for one in found)
    return PoolFacts(name=own["pool"], slots=own["slots"], used=used, holders=found, holder_count=len(found))


def _upstream(connection: Connection, own: Row, reader: Reader) -> list[str]:
    try:
        dag = reader.versions.dag(connection, own["version_id"])
    except UnreadableVersionError:
        return []
    return list(dag.tasks[dag.number[own["task_id"]]].upstream) if own["task_id"] in dag.number else []


def _last_upstream(connection: Connection, own: Row, upstream: list[str], at: datetime) -> str | None:
    parameters = {"run": own["dag_run_id"], "upstream": upstream, "at": at}
    found: str | None = connection.exec_driver_sql(LAST_UPSTREAM, parameters).scalar_one_or_none() if upstream else None
    return found


def _running_runs(connection: Connection, run: int, at: datetime) -> LimitFacts:
    row = connection.exec_driver_sql(RUNNING_RUNS, {"run": run, "at": at}).one()
    return LimitFacts(name=RUNS, limit=row.limit, active=row.active)
