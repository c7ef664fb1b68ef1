"""The history of a task instance or of a run: each change of state, with what it had waited for.

What held a limit in the past follows from the events. The limits are those of now.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from scheduler.deciding.limits import POOL, RUNS
from scheduler.deciding.situation import LimitFacts, PoolFacts
from scheduler.deciding.why_past import SHORTEST_WAIT_S, Contention, RunContention, Step, of_run, sentence
from scheduler.exceptions import UnreadableVersionError
from scheduler.settings import Settings
from scheduler.states import HOLDS_SLOTS, STARTED, States, TaskState
from scheduler.store.db import rows
from scheduler.store.queries import events, reads
from scheduler.store.queries.why import LIMITS, Reader, named_holders
from scheduler.store.queueing.limits import INSTANCES, MOST_RUNS, SHARES_RUNS, allowed, counted

Row = dict[str, Any]
#: Steps in one history: the newest ones.
MOST_STEPS = 200
#: Waits whose cause is looked up: the longest ones.
MOST_CAUSES = 10
#: The start of one of these has an event, unless it is that of a new try.
EVENT_AT_START = States(STARTED | {TaskState.DEFERRED})
#: A step to one of these may have waited for slots or places.
AWAITED = HOLDS_SLOTS - {TaskState.SHUTDOWN}
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
RUN_CROWD = f"""
select r.run_after, {MOST_RUNS} as "limit", (
       select count(*) from dag_run o where {SHARES_RUNS} and o.id <> r.id and o.started_at <= %(at)s
          and (o.ended_at is null or o.ended_at > %(at)s)) as active
  from dag_run r join dag d on d.dag_id = r.dag_id join dag_version v on v.id = d.version_id
  left join backfill b on b.id = r.backfill_id where r.id = %(run)s
"""


def of_instance(connection: Connection, settings: Settings, ti_id: int, *, reader: Reader | None = None) -> list[Row]:
    """Each step of a task instance: `at`, `state`, `actor`, `try_number`, `seconds` since the step before, and `text`."""
    own = _own(connection, settings, ti_id)
    steps = _steps(events.of_run(connection, own["dag_run_id"], ti_id))
    reader = reader or Reader()
    upstream = _upstream(connection, own, reader)

    def text(step: Step, before: Step | None, *, is_long: bool) -> str:
        contention = (
            _contention(connection, settings, own, _middle(before, step), reader) if is_long and before is not None else None
        )
        last = _last_upstream(connection, own, upstream, step.at) if step.to_state == "scheduled" and not step.reason else None
        return sentence(step, before, contention, last)

    return _rows(steps, AWAITED, text)


def of_dag_run(connection: Connection, dag_id: str, run_id: str) -> list[Row]:
    """Each step of a run, as `of_instance`."""
    run: int = reads.run_alone(connection, dag_id, run_id)["id"]
    steps = _steps([event for event in events.of_run(connection, run) if event["task_id"] is None])

    def text(step: Step, before: Step | None, *, is_long: bool) -> str:
        return of_run(step, before, _run_contention(connection, run, _middle(before, step)) if is_long and before else None)

    return _rows(steps, ("running",), text)


def crowd_of(connection: Connection, settings: Settings, place: tuple[int, str, int], before: Step, step: Step) -> Contention:
    """What held up a task instance, by its run, task and map index, between two of its steps. Names all DAGs: not for accounts."""
    statement = "select id from task_instance where (dag_run_id, task_id, map_index) = (%s, %s, %s)"
    ti_id = connection.exec_driver_sql(statement, place).scalar_one()
    own = _own(connection, settings, ti_id)
    return _contention(connection, settings, own, _middle(before, step), Reader())


def crowd_of_run(connection: Connection, run: int, before: Step, step: Step) -> RunContention:
    """What held up a queued run in the wait between two of its steps."""
    return _run_contention(connection, run, _middle(before, step))


def longest_waits(pairs: Sequence[tuple[Step | None, Step]], awaited: Collection[str] = AWAITED) -> set[int]:
    """The places of the steps to one of `awaited` that took longest, whose causes are looked up. Steps come with those before."""
    waits = {
        number: (step.at - before.at).total_seconds()
        for number, (before, step) in enumerate(pairs)
        if before is not None and step.to_state in awaited
    }
    found = sorted((number for number, wait_s in waits.items() if wait_s >= SHORTEST_WAIT_S), key=lambda number: -waits[number])
    return set(found[:MOST_CAUSES])


def step_of(event: Row) -> Step:
    """An event of `events.of_run` as a step."""
    return Step(**{name: event[name] for name in ("at", "from_state", "to_state", "actor", "reason", "try_number")})


def _steps(found: Sequence[Row]) -> list[Step]:
    return [step_of(event) for event in found[-MOST_STEPS:]]


def _rows(steps: list[Step], awaited: Collection[str], text: Callable[..., str]) -> list[Row]:
    pairs: list[tuple[Step | None, Step]] = list(zip([None, *steps], steps, strict=False))
    explained = longest_waits(pairs, awaited)
    return [
        {
            "at": step.at,
            "state": step.to_state,
            "actor": step.actor,
            "try_number": step.try_number,
            "seconds": None if before is None else (step.at - before.at).total_seconds(),
            "text": text(step, before, is_long=number in explained),
        }
        for number, (before, step) in enumerate(pairs)
    ]


def _own(connection: Connection, settings: Settings, ti_id: int) -> Row:
    parameters = {"id": ti_id, "parallelism": settings.core.parallelism}
    return dict(connection.exec_driver_sql(OWN, parameters).mappings().one())


def _middle(before: Step | None, step: Step) -> datetime:
    return step.at if before is None else before.at + (step.at - before.at) / 2


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
        queue=own["queue"],
        workers=workers.workers,
        places=workers.places,
        prefetch=settings.scheduler.queue_headroom,
        queued=of_queue.count(TaskState.QUEUED),
        running=sum(state in STARTED for state in of_queue),
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


def _run_contention(connection: Connection, run: int, at: datetime) -> RunContention:
    row = connection.exec_driver_sql(RUN_CROWD, {"run": run, "at": at}).one()
    return RunContention(run_after=row.run_after, running=LimitFacts(name=RUNS, limit=row.limit, active=row.active))
