"""What PostgreSQL believes about the hot table, kept from being nonsense."""

from sqlalchemy import Connection


def refresh(connection: Connection) -> bool:
    """Analyze task_instance if it is believed to be empty and is not; whether it was.

    A vacuum just after everything was deleted leaves a table of many pages and no row. Until the next one every index of it
    looks as cheap as the right one, and a report could read a whole run.
    Only the owner may analyze, so a function of the owner's does it.
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
