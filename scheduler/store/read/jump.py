"""What a part of a name leads to: DAGs, tasks, runs, connections and variables."""

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.read.listing import Filters, Row

#: Entries of each kind, and the newest runs that are searched.
MOST, MOST_RUNS = 8, 20_000


def filters(text: str, column: str) -> Filters:
    """Names that contain a text, as it is; the shortest ones are nearest."""
    chosen = Filters({"dag_id": "d.dag_id", "text": column})
    return chosen.where(f"position(lower({chosen.parameter(text)}) in lower({column})) > 0") if text else chosen


def dags(connection: Connection, text: str, tags: list[str] | None) -> list[Row]:
    """DAGs whose files exist."""
    chosen = filters(text, "d.dag_id").visible(tags).where("d.is_active")
    return _all(
        connection,
        "select d.dag_id, coalesce(s.is_paused, false) as is_paused from dag d left join dag_schedule s on s.dag_id = d.dag_id"
        f" {chosen.sql} order by length(d.dag_id), 1 limit {MOST}",
        chosen,
    )


def tasks(connection: Connection, text: str, tags: list[str] | None) -> list[Row]:
    """Tasks of the current versions, each with the newest run of its DAG."""
    chosen = filters(text, "e.task->>'task_id'").visible(tags).where("d.is_active")
    return _all(
        connection,
        f"""
        select t.dag_id, t.task_id, r.run_id
          from (select d.dag_id, e.task->>'task_id' as task_id from dag d join dag_version v on v.id = d.version_id
                 cross join lateral jsonb_array_elements(v.data->'tasks') e (task) {chosen.sql}
                 order by length(e.task->>'task_id'), 1 limit {MOST}) t
          cross join lateral (
               select r.run_id from dag_run r where r.dag_id = t.dag_id order by r.run_after desc, r.id desc limit 1) r
        """,
        chosen,
    )


def runs(connection: Connection, text: str, tags: list[str] | None) -> list[Row]:
    """The newest runs whose IDs contain the text."""
    chosen = filters(text, "d.run_id").visible(tags)
    return _all(
        connection,
        "select d.dag_id, d.run_id, d.state"
        f" from (select r.id, r.dag_id, r.run_id, r.state from dag_run r order by r.id desc limit {MOST_RUNS}) d"
        f" {chosen.sql} order by d.id desc limit {MOST}",
        chosen,
    )


def connections(connection: Connection, text: str) -> list[str]:
    chosen = filters(text, "d.conn_id")
    found = _all(connection, f"select d.conn_id from connection d {chosen.sql} order by 1 limit {MOST}", chosen)
    return [row["conn_id"] for row in found]


def variables(connection: Connection, text: str) -> list[str]:
    chosen = filters(text, "d.key")
    return [row["key"] for row in _all(connection, f"select d.key from variable d {chosen.sql} order by 1 limit {MOST}", chosen)]


def _all(connection: Connection, statement: str, chosen: Filters) -> list[Row]:
    return rows.dicts(connection.exec_driver_sql(statement, chosen.parameters))
