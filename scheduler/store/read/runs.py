"""Lists of DAG runs, and one run, as the REST API shows them."""

from collections.abc import Collection

from sqlalchemy import Connection

from scheduler.store.dags.bundles import DAGS_FOLDER
from scheduler.store.db import rows
from scheduler.store.read.bundles import BUNDLE_OF
from scheduler.store.read.listing import ANY, Filters, Listing, Row

DURATION = "extract(epoch from coalesce(r.ended_at, clock_timestamp()) - r.started_at)"
#: The versions that a run had before it moved to another one, as JSON objects, the first one first.
EARLIER_VERSIONS = f"""(
    select json_agg(to_json(e) order by e.until)
      from (select x.until, v.id as version_id, v.dag_id, v.number as version_number, v.created_at as version_created_at,
                   {BUNDLE_OF}
              from run_version x join dag_version v on v.id = x.version_id where x.dag_run_id = r.id) e)"""
#: By default the oldest first.
RUNS = Listing(
    columns=f"""
        r.id, r.dag_id, r.run_id, r.run_type, r.state, r.logical_date, r.data_interval_start, r.data_interval_end, r.run_after,
        r.requested_state, r.conf, r.partition_key, r.partition_date,
        r.triggered_by, r.queued_at, r.started_at, r.ended_at, r.examined_at, r.clear_number, r.backfill_id,
        extract(epoch from coalesce(r.ended_at, case when r.state = 'running' then clock_timestamp() end) - r.started_at)::float
            as duration,
        case when r.state = 'running' then r.scheduling_error end as scheduling_error,
        v.id as version_id, v.number as version_number, v.created_at as version_created_at, {BUNDLE_OF},
        {EARLIER_VERSIONS} as earlier_versions,
        (select n.note from run_note n where n.dag_run_id = r.id) as note,
        case when r.run_type = 'reproduction' then (
            select o.run_id from reproduction p join dag_run o on o.id = p.original_id where p.dag_run_id = r.id) end
            as reproduction_of
    """,
    tables="dag_run r",
    joins={"v": "join dag_version v on v.id = r.version_id"},
    orders={
        "id": "r.id", "dag_id": "r.dag_id", "dag_run_id": "r.run_id", "run_id": "r.run_id", "state": "r.state",
        "logical_date": "r.logical_date", "run_after": "r.run_after", "start_date": "r.started_at", "end_date": "r.ended_at",
        "updated_at": "coalesce(r.ended_at, r.started_at, r.queued_at)", "queued_at": "r.queued_at", "run_type": "r.run_type",
        "duration": DURATION, "conf": "r.conf::text", "data_interval_start": "r.data_interval_start",
        "data_interval_end": "r.data_interval_end", "partition_date": "r.partition_date",
    },
    filtered={"version_number": "v.number", "partition_key": "r.partition_key", "user": "substr(r.triggered_by, 5)"},
    default_order=("id",),
    key="r.id",
)  # fmt: skip


def by_user(filters: Filters, pattern: str | None, prefix: str | None) -> Filters:
    """Runs that accounts with such names triggered."""
    if pattern or prefix:
        filters.where("starts_with(r.triggered_by, 'api:')")
    return filters.like("user", pattern, prefix)


def of_bundle(filters: Filters, name: str | None, version: str | None) -> Filters:
    """Runs that execute the code of this bundle, and of this version of it."""
    if name is None and version is None:
        return filters
    columns = {"name": f"coalesce(b.bundle, '{DAGS_FOLDER}')", "version": "b.number::text"}
    chosen = Filters(columns, parameters=filters.parameters).equals("name", name).equals("version", version)
    source = "dag_version d left join bundle_version b on b.id = d.bundle_version_id"
    return filters.where(f"r.version_id in (select d.id from {source} {chosen.sql})")


def consumed(filters: Filters, asset_pattern: str | None) -> Filters:
    """Runs that updates of such assets made."""
    if not asset_pattern or asset_pattern == ANY:
        return filters
    events = Filters({"uri": "e.uri"}, parameters=filters.parameters).matches("uri", asset_pattern)
    source = "dag_run_asset_event c join asset_event e on e.id = c.event_id"
    return filters.where(f"exists (select from {source} where c.dag_run_id = r.id and {' and '.join(events.conditions)})")


def run(connection: Connection, dag_id: str, run_id: str) -> Row:
    """One run. NotFoundError."""
    chosen = RUNS.filters().equals("dag_id", dag_id).equals("run_id", run_id)
    return RUNS.one(connection, chosen, f"DAG {dag_id!r} has no run {run_id!r}.")


def first_failures(connection: Connection, runs: Collection[int]) -> dict[int, Row]:
    """The task instance that failed first in each of these runs."""
    found = connection.exec_driver_sql(
        """
        select r.id, f.task_id, f.map_index, f.reason from unnest(%s::bigint[]) r (id)
         cross join lateral (select t.task_id, t.map_index, t.reason from task_instance t
                              where t.dag_run_id = r.id and t.state = 'failed' order by t.ended_at, t.id limit 1) f
        """,
        (list(runs),),
    )
    return {row["id"]: row for row in rows.dicts(found)}


def names(connection: Connection, filters: Filters) -> list[Row]:
    """The dag_id, run_id and state of all runs that the filters select, the oldest first."""
    found = connection.exec_driver_sql(
        f"select r.dag_id, r.run_id, r.state from {RUNS.source} {filters.sql} order by r.id", filters.parameters
    )
    return rows.dicts(found)


def counts_by_state(connection: Connection, filters: Filters) -> list[Row]:
    """How many runs of each DAG are in each state."""
    found = connection.exec_driver_sql(
        f"select r.dag_id, r.state, count(*) as count from dag_run r {filters.sql} group by 1, 2 order by 1, 2", filters.parameters
    )
    return rows.dicts(found)
