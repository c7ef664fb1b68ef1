"""The progress of a Spark task, and the applications that it submitted."""

from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows

Row = dict[str, Any]


def of_instance(connection: Connection, ti_id: int) -> Row:
    """`progress` of the newest try with the time of the report, and `applications`, the oldest first."""
    progress = connection.exec_driver_sql(
        "select p.progress, p.seen_at from task_progress p join task_instance t on t.id = p.task_instance_id"
        " where t.id = %s and p.try_number = t.try_number",
        (ti_id,),
    )
    found = connection.exec_driver_sql(
        """
        select try_number, kind, deploy_mode, master, application_id, driver_id, ui_url, state, detail, submitted_at, ended_at
          from external_job where task_instance_id = %s order by id
        """,
        (ti_id,),
    )
    report = rows.first_dict(progress) or {"progress": None, "seen_at": None}
    return report | {"applications": rows.dicts(found)}
