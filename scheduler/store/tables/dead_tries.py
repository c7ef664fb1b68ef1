"""Tries that ended without a publication: what they wrote, which nobody sees any more."""

from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.states import DELAYED, HOLDS_SLOTS, SUSPENDED, WAITS_FOR_WORKER, States
from scheduler.store.db import rows

#: A task instance in one of these may continue with the same try, or the next try with the Spark application of this one.
MAY_CONTINUE = States(HOLDS_SLOTS | WAITS_FOR_WORKER | SUSPENDED | DELAYED)
#: A try is dead if its task instance is gone, or has ended. One that waits may continue, and the next try may take its Spark
#: application over, also after it has waited for a slot for long.
DEAD = f"""
select t.id from table_try t
  left join task_instance i on i.id = t.task_instance_id
 where t.id > %s and t.created_at < clock_timestamp() - %s * interval '1 second'
   and (i.id is null or i.try_number - t.try_number not in (0, 1)
        or coalesce(i.state, '') not in {MAY_CONTINUE.sql})
 order by t.id limit %s
"""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a dead try wrote for a name."""

    namespace: str
    name: str
    base_location: str | None
    written: list[str]


def dead(connection: Connection, after: int, older_s: float, limit: int) -> list[int]:
    """Up to `limit` dead tries that are older than `older_s` seconds, after this one, by ID."""
    return list(connection.exec_driver_sql(DEAD, (after, older_s, limit)).scalars())


def leftovers(connection: Connection, try_id: int) -> list[Leftover]:
    """What a dead try wrote."""
    found = connection.exec_driver_sql(
        "select namespace, name, base_location, written from table_pending where try_id = %s", (try_id,)
    )
    return rows.of_result(Leftover, found)


def published(connection: Connection, catalog: str, locations: list[str]) -> set[str]:
    """Those of these metadata files that are or were current."""
    found = connection.exec_driver_sql(
        """
        select metadata_location from table_version where catalog = %s and metadata_location = any(%s)
         union select metadata_location from iceberg_tables where catalog_name = %s and metadata_location = any(%s)
        """,
        (catalog, locations, catalog, locations),
    )
    return set(found.scalars())


def forget(connection: Connection, try_id: int) -> None:
    """Delete the row of a dead try, after its files."""
    connection.exec_driver_sql("delete from table_try where id = %s", (try_id,))
