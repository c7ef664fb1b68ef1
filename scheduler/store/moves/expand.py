"""none -> skipped, or more task instances: a mapped task gets one for each input, once these are known."""

from collections.abc import Sequence

from sqlalchemy import Connection

from scheduler.store.moves.fit import COMMON, COMMON_OF_INSTANCE

NOTHING = "there is nothing to map over"


def expand(connection: Connection, dag_run_id: int, task_no: int, count: int) -> None:
    """Expand the single unexpanded instance of a mapped task to `count`, or skip it if there is nothing to map over.

    The caller has the run locked, so no other process expands it.
    """
    first = connection.exec_driver_sql(
        """
        update task_instance
           set map_index = case when %(count)s > 0 then 0 else -1 end,
               state = case when %(count)s = 0 then 'skipped' end,
               ended_at = case when %(count)s = 0 then clock_timestamp() end,
               reason = case when %(count)s = 0 then %(nothing)s end
         where dag_run_id = %(run)s and task_no = %(no)s and map_index = -1 and state is null
        returning id
        """,
        {"run": dag_run_id, "no": task_no, "count": count, "nothing": NOTHING},
    ).scalar_one_or_none()
    if first is not None and count > 1:
        connection.exec_driver_sql(
            f"""
            insert into task_instance (dag_run_id, task_no, task_id, map_index, max_tries, {COMMON})
            select t.dag_run_id, t.task_no, t.task_id, n.map_index, t.max_tries, {COMMON_OF_INSTANCE}
              from task_instance t cross join generate_series(1, %(count)s - 1) n (map_index)
             where t.id = %(first)s
             order by n.map_index
            """,
            {"first": first, "count": count},
        )


def expand_later(connection: Connection, like: Sequence[int], retries: Sequence[int]) -> None:
    """Add an undecided instance with map index -1, as before the first expansion, to the task of each of these instances.

    Without the map index, whose default is -1: the role of a worker, which can clear runs, may not insert it.
    """
    connection.exec_driver_sql(
        f"""
        insert into task_instance (dag_run_id, task_no, task_id, max_tries, {COMMON})
        select t.dag_run_id, t.task_no, t.task_id, n.retries, {COMMON_OF_INSTANCE}
          from unnest(%(ids)s::bigint[], %(retries)s::int[]) n (id, retries) join task_instance t on t.id = n.id
         order by t.id
        """,
        {"ids": list(like), "retries": list(retries)},
    )


def grow(connection: Connection, like: Sequence[int], indexes: Sequence[int], retries: Sequence[int]) -> None:
    """Add instances with these map indexes to mapped tasks, as copies of existing instances."""
    connection.exec_driver_sql(
        f"""
        insert into task_instance (dag_run_id, task_no, task_id, map_index, max_tries, {COMMON})
        select t.dag_run_id, t.task_no, t.task_id, n.map_index, n.retries, {COMMON_OF_INSTANCE}
          from unnest(%(ids)s::bigint[], %(indexes)s::int[], %(retries)s::int[]) n (id, map_index, retries)
          join task_instance t on t.id = n.id
         order by t.id, n.map_index
        """,
        {"ids": list(like), "indexes": list(indexes), "retries": list(retries)},
    )


def replace(connection: Connection, ti_id: int, count: int) -> None:
    """End the undecided instance with map index -1 of a task that has `count` others: it goes, or is skipped if there is none."""
    if count:
        connection.exec_driver_sql("delete from task_instance where id = %s and state is null", (ti_id,))
    else:
        connection.exec_driver_sql(
            "update task_instance set state = 'skipped', reason = %s, ended_at = clock_timestamp() where id = %s and state is null",
            (NOTHING, ti_id),
        )
