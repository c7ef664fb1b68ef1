"""Lists of import errors, audit entries, pools, variables, connections and backfills."""

from collections.abc import Collection

from sqlalchemy import Connection

from paceline.states import HOLDS_SLOTS, STARTED
from scheduler.store.queueing.limits import DEFERRED_SLOTS, USED_SLOTS, WAITING_SLOTS
from scheduler.store.read.listing import Filters, Listing, Row, key

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
        f" where vd.file = e.file and vd.bundle is null and vv.data->'tags' ?| {filters.parameter(list(tags))}::text[])"
    )


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
