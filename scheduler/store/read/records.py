"""Lists of what surrounds runs: import errors, audit, XComs, pools, variables, connections, backfills, assets, processes."""

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from paceline.states import HOLDS_SLOTS, STARTED
from scheduler.store.db import rows, sqlstates
from scheduler.store.db.liveness import ALIVE, SILENT, alive
from scheduler.store.queueing.limits import DEFERRED_SLOTS, USED_SLOTS, WAITING_SLOTS
from scheduler.store.read.listing import Filters, Listing, Row
from scheduler.store.runs import integrity


def key(column: str) -> str:
    """SQL: a number for a text that identifies a row, as JSON clients can read it (53 bits)."""
    return f"(hashtextextended({column}, 0) & 9007199254740991)"


# Import errors ----------------------------------------------------------------------------------------------------------

IMPORT_ERRORS = Listing(
    columns=f"{key('e.file')} as number, e.file, e.line, e.message, e.traceback, e.seen_at",
    tables="import_error e",
    orders={"id": "e.file", "import_error_id": "e.file", "timestamp": "e.seen_at", "filename": "e.file",
            "bundle_name": "e.file", "stacktrace": "e.message"},
    filtered={"number": key("e.file")},
    default_order=("id",),
    key="e.file",
)  # fmt: skip


def error_filters(tags: Collection[str] | None) -> Filters:
    """Files with a DAG that has one of these tags (None: all): the text of another file may be of another team."""
    filters = IMPORT_ERRORS.filters()
    if tags is None:
        return filters
    return filters.where(
        "exists (select from dag vd join dag_version vv on vv.id = vd.version_id"
        f" where vd.file = e.file and vv.data->'tags' ?| {filters.parameter(list(tags))}::text[])"
    )


# Audit ------------------------------------------------------------------------------------------------------------------

LOGICAL_DATE = "(select r.logical_date from dag_run r where r.dag_id = a.dag_id and r.run_id = a.run_id)"
AUDIT = Listing(
    columns=f"""
        a.id, a.at, a.account, a.address, a.event, a.dag_id, a.run_id, a.task_id, a.map_index, a.extra, a.status,
        {LOGICAL_DATE} as logical_date
    """,
    tables="audit a",
    orders={"id": "a.id", "event_log_id": "a.id", "when": "a.id", "dttm": "a.id", "dag_id": "a.dag_id", "task_id": "a.task_id",
            "run_id": "a.run_id", "event": "a.event", "owner": "a.account", "extra": "a.extra::text",
            "map_index": "a.map_index", "logical_date": LOGICAL_DATE},
    filtered={"at": "a.at"},
    default_order=("id",),
    key="a.id",
)  # fmt: skip

# XComs ------------------------------------------------------------------------------------------------------------------

XCOMS = Listing(
    columns="x.key, x.created_at, t.id as ti_id, t.task_id, t.map_index, r.dag_id, r.run_id, r.logical_date, r.run_after",
    tables="xcom x join task_instance t on t.id = x.task_instance_id join dag_run r on r.id = t.dag_run_id",
    orders={"key": "x.key", "dag_id": "r.dag_id", "run_id": "r.run_id", "task_id": "t.task_id", "map_index": "t.map_index",
            "timestamp": "x.created_at", "run_after": "r.run_after", "logical_date": "r.logical_date"},
    filtered={"run_key": "t.dag_run_id"},
    default_order=("dag_id", "task_id", "run_id", "map_index", "key"),
    key="(t.id, x.key)",
)  # fmt: skip
XCOMS_WITH_VALUES = replace(XCOMS, columns=f"x.value, {XCOMS.columns}")


def xcom_values(connection: Connection, filters: Filters) -> list[Row]:
    """XComs with their values, in the order of their task instances."""
    return rows.dicts(
        connection.exec_driver_sql(
            f"select {XCOMS_WITH_VALUES.columns} from {XCOMS.tables} {filters.sql} order by t.id, x.key", filters.parameters
        )
    )


def put_xcom(connection: Connection, ti_id: int, name: str, value: Any, *, new: bool) -> None:
    """Add or replace an XCom. ConflictError for a new one that is there, NotFoundError for another that is not."""
    stored = psycopg2.extras.Json(value)
    try:
        if new:
            done = connection.exec_driver_sql(
                "insert into xcom (task_instance_id, key, value) values (%s, %s, %s) on conflict do nothing", (ti_id, name, stored)
            )
        else:
            done = connection.exec_driver_sql(
                "update xcom set value = %s, created_at = clock_timestamp() where task_instance_id = %s and key = %s",
                (stored, ti_id, name),
            )
    except DataError as error:
        raise PacelineError(sqlstates.unstorable("The value", error)) from None
    if done.rowcount == 0:
        raise ConflictError(f"There is an XCom {name!r} already.") if new else NotFoundError(f"There is no XCom {name!r}.")
    integrity.note_results(connection, [ti_id])


def delete_xcom(connection: Connection, ti_id: int, name: str) -> None:
    """NotFoundError."""
    if connection.exec_driver_sql("delete from xcom where task_instance_id = %s and key = %s", (ti_id, name)).rowcount == 0:
        raise NotFoundError(f"There is no XCom {name!r}.")
    integrity.note_results(connection, [ti_id])


# Pools ------------------------------------------------------------------------------------------------------------------

POOLS = Listing(
    columns=f"""
        p.name, p.slots, p.description, p.include_deferred, p.queue, u.*, {USED_SLOTS} as occupied_slots,
        {WAITING_SLOTS} as scheduled_slots, {DEFERRED_SLOTS} as deferred_slots
    """,
    tables=f"""
        pool p cross join lateral (
            select coalesce(sum(t.pool_slots) filter (where t.state = 'queued'), 0)::int as queued_slots,
                   coalesce(sum(t.pool_slots) filter (where t.state in {STARTED.sql}), 0)::int as running_slots
              from task_instance t where t.pool = p.name and t.state in {HOLDS_SLOTS.sql}) u
    """,
    orders={"id": "p.name", "pool": "p.name", "name": "p.name", "slots": "p.slots"},
    default_order=("name",),
    key="p.name",
)

# Variables and connections ----------------------------------------------------------------------------------------------

#: With encrypted values.
VARIABLES = Listing(
    columns="v.key, v.value, v.description",
    tables="variable v",
    orders={"key": "v.key", "id": "v.key", "_val": "v.key", "description": "v.description", "is_encrypted": "v.key",
            "team_name": "v.key"},
    default_order=("key",),
    key="v.key",
)  # fmt: skip
#: With encrypted fields.
CONNECTIONS = Listing(
    columns="c.conn_id, c.conn_type, c.description, c.host, c.login, c.password, c.schema, c.port, c.extra",
    tables="connection c",
    orders={"conn_id": "c.conn_id", "connection_id": "c.conn_id", "id": "c.conn_id", "conn_type": "c.conn_type",
            "description": "c.description", "host": "c.host", "port": "c.port", "team_name": "c.conn_id"},
    default_order=("conn_id",),
    key="c.conn_id",
)  # fmt: skip

# Backfills --------------------------------------------------------------------------------------------------------------

BACKFILLS = Listing(
    columns="""
        b.id, b.dag_id, b.from_date, b.to_date, b.max_active_runs, b.reprocess, b.reverse, b.conf, b.is_paused, b.created_by,
        b.created_at, b.ended_at, b.cancelled,
        (select jsonb_build_object(
                    'waiting', count(*) filter (where o.state = 'waiting'),
                    'left_out', count(*) filter (where o.state = 'left_out'),
                    'queued', count(*) filter (where r.state = 'queued'), 'running', count(*) filter (where r.state = 'running'),
                    'success', count(*) filter (where r.state = 'success'), 'failed', count(*) filter (where r.state = 'failed'))
           from backfill_run o left join dag_run r on r.id = o.dag_run_id where o.backfill_id = b.id) as run_counts
    """,
    tables="backfill b",
    orders={"id": "b.id", "dag_id": "b.dag_id", "from_date": "b.from_date", "to_date": "b.to_date", "created_at": "b.created_at",
            "completed_at": "b.ended_at"},
    default_order=("id",),
    key="b.id",
)  # fmt: skip


def backfill(connection: Connection, number: int) -> Row:
    """NotFoundError."""
    return BACKFILLS.one(connection, BACKFILLS.filters().equals("id", number), f"There is no backfill {number}.")


# Assets -----------------------------------------------------------------------------------------------------------------

#: When an asset that was never updated became known.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ASSET_EVENTS = Listing(
    columns=f"""
        e.id, {key("e.uri")} as asset_number, e.uri, a.name, e.extra, e.dag_id, e.run_id, e.task_id, e.map_index, e.created_by,
        e.created_at, e.partition_key, coalesce((select jsonb_agg(jsonb_build_object(
                      'dag_id', r.dag_id, 'run_id', r.run_id, 'logical_date', r.logical_date,
                      'data_interval_start', r.data_interval_start, 'data_interval_end', r.data_interval_end, 'state', r.state,
                      'start_date', coalesce(r.started_at, r.queued_at), 'end_date', r.ended_at,
                      'partition_key', r.partition_key, 'triggering', true) order by r.id)
                    from dag_run_asset_event c join dag_run r on r.id = c.dag_run_id where c.event_id = e.id), '[]') as created_runs
    """,
    tables="asset_event e join asset a on a.uri = e.uri",
    orders={"id": "e.id", "timestamp": "e.created_at", "source_dag_id": "e.dag_id", "source_task_id": "e.task_id",
            "source_run_id": "e.run_id", "source_map_index": "e.map_index"},
    filtered={"asset_id": key("e.uri"), "name": "a.name"},
    default_order=("timestamp",),
    key="e.id",
)  # fmt: skip


def events_of_run(dag_run_id: int) -> Filters:
    """Updates that a run consumed."""
    filters = ASSET_EVENTS.filters()
    return filters.where(
        f"e.id in (select c.event_id from dag_run_asset_event c where c.dag_run_id = {filters.parameter(dag_run_id)})"
    )


def asset_numbers(connection: Connection, uris: list[str]) -> dict[str, int]:
    """The number of each asset, by URI."""
    numbers = connection.exec_driver_sql(f"select u as uri, {key('u')} as number from unnest(%s::text[]) u", (uris,))
    return {row.uri: row.number for row in numbers}


def asset_facts(connection: Connection) -> dict[str, Row]:
    """By URI of an asset that was updated: since when it is known, and the number of its newest update."""
    facts = connection.exec_driver_sql(
        "select a.uri, a.created_at, (select max(e.id) from asset_event e where e.uri = a.uri) as last_id from asset a"
    )
    return {row["uri"]: row for row in rows.dicts(facts)}


def queued_events(connection: Connection, *, uri: str | None, dag_id: str | None, before: datetime | None) -> list[Row]:
    """Updates that DAGs wait to consume."""
    filters = _waiting(uri, dag_id, before)
    found = connection.exec_driver_sql(
        f"select w.dag_id, w.uri, {key('w.uri')} as asset_number, max(e.created_at) as created_at"
        f" from asset_waiting w join asset_event e on e.id = w.event_id {filters.sql} group by 1, 2 order by 1, 2",
        filters.parameters,
    )
    return rows.dicts(found)


def delete_queued_events(connection: Connection, *, uri: str | None, dag_id: str | None, before: datetime | None) -> int:
    """Drop updates that DAGs wait to consume, and return how many."""
    filters = _waiting(uri, dag_id, before).where("e.id = w.event_id")
    return connection.exec_driver_sql(f"delete from asset_waiting w using asset_event e {filters.sql}", filters.parameters).rowcount


def _waiting(uri: str | None, dag_id: str | None, before: datetime | None) -> Filters:
    filters = Filters({"uri": "w.uri", "dag_id": "w.dag_id", "at": "e.created_at"})
    return filters.equals("uri", uri).equals("dag_id", dag_id).between("at", {"lt": before})


# Processes --------------------------------------------------------------------------------------------------------------

PROCESSES = Listing(
    columns=f"""
        {key("p.id")} as number, p.id, p.kind, p.name, p.host, p.pid, p.queues, p.concurrency, p.started_at, p.heartbeat_at,
        p.stopped_at, case when p.stopped_at is not null then 'success' when {SILENT} then 'failed' else 'running' end as state
    """,
    tables="process p",
    orders={"id": "p.started_at", "start_date": "p.started_at", "end_date": "p.stopped_at", "latest_heartbeat": "p.heartbeat_at",
            "job_type": "p.kind", "hostname": "p.host", "state": "p.stopped_at", "dag_id": "p.kind",
            "executor_class": "p.kind", "unixname": "p.host"},
    filtered={"kind": "p.kind", "host": "p.host"},
    default_order=("start_date",),
    key="p.id",
)  # fmt: skip
#: The condition of each of Airflow's job states.
JOB_STATES = {"success": "p.stopped_at is not null", "running": ALIVE, "failed": SILENT}
#: For the timeout `k.silent` of a kind of processes.
ALIVE_OF_KIND = alive("k.silent")


def process_filters(silent_after_s: float, *, alive: bool | None = None, state: str | None = None) -> Filters:
    """Schedulers, workers and waiters that are alive or not, or in one of Airflow's job states."""
    filters = PROCESSES.filters()
    filters.parameters["silent"] = silent_after_s
    if alive is not None:
        filters.where(ALIVE if alive else f"not ({ALIVE})")
    return filters if state is None else filters.where(JOB_STATES.get(state, "false"))


def heartbeats(connection: Connection, silent_after_s: dict[str, float]) -> dict[str, Row]:
    """By kind of process: the newest heartbeat, and whether one is alive."""
    found = connection.exec_driver_sql(
        f"""
        select k.kind, max(p.heartbeat_at) as heartbeat_at,
               coalesce(bool_or({ALIVE_OF_KIND}), false) as alive
          from unnest(%s::text[], %s::float[]) k (kind, silent) left join process p on p.kind = k.kind group by 1
        """,
        (list(silent_after_s), list(silent_after_s.values())),
    )
    return {row["kind"]: row for row in rows.dicts(found)}
