"""Applications that tasks have submitted to a cluster.

Only the current try of a task instance can add or take over an application. Every later write is conditional on the dispatch that
follows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Engine

from paceline.states import FINISHED, WAITS_FOR_WORKER, States, TaskState
from scheduler.store.db import fencing
from scheduler.store.db.fencing import Writer

#: Sends one statement and gives its rows by the names of their columns.
Ask = Callable[[str, Sequence[Any]], Sequence[Mapping[str, Any]]]

_COLUMNS = (
    "id, task_instance_id as ti_id, try_number, dispatch_id::text, max_tries, tag, kind, deploy_mode, master, reach, driver_id,"
    " application_id, ui_url, submitted_at"
)
_OF_JOB = ", ".join(f"j.{name.strip()}" for name in _COLUMNS.split(","))
OPEN = f"select {_COLUMNS} from external_job where task_instance_id = %s and ended_at is null order by id"
ADD = f"""
with current as ({fencing.CURRENT})
insert into external_job (task_instance_id, try_number, dispatch_id, max_tries, queue, tag, kind, deploy_mode, master, reach)
select id, %s, %s, %s, %s, %s, %s, %s, %s, %s from current
on conflict (tag) do update set dispatch_id = excluded.dispatch_id, at = clock_timestamp(), ended_at = null, driver_id = null,
       application_id = null, state = 'submitted', submitted_at = clock_timestamp()
returning {_COLUMNS}
"""
TAKE_OVER = f"""
with current as ({fencing.CURRENT}), taken as (
    update external_job j set dispatch_id = %s, try_number = %s, at = clock_timestamp()
      from current
     where j.id = %s and j.dispatch_id in (%s, %s) and j.ended_at is null and j.task_instance_id = current.id
 returning {_OF_JOB}
)
select taken.* from current left join taken on true
"""
NOTE = """
update external_job
   set driver_id = coalesce(%s, driver_id), application_id = coalesce(%s, application_id), ui_url = coalesce(%s, ui_url),
       state = %s, detail = %s, at = clock_timestamp(), ended_at = case when %s then clock_timestamp() end
 where id = %s and dispatch_id = %s and ended_at is null returning id
"""
HELD = "select 1 from external_job where id = %s and dispatch_id = %s and ended_at is null"
NAMES = "select 1 from external_job where id = %s and (driver_id = %s or application_id = %s)"
#: The task instance `t` has ended, was cleared, or will start another try: no try follows the application or will follow it.
_UNFOLLOWED = f"""
j.ended_at is null
and ({FINISHED.or_none("t.state")}
     or (t.max_tries <> j.max_tries and t.state in {States(WAITS_FOR_WORKER | {TaskState.UP_FOR_RETRY}).sql}))
"""
#: Abandoned applications of some queues.
ABANDONED = f"""
select {_OF_JOB} from external_job j join task_instance t on t.id = j.task_instance_id
 where j.queue = any(%s) and {_UNFOLLOWED} order by j.id limit 20
"""
#: Take-over by a reaper, with an ID of its own instead of a dispatch ID. The task instance is locked, so that no try can start.
TAKE_ABANDONED = f"""
with abandoned as (
    select j.id from external_job j join task_instance t on t.id = j.task_instance_id
     where j.id = %s and j.dispatch_id = %s and {_UNFOLLOWED} for share of t
)
update external_job j set dispatch_id = %s, at = clock_timestamp() from abandoned
 where j.id = abandoned.id and j.dispatch_id = %s and j.ended_at is null returning {_OF_JOB}
"""


def by_engine(engine: Engine) -> Ask:
    """Sends each statement in a transaction of its own."""

    def ask(statement: str, parameters: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        with engine.begin() as connection:
            return [dict(row) for row in connection.exec_driver_sql(statement, tuple(parameters)).mappings()]

    return ask


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalJob:
    """One application, with the try that follows it."""

    id: int
    ti_id: int
    try_number: int
    dispatch_id: str
    max_tries: int
    tag: str
    kind: str
    deploy_mode: str
    master: str
    reach: dict[str, str]
    driver_id: str | None
    application_id: str | None
    ui_url: str | None
    submitted_at: datetime


def open_of(ask: Ask, ti_id: int) -> list[ExternalJob]:
    """The applications of a task instance that may still run."""
    return [ExternalJob(**row) for row in ask(OPEN, (ti_id,))]


def add(
    ask: Ask, writer: Writer, *, max_tries: int, queue: str, tag: str, kind: str, deploy_mode: str, master: str,
    reach: dict[str, str],
) -> ExternalJob:  # fmt: skip
    """Store an application before it is submitted, so that none runs without a row. After StaleTryError, do not submit it."""
    row = (writer.try_number, writer.dispatch_id, max_tries, queue, tag, kind, deploy_mode, master, Json(reach))
    rows = ask(ADD, (*writer.key, *row))
    if not rows:
        raise fencing.stale(writer)
    return ExternalJob(**rows[0])


def take_over(ask: Ask, writer: Writer, job: ExternalJob) -> ExternalJob | None:
    """Let this dispatch follow it; None if another process has taken it over, or if it has ended. StaleTryError."""
    # Also if this dispatch follows it already: the answer to an earlier request may have been lost.
    rows = ask(TAKE_OVER, (*writer.key, writer.dispatch_id, writer.try_number, job.id, job.dispatch_id, writer.dispatch_id))
    if not rows:
        raise fencing.stale(writer)
    return ExternalJob(**rows[0]) if rows[0]["id"] is not None else None


def take_abandoned(ask: Ask, job: ExternalJob, *, reaper: str) -> ExternalJob | None:
    """Let a reaper, with a new ID, end it; None if a try follows it, or if it has ended."""
    rows = ask(TAKE_ABANDONED, (job.id, job.dispatch_id, reaper, job.dispatch_id))
    return ExternalJob(**rows[0]) if rows else None


def note(
    ask: Ask, job: ExternalJob, *, state: str, detail: str = "", ended: bool = False,
    driver_id: str | None = None, application_id: str | None = None, ui_url: str | None = None,
) -> bool:  # fmt: skip
    """Store its status; False if another dispatch follows it or it has ended, so that this process must not end it."""
    return bool(ask(NOTE, (driver_id, application_id, ui_url, state, detail[:1000], ended, job.id, job.dispatch_id)))


def held(ask: Ask, job: ExternalJob) -> bool:
    """Whether the dispatch that `job` names still follows it."""
    return bool(ask(HELD, (job.id, job.dispatch_id)))


def held_by(ask: Ask, writer: Writer, job: ExternalJob) -> bool:
    """Whether this try is current and still follows it. A stale try leaves it to the next try or to a reaper."""
    return held(ask, job) and bool(ask(fencing.CURRENT, writer.key))


def names(ask: Ask, job: ExternalJob, *, driver_id: str | None, application_id: str | None) -> bool:
    """Whether its row has this driver or application ID, so that another process follows it, has ended it or will end it."""
    return bool(ask(NAMES, (job.id, driver_id, application_id)))


def abandoned(ask: Ask, queues: Sequence[str]) -> list[ExternalJob]:
    """The open applications of these queues that no try follows or will follow."""
    return [ExternalJob(**row) for row in ask(ABANDONED, (list(queues),))]
