"""The changes that people make to a DAG: pause, unpause, and parse its file again."""

from collections.abc import Collection

from sqlalchemy import Connection

from paceline.exceptions import no_dag
from paceline.states import RUN_FINISHED

#: The place in time of the run `{0}` among the runs of its DAG: runs without a logical date are placed by their run_after.
ORDER = "coalesce({0}.logical_date, {0}.run_after)"
#: The run `{0}` comes after the run `{1}` of the same DAG.
AFTER = f"({ORDER}, {{0}}.id) > ({ORDER.replace('0', '1')}, {{1}}.id)"

#: The key of the data of a version with this limit of a DAG.
MOST_FAILED = "max_consecutive_failed_dag_runs"


def pause(connection: Connection, dag_id: str) -> bool:
    """Create no more runs of the DAG, and start no more of its task instances; False if it was paused already."""
    return _set_paused(connection, dag_id, paused=True)


def unpause(connection: Connection, dag_id: str) -> bool:
    """Resume the DAG; False if it was not paused."""
    return _set_paused(connection, dag_id, paused=False)


def reparse(connection: Connection, dag_id: str | None = None, path: str | None = None) -> list[str]:
    """Make the file of one DAG, this file, or every file due for parsing now, and return the files."""
    if dag_id is not None:
        _require(connection, dag_id)
    rows = connection.exec_driver_sql(
        """
        with due as (
            select path from dag_file
             where (%(dag_id)s::text is null or path = (select file from dag where dag_id = %(dag_id)s))
               and path = coalesce(%(path)s, path)
             order by path for no key update
        )
        update dag_file f set next_parse_at = clock_timestamp() from due where f.path = due.path returning f.path
        """,
        {"dag_id": dag_id, "path": path},
    )
    return sorted(rows.scalars())


def set_favorite(connection: Connection, account_id: int, dag_id: str, *, favorite: bool) -> None:
    """Add a DAG to the favorites of an account, or take it out."""
    statement = (
        "insert into favorite (account_id, dag_id) values (%s, %s) on conflict do nothing"
        if favorite
        else "delete from favorite where account_id = %s and dag_id = %s"
    )
    connection.exec_driver_sql(statement, (account_id, dag_id))


def pause_if_failing(connection: Connection, closed: Collection[int]) -> dict[str, int]:
    """Pause the DAGs of these runs whose last max_consecutive_failed_dag_runs ended runs, in their order, all failed.

    Returns that number for each paused DAG. This is not in the transaction that closes the run, because a dag_schedule row
    must be locked before a dag_run row.
    """
    # The second statement begins with the locks: until then, a person may clear a run that failed.
    held = connection.exec_driver_sql(
        f"""
        select s.dag_id
          from dag_schedule s join dag d on d.dag_id = s.dag_id join dag_version v on v.id = d.version_id
         where s.dag_id in (select dag_id from dag_run where id = any(%(closed)s::bigint[]) and state = 'failed')
           and (v.data->>'{MOST_FAILED}')::int > 0 and not s.is_paused
         order by s.dag_id for no key update of s
        """,
        {"closed": list(closed)},
    )
    if not (dag_ids := list(held.scalars())):
        return {}
    rows = connection.exec_driver_sql(
        f"""
        with limited as (
            select d.dag_id, (v.data->>'{MOST_FAILED}')::int as most
              from dag d join dag_version v on v.id = d.version_id
             where d.dag_id = any(%(held)s)
        ), failing as (
            select l.dag_id, l.most from limited l
             cross join lateral (
                   select count(*) filter (where state = 'failed') as failed
                     from (select r.state from dag_run r where r.dag_id = l.dag_id and r.state in {RUN_FINISHED.sql}
                              and r.run_type <> 'reproduction'
                            order by {ORDER.format("r")} desc, r.id desc limit l.most) newest) n
             where l.most > 0 and n.failed = l.most
        )
        update dag_schedule s set is_paused = true from failing f where s.dag_id = f.dag_id returning s.dag_id, f.most
        """,
        {"held": dag_ids},
    )
    return {row.dag_id: row.most for row in rows}


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
        raise no_dag(dag_id)
