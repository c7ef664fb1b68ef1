"""The outbox of notices: callbacks and emails that are due after changes of state. Database triggers and deadlines write it.

A notice is claimed for a limited time, started, and ended once. It is started again only if a process died before its end.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import no_dag
from scheduler.store.db import rows
from scheduler.store.db.database import step

#: Whether a notice is open, see store/upkeep/pending_work.
PENDING = "exists (select from notice where ended_at is null)"
#: The place of a notice: the file that its DAG `d` has now, with the name of its bundle.
PLACE = "concat_ws(':', d.bundle, d.file)"
#: The largest number of blocking task instances that an SLA callback receives.
MOST_BLOCKING = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A callback or email that is due, with its data."""

    id: int
    kind: str
    file: str
    #: The ID of the bundle version of its run; None: the file is in the DAGs folder.
    bundle_version: int | None
    #: See PLACE.
    place: str
    dag_id: str
    run_id: str
    dag_run_id: int
    run: dict[str, Any]
    #: None for a notice about a run.
    ti: dict[str, Any] | None
    email: tuple[str, ...]
    reason: str | None
    data: dict[str, Any]
    created_at: datetime
    #: The number of its callbacks that have ended.
    done: int

    @property
    def about(self) -> str:
        """Its subject, for people."""
        if self.ti is None:
            return f"{self.dag_id} (run {self.run_id})"
        index = f"[{self.ti['map_index']}]" if self.ti["map_index"] >= 0 else ""
        return f"{self.dag_id}.{self.ti['task_id']}{index} (run {self.run_id}, try {self.ti['try_number']})"


@step("notice")
def claim(
    connection: Connection, claimed_by: str, *, emails: bool, lease_s: float, limit: int, without: Collection[str] = ()
) -> list[Notice]:
    """Claim the oldest emails or callbacks without a claim, except those of the places `without`."""
    claimed = connection.exec_driver_sql(
        f"""
        with free as (
            select n.id
              from notice n join dag_run r on r.id = n.dag_run_id left join dag d on d.dag_id = r.dag_id
             where n.ended_at is null and (n.kind like 'email%%') = %(emails)s and n.kind <> 'asset'
               and (n.claimed_until is null or n.claimed_until <= clock_timestamp())
               and {PLACE} <> all(%(without)s::text[])
             order by n.id limit %(limit)s
               for update of n skip locked
        )
        update notice n set claimed_by = %(by)s, claimed_until = clock_timestamp() + make_interval(secs => %(lease)s)
          from free where n.id = free.id
        returning n.id
        """,
        {"by": claimed_by, "emails": emails, "lease": lease_s, "limit": limit, "without": list(without)},
    )
    ids = sorted(claimed.scalars())
    return _read(connection, ids) if ids else []


def begin(connection: Connection, notice_id: int, claimed_by: str, *, lease_s: float) -> int | None:
    """Record the start of an attempt, and return its number; None if another process has claimed the notice since."""
    return connection.exec_driver_sql(
        """
        update notice set attempts = attempts + 1, claimed_until = clock_timestamp() + make_interval(secs => %(lease)s)
         where id = %(id)s and claimed_by = %(by)s and ended_at is null
        returning attempts
        """,
        {"id": notice_id, "by": claimed_by, "lease": lease_s},
    ).scalar_one_or_none()


def progress(connection: Connection, notice_id: int, claimed_by: str, *, done: int, error: str | None, lease_s: float) -> bool:
    """Record that one of its callbacks has ended, with or without an error; False if the claim is lost."""
    noted = connection.exec_driver_sql(
        """
        update notice set done = %(done)s, error = nullif(concat_ws(E'\\n', error, %(error)s::text), ''),
               claimed_until = clock_timestamp() + make_interval(secs => %(lease)s)
         where id = %(id)s and claimed_by = %(by)s and ended_at is null
        """,
        {"id": notice_id, "by": claimed_by, "done": done, "error": _clean(error), "lease": lease_s},
    )
    return noted.rowcount == 1


@step("delivered")
def end(connection: Connection, notice_id: int, claimed_by: str, *, error: str | None = None) -> bool:
    """End a notice, with `error` if it failed; False if the claim is lost."""
    ended = connection.exec_driver_sql(
        """
        update notice set ended_at = clock_timestamp(), claimed_until = null,
               error = nullif(concat_ws(E'\\n', error, %(error)s::text), '')
         where id = %(id)s and claimed_by = %(by)s and ended_at is null
        """,
        {"id": notice_id, "by": claimed_by, "error": _clean(error)},
    )
    return ended.rowcount == 1


def release_dead(connection: Connection, schedulers: Collection[str]) -> None:
    """Release the claims of lost schedulers, named <scheduler>/<pass>, except for rows that are locked."""
    connection.exec_driver_sql(
        """
        with held as (
            select n.id from notice n
             where n.ended_at is null
               and exists (select 1 from unnest(%s) dead (id) where starts_with(n.claimed_by, dead.id || '/'))
             order by n.id for update skip locked
        )
        update notice n set claimed_by = null, claimed_until = null from held where n.id = held.id
        """,
        (list(schedulers),),
    )


def release(connection: Connection, claimed_by: str, ids: Sequence[int], *, pause_s: float = 0.0) -> None:
    """Release the claims of these notices, which can be claimed again after `pause_s`."""
    connection.exec_driver_sql(
        """
        with held as (
            select id from notice where id = any(%(ids)s) and claimed_by = %(by)s and ended_at is null order by id for update
        )
        update notice n set claimed_by = null,
               claimed_until = case when %(pause)s > 0 then clock_timestamp() + make_interval(secs => %(pause)s) end
          from held where n.id = held.id
        """,
        {"ids": list(ids), "by": claimed_by, "pause": pause_s},
    )


def notices(
    connection: Connection, *, dag_id: str | None = None, failed: bool = False, limit: int | None = 100
) -> list[dict[str, Any]]:
    """The open notices, or with `failed` those that ended with an error, newest first. NotFoundError for an unknown DAG."""
    if dag_id is not None and connection.exec_driver_sql("select 1 from dag where dag_id = %s", (dag_id,)).first() is None:
        raise no_dag(dag_id)
    found = connection.exec_driver_sql(
        """
        select n.id, n.kind, r.dag_id, r.run_id, t.task_id, t.map_index, n.try_number, n.reason, n.created_at, n.attempts,
               n.claimed_by, n.ended_at, n.error
          from notice n join dag_run r on r.id = n.dag_run_id left join task_instance t on t.id = n.task_instance_id
         where (%(dag)s::text is null or r.dag_id = %(dag)s)
           and case when %(failed)s then n.ended_at is not null and n.error is not null else n.ended_at is null end
         order by n.id desc limit %(limit)s
        """,
        {"dag": dag_id, "failed": failed, "limit": limit},
    )
    return rows.dicts(found)


def blocking(connection: Connection, dag_run_id: int) -> list[dict[str, Any]]:
    """The task instances of a run that have not succeeded."""
    found = connection.exec_driver_sql(
        """
        select task_id, map_index, try_number, max_tries, coalesce(state, 'none') as state from task_instance
         where dag_run_id = %s and state is distinct from 'success' order by task_no, map_index limit %s
        """,
        (dag_run_id, MOST_BLOCKING),
    )
    return rows.dicts(found)


def _read(connection: Connection, ids: list[int]) -> list[Notice]:
    """The data of these notices. For an event of a run, the task instance is the one that ended last, or failed last."""
    found = connection.exec_driver_sql(
        f"""
        select n.id, n.kind, case when v.bundle_version_id is null then coalesce(d.file, v.data->>'file') else v.data->>'file' end
                   as file,
               v.bundle_version_id as bundle_version, {PLACE} as place, r.dag_id, r.run_id, n.dag_run_id, n.reason,
               coalesce(n.data, '{{}}') as data, n.created_at, n.done,
               jsonb_build_object('run_type', r.run_type, 'state', r.state, 'logical_date', r.logical_date,
                   'data_interval_start', r.data_interval_start, 'data_interval_end', r.data_interval_end,
                   'start_date', r.started_at, 'end_date', r.ended_at, 'run_after', r.run_after, 'conf', r.conf,
                   'partition_key', r.partition_key, 'partition_date', r.partition_date) as run,
               case when t.id is not null then jsonb_build_object('task_id', t.task_id, 'map_index', t.map_index,
                   'try_number', coalesce(n.try_number, t.try_number), 'max_tries', t.max_tries,
                   'state', coalesce(n.state, t.state),
                   'start_date', case when former.started_at is null then t.started_at else former.started_at end,
                   'end_date', case when former.started_at is null then t.ended_at else former.ended_at end,
                   'worker', case when former.started_at is null then t.worker else former.worker end) end as ti,
               case when n.kind like 'email%%' then
                   array(select jsonb_array_elements_text(v.data->'tasks'->t.task_no->'email')) else '{{}}' end as email
          from notice n
          join dag_run r on r.id = n.dag_run_id
          join dag_version v on v.id = r.version_id
          left join dag d on d.dag_id = r.dag_id
          left join lateral (
               select coalesce(n.task_instance_id, (
                      select x.id from task_instance x
                       where x.dag_run_id = n.dag_run_id and n.kind in ('dag_success', 'dag_failure')
                         and (n.kind = 'dag_success' or x.state = 'failed')
                       order by x.ended_at desc nulls last, x.id limit 1)) as id) about on true
          left join task_instance t on t.id = about.id
          left join lateral (
               select e.started_at, e.ended_at, e.worker from task_try e
                where e.task_instance_id = t.id and e.try_number = n.try_number and n.try_number <> t.try_number
                order by e.ended_at desc nulls last limit 1) former on true
         where n.id = any(%(ids)s)
         order by n.id
        """,
        {"ids": ids},
    )
    return [Notice(**{**row, "email": tuple(row["email"])}) for row in found.mappings()]


def _clean(text: str | None) -> str | None:
    """The text in a form that PostgreSQL can store, with a limited length."""
    return None if text is None else text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()[:4000]
