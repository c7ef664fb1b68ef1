"""What a person may change about a DAG: pause and unpause it, and have its file read again."""

from sqlalchemy import Connection

from scheduler.exceptions import NotFoundError
from scheduler.store.database import transaction


@transaction
def pause(connection: Connection, dag_id: str) -> bool:
    """Make no more runs of the DAG and start no more of its task instances; False if it was paused already."""
    return _set_paused(connection, dag_id, paused=True)


@transaction
def unpause(connection: Connection, dag_id: str) -> bool:
    """Let the DAG go on; False if it was not paused."""
    return _set_paused(connection, dag_id, paused=False)


@transaction
def reparse(connection: Connection, dag_id: str | None = None) -> list[str]:
    """Make the file of one DAG, or every file, due to be read now, changed or not; the files."""
    if dag_id is not None:
        _require(connection, dag_id)
    rows = connection.exec_driver_sql(
        """
        with due as (
            select path from dag_file
             where %(dag_id)s::text is null or path = (select file from dag where dag_id = %(dag_id)s)
             order by path for no key update
        )
        update dag_file f set next_parse_at = clock_timestamp() from due where f.path = due.path returning f.path
        """,
        {"dag_id": dag_id},
    )
    return sorted(row[0] for row in rows)


def _set_paused(connection: Connection, dag_id: str, *, paused: bool) -> bool:
    _require(connection, dag_id)
    changed = connection.exec_driver_sql(
        """
        insert into dag_schedule as s (dag_id, is_paused) values (%(dag_id)s, %(paused)s)
        on conflict (dag_id) do update set is_paused = excluded.is_paused where s.is_paused <> excluded.is_paused
        """,
        {"dag_id": dag_id, "paused": paused},
    )
    return changed.rowcount == 1


def _require(connection: Connection, dag_id: str) -> None:
    if connection.exec_driver_sql("select 1 from dag where dag_id = %s", (dag_id,)).first() is None:
        raise NotFoundError(f"There is no DAG {dag_id!r}: `paceline dags list` shows all.")
