"""What runs have read: each table as a try first saw it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.tables import folders
from scheduler.store.tables.pointers import Pinned

NOTE = """
insert into table_read (dag_run_id, task_instance_id, try_number, namespace, name, publication, snapshot_id, metadata_location)
select i.dag_run_id, i.id, %(try_number)s, %(namespace)s, %(name)s,
       (select v.publication from table_version v
         where v.catalog = %(catalog)s and v.namespace = %(namespace)s and v.name = %(name)s and v.metadata_location = %(base)s
           and v.publication <= %(publication)s
         order by v.publication desc limit 1),
       %(snapshot)s, %(base)s
  from task_instance i where i.id = %(ti_id)s
    on conflict do nothing
"""
OF_RUN = """
with run as (
    select id from dag_run where dag_id = %(dag_id)s and run_id = %(run_id)s
), used as (
    select t.task_instance_id, t.try_number, t.namespace, t.name, t.publication as read, t.snapshot_id, null::bigint as written
      from table_read t, run where t.dag_run_id = run.id
     union all
    select v.task_instance_id, v.try_number, v.namespace, v.name, null, null, v.publication
      from run join task_instance i on i.dag_run_id = run.id
      join table_version v on v.catalog = %(catalog)s and v.task_instance_id = i.id
)
select i.task_id, i.map_index, u.try_number, u.namespace || '.' || u.name as "table", max(u.read) as read_publication,
       max(u.snapshot_id) as snapshot_id, max(u.written) as written_publication
  from used u join task_instance i on i.id = u.task_instance_id
 group by 1, 2, 3, 4 order by 3, 1, 2, 4 limit %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Read:
    """A table as a try first saw it."""

    namespace: str
    name: str
    metadata_location: str
    snapshot_id: int | None


def note(connection: Connection, catalog: str, attempt: Pinned, folder: str, read: Read | None) -> None:
    """Note that a try uses the folder of a table, and has read the table; None: it has created it."""
    folders.use(connection, catalog, folder)
    if read is not None:
        connection.exec_driver_sql(
            NOTE,
            {
                "ti_id": attempt.task_instance_id, "try_number": attempt.try_number, "publication": attempt.publication,
                "catalog": catalog, "namespace": read.namespace, "name": read.name, "base": read.metadata_location,
                "snapshot": read.snapshot_id,
            },
        )  # fmt: skip


def of_run(connection: Connection, catalog: str, dag_id: str, run_id: str, limit: int) -> list[dict[str, Any]]:
    """The tables that the tries of a run have read and written, with the publications."""
    values = {"catalog": catalog, "dag_id": dag_id, "run_id": run_id, "limit": limit}
    return rows.dicts(connection.exec_driver_sql(OF_RUN, values))
