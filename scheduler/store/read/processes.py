"""The processes of the installation."""

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.db.clock import ALIVE, SILENT, alive
from scheduler.store.read.listing import Filters, Listing, Row, key

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
