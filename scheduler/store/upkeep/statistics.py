"""Keeps PostgreSQL's statistics of the table task_instance from misleading its planner."""

from sqlalchemy import Connection


def refresh(connection: Connection) -> bool:
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
