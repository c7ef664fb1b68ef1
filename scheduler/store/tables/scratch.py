"""The tables of reproductions: what they have published beside their originals, and their removal."""

from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.states import RUN_UNFINISHED
from scheduler.store.db import rows

#: What the tasks of a run published, with the version that each publication replaced and whether the run had made that too.
PUBLISHED = """
select v.namespace, v.name, v.publication, v.metadata_location as location, b.metadata_location as before,
       b.publication is not null and (b.dag_id, b.run_id) is not distinct from (v.dag_id, v.run_id) as follows_own,
       case when b.dag_id is null then b.published_by else b.dag_id || '.' || b.task_id || ' of run ' || b.run_id end as writer
  from task_instance i
  join table_version v on v.catalog = %(catalog)s and v.task_instance_id = i.id
  left join lateral (
       select * from table_version b
        where b.catalog = v.catalog and b.namespace = v.namespace and b.name = v.name and b.publication < v.publication
        order by b.publication desc limit 1) b on true
 where i.dag_run_id = %(run)s order by v.publication, v.namespace, v.name
"""
#: What the last try of each task instance read that no task of the run had published.
READ = """
select i.task_id, i.map_index, t.namespace, t.name, t.publication, t.metadata_location as location
  from table_read t join task_instance i on i.id = t.task_instance_id and i.try_number = t.try_number
 where t.dag_run_id = %(run)s
   and not exists (select from table_version v join task_instance o on o.id = v.task_instance_id and o.dag_run_id = t.dag_run_id
                    where v.catalog = %(catalog)s and v.namespace = t.namespace and v.name = t.name
                      and v.metadata_location = t.metadata_location)
"""
#: Those whose run was deleted, or ended some time ago without `keep`: the command that compares them was killed.
ABANDONED = f"""
select p.scratch from reproduction p left join dag_run r on r.id = p.dag_run_id
 where p.catalog = %(catalog)s
   and (r.id is null or not p.keep and r.state not in {RUN_UNFINISHED.sql}
                        and r.ended_at < clock_timestamp() - make_interval(secs => %(older_s)s))
   and (r.id is null or exists (
        select from iceberg_namespace_properties n where n.catalog_name = p.catalog and n.namespace = p.scratch))
"""


DROP = (
    "delete from iceberg_tables where catalog_name = %(catalog)s and starts_with(table_namespace, %(below)s)",
    "delete from iceberg_namespace_properties where catalog_name = %(catalog)s"
    " and (namespace = %(scratch)s or starts_with(namespace, %(below)s))",
    "delete from table_version where catalog = %(catalog)s and starts_with(namespace, %(below)s)",
    "delete from table_expiry where catalog = %(catalog)s and starts_with(namespace, %(below)s)",
    "delete from reproduction p where p.scratch = %(scratch)s and not exists (select from dag_run r where r.id = p.dag_run_id)",
)


@dataclass(frozen=True, slots=True)
class Published:
    """A publication of a table by a task of a run. None stands for no table."""

    namespace: str
    name: str
    publication: int
    location: str | None
    before: str | None
    #: Whether the version before is of the same run; else who made it.
    follows_own: bool
    writer: str | None


@dataclass(frozen=True, slots=True)
class Read:
    """A state of a table that a task instance has read."""

    task_id: str
    map_index: int
    namespace: str
    name: str
    publication: int | None
    location: str


def published(connection: Connection, catalog: str, dag_run_id: int) -> list[Published]:
    """What a run published, in this order."""
    return rows.of_result(Published, connection.exec_driver_sql(PUBLISHED, {"catalog": catalog, "run": dag_run_id}))


def read(connection: Connection, catalog: str, dag_run_id: int) -> list[Read]:
    """What a run has read, except its own tables."""
    return rows.of_result(Read, connection.exec_driver_sql(READ, {"catalog": catalog, "run": dag_run_id}))


def abandoned(connection: Connection, catalog: str, older_s: float) -> list[str]:
    """The namespaces of reproductions that nobody needs."""
    return list(connection.exec_driver_sql(ABANDONED, {"catalog": catalog, "older_s": older_s}).scalars())


def drop(connection: Connection, catalog: str, scratch: str, folder: str) -> list[str]:
    """Drop the tables of a reproduction, and the namespace. Returns the folders with its files, all below `folder`."""
    values = {"catalog": catalog, "scratch": scratch, "below": f"{scratch}.", "folder": f"{folder}/"}
    for statement in DROP:
        connection.exec_driver_sql(statement, values)
    found = connection.exec_driver_sql(
        "update table_folder set used_at = clock_timestamp()"
        " where catalog = %(catalog)s and starts_with(location, %(folder)s) returning location",
        values,
    )
    return sorted(found.scalars())
