"""Retention: finds and deletes old data that is not needed any more, in small batches while everything else runs.

A batch is one transaction. It reads a limited number of rows, skips locked ones, and deletes those that are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection

from paceline.states import OPEN, RUN_FINISHED, RUN_UNFINISHED, STARTED
from scheduler.store.dags import blobs
from scheduler.store.dags.dags import AFTER, MOST_FAILED
from scheduler.store.dags.schedules import MADE_BY_SCHEDULE
from scheduler.store.db.database import patiently
from scheduler.store.runs import deleted_runs
from scheduler.store.runs.deleted_runs import DeletedRun
from scheduler.store.tables import history

#: Rows and runs read in one batch; task instances deleted by one statement, which is some 20 ms of CPU. A larger run has a batch.
SCAN, SCAN_RUNS = 500, 200
MOST_INSTANCES = 2000
LONGEST_S = 600.0

#: Types of runs that no schedule continues from. Reproductions do not count for other runs at all.
BY_HAND, COUNTS = "('manual', 'reproduction')", "{0}.run_type <> 'reproduction'"
#: A run can be deleted when it has ended and nothing of it is open or claimed, except
#: - the last run of its DAG that is not manual, and the last one that its schedule made, from which the schedule continues,
#: - runs of dates that the schedule has yet to reach: it would create them again,
#: - the last run of all, and the one before an unfinished run, if tasks of the DAG depend on the previous run,
#: - the last success of its DAG that is not manual, which the next run has as its previous success,
#: - the failed runs that count towards max_consecutive_failed_dag_runs now,
#: - runs of a backfill that has not ended.
FREE_RUN = f"""
    r.state in {RUN_FINISHED.sql} and r.ended_at < %(before)s
    and not exists (select 1 from task_instance t where t.dag_run_id = r.id and {OPEN.or_none("t.state")})
    and not exists (select 1 from notice n where n.dag_run_id = r.id and n.ended_at is null)
    and not exists (select 1 from backfill b where b.id = r.backfill_id and b.ended_at is null)
    and (r.run_type in {BY_HAND} or exists (
            select 1 from dag_run l where l.dag_id = r.dag_id and l.run_type not in {BY_HAND}
               and {AFTER.format("l", "r")}))
    and (r.logical_date is null or not {MADE_BY_SCHEDULE.format("r")} or exists (
            select 1 from dag_run l where l.dag_id = r.dag_id and {MADE_BY_SCHEDULE.format("l")}
               and l.logical_date > r.logical_date))
    and (r.run_type in {BY_HAND} or r.state <> 'success' or exists (
            select 1 from dag_run l where l.dag_id = r.dag_id and l.run_type not in {BY_HAND} and l.state = 'success'
               and {AFTER.format("l", "r")}))
    and (r.state <> 'failed' or r.run_type = 'reproduction' or not exists (
            select 1 from dag d
              join dag_version v on v.id = d.version_id
             cross join lateral (
                   select count(*) as later from (
                          select 1 from dag_run l where l.dag_id = r.dag_id and l.state = 'failed'
                             and {COUNTS.format("l")} and {AFTER.format("l", "r")}
                           limit (v.data->>'{MOST_FAILED}')::int) l) n
             where d.dag_id = r.dag_id and n.later < (v.data->>'{MOST_FAILED}')::int
               and not exists (
                   select 1 from dag_run l where l.dag_id = r.dag_id and l.state = 'success'
                      and {COUNTS.format("l")} and {AFTER.format("l", "r")})))
    and (r.run_type in {BY_HAND} or not exists (
            select 1 from dag_schedule s where s.dag_id = r.dag_id and s.next_logical_date <= r.logical_date))
    and (r.run_type = 'reproduction'
         or not exists (select 1 from dag_version v where v.dag_id = r.dag_id and v.depends_on_past)
         or (exists (select 1 from dag_run l where l.dag_id = r.dag_id and {COUNTS.format("l")} and {AFTER.format("l", "r")})
             and not exists (
                 select 1 from dag_run n where n.dag_id = r.dag_id and n.state in {RUN_UNFINISHED.sql}
                    and {COUNTS.format("n")} and {AFTER.format("n", "r")}
                    and not exists (select 1 from dag_run b where b.dag_id = r.dag_id and {COUNTS.format("b")}
                                       and (b.run_type <> 'manual' or r.run_type = 'manual')
                                       and {AFTER.format("b", "r")} and {AFTER.format("n", "b")}))))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table with old rows: `old` and `free` are conditions on its row `x`, and rows are read in the order of `key`."""

    table: str
    old: str
    free: str
    key: str = "id"
    #: A key before the first row. Numeric keys ascend with time, so the first row that is not old ends the search.
    first: int | str = 0
    #: The type of an array of keys, where PostgreSQL does not find it out.
    keys: str = ""
    #: The digest of an object at bundles.code_url that is deleted with a row, or NULL.
    object: str = "null"


def _unused(version: str, others: str = "true") -> str:
    """SQL: no DAG, run, backfill or schedule uses a DAG version, nor does a bundle version `o` that is one of the `others`."""
    return f"""
        not exists (select 1 from dag d where d.version_id = {version}.id)
        and not exists (select 1 from dag_run r where r.version_id = {version}.id)
        and not exists (select 1 from run_version e where e.version_id = {version}.id)
        and not exists (select 1 from backfill b where b.version_id = {version}.id)
        and not exists (select 1 from dag_schedule s where s.dag_id = {version}.dag_id and s.planned_version_id = {version}.id)
        and not exists (
            select 1 from bundle_version o where {others} and (o.dags->{version}.dag_id->>'version')::bigint = {version}.id)
    """


def _of_deleted_runs(table: str, at: str) -> Rows:
    """The rows of runs that are gone, by their place in a table whose key has several columns."""
    return Rows(
        table=table,
        key="ctid",
        old=f"x.{at} < %(before)s",
        free="not exists (select 1 from dag_run r where r.id = x.dag_run_id)",
        first="(0,0)",
        keys="::tid[]",
    )


#: By the names that people see. Processes with running task instances are left to rescue.
KINDS: dict[str, Rows] = {
    "notices": Rows(table="notice", old="x.created_at < %(before)s", free="x.ended_at < %(before)s"),
    "asset_events": Rows(
        table="asset_event",
        old="x.created_at < %(before)s",
        free="""not exists (select 1 from asset_waiting w where w.event_id = x.id)
                and not exists (select 1 from dag_run_asset_event c where c.event_id = x.id)
                and exists (select 1 from asset_event newer where newer.uri = x.uri and newer.id > x.id)""",
    ),
    "processes": Rows(
        table="process",
        old="x.stopped_at < %(before)s",
        free=f"""not exists (select 1 from task_instance t where t.worker = x.id and t.state in {STARTED.sql})
                and not exists (select 1 from deferral d where d.waiter = x.id)""",
        first="",
    ),
    "backfills": Rows(
        table="backfill",
        old="x.created_at < %(before)s",
        free="x.ended_at < %(before)s and not exists (select 1 from dag_run r where r.backfill_id = x.id)",
    ),
    "dag_versions": Rows(
        table="dag_version",
        old="x.created_at < %(before)s",
        free=f"""{_unused("x")}
                and exists (select 1 from dag_version n where n.dag_id = x.dag_id and n.number > x.number)""",
    ),
    # With its DAG versions, which no run has and no other bundle version.
    "bundle_versions": Rows(
        table="bundle_version",
        old="x.created_at < %(before)s",
        free=f"""coalesce(x.live_at < %(before)s, true)
                and not exists (select 1 from bundle b where x.id in (b.version_id, b.wanted_id))
                and not exists (
                    select 1 from dag_version v where v.bundle_version_id = x.id and not ({_unused("v", "o.id <> x.id")}))""",
    ),
    "bundle_files": Rows(
        table="bundle_blob",
        key="digest",
        old="true",
        free="not exists (select 1 from bundle_path p where p.digest = x.digest)",
        first="",
        object="case when length(x.content) = 0 then encode(x.digest, 'hex') end",
    ),
    "dag_sources": Rows(
        table="dag_source",
        key="digest",
        old="true",
        free="not exists (select 1 from dag_version v where v.source = x.digest)",
        first="",
    ),
    # Its key has four columns.
    "table_versions": Rows(
        table="table_version",
        key="ctid",
        old="x.published_at < %(before)s",
        free=f"({history.FREE})",
        first="(0,0)",
        keys="::tid[]",
    ),
    "table_runs": Rows(
        table="table_run",
        key="dag_run_id",
        old="x.started_at < %(before)s",
        free="not exists (select 1 from dag_run r where r.id = x.dag_run_id)",
    ),
    "table_reads": _of_deleted_runs("table_read", "read_at"),
    "table_pins": _of_deleted_runs("table_pin", "pinned_at"),
    "table_requests": Rows(table="table_request", key="digest", old="x.made_at < %(before)s", free="true", first=""),
    "account_keys": Rows(table="account_key", key="digest", old="x.expires_at < %(before)s", free="true", first=""),
    "login_failures": Rows(table="login_failure", key="key", old="x.last_at < %(before)s", free="true", first=""),
    "import_errors": Rows(
        table="import_error",
        key="file",
        old="x.seen_at < %(before)s",
        free="not exists (select 1 from dag_file f where f.path = x.file)",
        first="",
    ),
}

#: Kept for a time of its own, and not deleted by `paceline db clean`.
AUDIT: dict[str, Rows] = {"audit": Rows(table="audit", old="x.at < %(before)s", free="true")}


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one batch: the number of deleted rows, and the position for the next batch, None at the end of the table."""

    deleted: int
    after: Any
    runs: tuple[DeletedRun, ...] = ()


#: The position before the first run: (ended_at, id).
FIRST_RUN = (datetime.min.replace(tzinfo=UTC), 0)


def delete(
    connection: Connection, kind: str, before: datetime, after: Any, *, logs: bool, taken: bool = False, code_url: str | None = None
) -> Batch:
    """Delete a batch of `kind`, which is "runs" or one of KINDS. UnreachableError if an object at `code_url` cannot be deleted."""
    if kind == "runs":
        return delete_runs(connection, before, after or FIRST_RUN, logs=logs, taken=taken)
    return delete_rows(connection, kind, before, after, code_url=code_url)


def delete_runs(
    connection: Connection, before: datetime, after: tuple[datetime, int] = FIRST_RUN, *, logs: bool = False, taken: bool = False
) -> Batch:
    """Delete the oldest runs that ended before a moment, with all their rows, except locked ones.

    Their files, with the `logs` or without, are deleted later: by the caller if `taken`, else by any scheduler.
    """
    seen = _ended_runs(connection, before, after)
    held = connection.exec_driver_sql(
        f"select r.id from dag_run r where r.id = any(%(ids)s) and {FREE_RUN} order by r.id for update of r skip locked",
        {"before": before, "ids": [row.id for row in seen]},
    )
    runs = _deleted(connection, before, held.scalars().all(), logs=logs)
    deleted_runs.store(connection, runs, taken=taken)
    return Batch(len(runs), _place(seen[-1]) if seen and seen[-1].goes_on else None, runs)


def _ended_runs(connection: Connection, before: datetime, after: tuple[datetime, int]) -> Sequence[Any]:
    """The first runs after a position that ended before a moment, each with whether others follow (`goes_on`).

    At least one, and no more than have MOST_INSTANCES together.
    """
    patiently(connection, seconds=LONGEST_S)
    ended_at, key = after
    return connection.exec_driver_sql(
        """
        select ended_at, id, number < count or count = %(scan)s as goes_on
          from (select r.ended_at, r.id, sum(s.size) over earlier as total, row_number() over earlier as number,
                       count(*) over () as count
                  from (select ended_at, id from dag_run where ended_at < %(before)s and (ended_at, id) > (%(ended_at)s, %(id)s)
                         order by ended_at, id limit %(scan)s) r
                 cross join lateral (
                       select count(*) as size from (select from task_instance t where t.dag_run_id = r.id limit %(most)s + 1) t) s
                window earlier as (order by r.ended_at, r.id)) r
         where total <= %(most)s or number = 1 order by ended_at, id
        """,
        {"before": before, "ended_at": ended_at, "id": key, "scan": SCAN_RUNS, "most": MOST_INSTANCES},
    ).all()


def _place(run: Any) -> tuple[datetime, int]:
    """Where a run stands in the order of deletion."""
    return run.ended_at, run.id


def _deleted(connection: Connection, before: datetime, chosen: Sequence[int], *, logs: bool) -> tuple[DeletedRun, ...]:
    """Delete the chosen runs. The first statement checks them again now that they are locked: one may have been cleared before."""
    rows = connection.exec_driver_sql(
        f"""
        select r.dag_id, r.run_id, r.id, (select count(*) from task_instance t where t.dag_run_id = r.id) as size
          from dag_run r where r.id = any(%(ids)s) and {FREE_RUN}
        """,
        {"before": before, "ids": list(chosen)},
    ).all()
    runs = tuple(DeletedRun(row.dag_id, row.run_id, row.id, row.size, logs) for row in rows)
    for run in runs:
        if run.instances > MOST_INSTANCES:
            for table in ("event", "task_instance"):
                _empty(connection, table, run.key)
    connection.exec_driver_sql("delete from dag_run where id = any(%s)", ([run.key for run in runs],))
    return runs


def _empty(connection: Connection, table: str, dag_run_id: int) -> None:
    """Delete the rows of a large run before it, so that no statement takes long."""
    statement = f"delete from {table} where ctid = any(array(select ctid from {table} where dag_run_id = %s limit %s))"
    while connection.exec_driver_sql(statement, (dag_run_id, MOST_INSTANCES)).rowcount == MOST_INSTANCES:
        pass


def delete_rows(connection: Connection, kind: str, before: datetime, after: Any = None, *, code_url: str | None = None) -> Batch:
    """Delete the first rows of `kind` that are old and free, and then their objects, before anybody can store one of them again."""
    rows = (KINDS | AUDIT)[kind]
    patiently(connection, seconds=LONGEST_S)
    seen = connection.exec_driver_sql(
        f"select x.{rows.key} as key, coalesce({rows.old}, false) as old from {rows.table} x where x.{rows.key} > %(after)s"
        f" order by x.{rows.key} limit %(scan)s",
        {"before": before, "after": rows.first if after is None else after, "scan": SCAN},
    ).all()
    deleted = connection.exec_driver_sql(
        f"""
        with free as (
            select x.{rows.key} from {rows.table} x
             where x.{rows.key} = any(%(keys)s{rows.keys}) and {rows.old} and {rows.free}
             order by x.{rows.key} for update skip locked
        )
        delete from {rows.table} x using free where x.{rows.key} = free.{rows.key} returning {rows.object}
        """,
        {"before": before, "keys": [key for key, old in seen if old]},
    )
    objects = deleted.scalars().all()
    blobs.delete_objects([digest for digest in objects if digest is not None], code_url)
    goes_on = len(seen) == SCAN and (seen[-1].old or isinstance(rows.first, str))
    return Batch(len(objects), seen[-1].key if goes_on else None)


def delete_events(connection: Connection, before: datetime, after: tuple[datetime, int] = FIRST_RUN) -> Batch:
    """Delete the events of runs that ended before a moment; the runs stay."""
    seen = _ended_runs(connection, before, after)
    deleted = connection.exec_driver_sql("delete from event where dag_run_id = any(%s)", ([row.id for row in seen],))
    return Batch(deleted.rowcount, _place(seen[-1]) if seen else None)


def count(connection: Connection, before: datetime) -> dict[str, int]:
    """The number of rows that are old and free now, by kind."""
    patiently(connection, seconds=LONGEST_S)
    runs, instances = connection.exec_driver_sql(
        f"""
        select count(*), coalesce(sum((select count(*) from task_instance t where t.dag_run_id = r.id)), 0)::bigint
          from dag_run r where {FREE_RUN}
        """,
        {"before": before},
    ).one()
    counts = {"runs": runs, "task_instances": instances}
    for name, rows in KINDS.items():
        counts[name] = connection.exec_driver_sql(
            f"select count(*) from {rows.table} x where {rows.old} and {rows.free}", {"before": before}
        ).scalar_one()
    return counts


def refresh_statistics(connection: Connection) -> bool:
    """Analyze task_instance if its statistics show it as empty and it is not. Returns whether that was so.

    A vacuum after everything was deleted records a table with many pages and no rows. Until the next one, every index looks
    as cheap as the right one, and a report could read a whole run. Only the owner may analyze, so a function of the owner
    does it.
    """
    misled = connection.exec_driver_sql(
        """
        select reltuples = 0 and relpages > 0 and exists (select 1 from task_instance)
          from pg_class where oid = 'task_instance'::regclass
        """
    ).scalar_one()
    if misled:
        connection.exec_driver_sql("select analyze_task_instance()")
    return bool(misled)
