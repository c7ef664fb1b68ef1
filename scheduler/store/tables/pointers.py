"""Where the metadata of each table is: now, and for a running try as of its publication with what it has written itself."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows

#: The end of the names of the metadata files of views, which the catalog gives: it tells a pointer to a view from one to a table.
VIEW = ".view.metadata.json"
#: The publication of a try that reads what is current: it is later than each.
ANY = 2**63 - 1
#: The same, while a batch of a streaming query has begun and is not published.
IN_BATCH = ANY - 1


def is_view(location: str | None) -> bool:
    """Whether a metadata file is that of a view."""
    return location is not None and location.endswith(VIEW)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A running try, for what it reads and writes: see `tries.of_token`."""

    id: int
    task_instance_id: int
    dispatch_id: str
    try_number: int
    publication: int
    #: That of its run, if all tasks of the run read one state.
    run_publication: int | None
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    #: Of a reproduction: the namespace for what it writes, its original, and the state that the same task has read there.
    scratch: str | None = None
    original_run_id: str | None = None
    original_publication: int | None = None

    def own(self, namespace: str) -> str:
        """The namespace in which the try writes what it calls this namespace."""
        return namespace if self.scratch is None else f"{self.scratch}.{namespace}"

    @property
    def name(self) -> str:
        """The task of the try, for people."""
        mapped = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}, try {self.try_number}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """The metadata file of a name. `location` is None if there is no such table."""

    location: str | None = None
    #: What the try started from; equal to `location` if it has not written to the table.
    base: str | None = None
    #: Whether a reproduction sees what its original has read; it writes to a copy of the metadata.
    is_original: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A new pointer of a name, with the one that it replaces. None stands for no table."""

    namespace: str
    name: str
    expected: str | None
    location: str | None
    #: The updates of a commit, which may be applied to a newer table; None if it creates, drops or renames the table.
    updates: list[Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    #: Whether the metadata file was written for this change; else it was there before.
    is_new: bool = True
    #: The mark of its request in the name of its metadata file; empty for a request that writes none.
    mark: str = ""


#: A version `v` that a try reads: that of the publication of its run or its own, or one that a task of its run published before it.
VISIBLE = """
    v.publication <= %(publication)s and (v.publication <= %(read)s or (v.dag_id = %(dag_id)s and v.run_id = %(run_id)s))
"""


#: Of a reproduction: what tasks of it have published before the try. A copy of what the original has read is no publication.
REPRODUCED = """
    v.namespace = %(own)s and v.publication <= %(publication)s and v.dag_id = %(dag_id)s and v.run_id = %(run_id)s
"""
#: What the task of the original has read, without what tasks of the original have published: the reproduction has its own.
ORIGINAL = """
    v.namespace = %(namespace)s and v.publication <= %(original)s
    and (v.dag_id, v.run_id) is distinct from (%(dag_id)s, %(original_run_id)s)
"""
OF_REPRODUCTION = f"""
select case when p.try_id is not null then p.location when r.publication is not null then r.metadata_location
            else o.metadata_location end as location,
       case when p.try_id is not null then p.base_location when r.publication is not null then r.metadata_location
            else o.metadata_location end as base,
       p.try_id is null and r.publication is null and o.metadata_location is not null as is_original
  from (values (1)) one (one)
  left join table_pending p on p.try_id = %(try)s and p.namespace = %(own)s and p.name = %(name)s
  left join lateral (
       select * from table_version v where v.catalog = %(catalog)s and v.name = %(name)s and {REPRODUCED}
        order by v.publication desc limit 1) r on true
  left join lateral (
       select * from table_version v where v.catalog = %(catalog)s and v.name = %(name)s and {ORIGINAL}
        order by v.publication desc limit 1) o on true
"""
NAMES_OF_REPRODUCTION = f"""
with candidate as (
    select table_name as name from iceberg_tables
     where catalog_name = %(catalog)s and table_namespace in (%(namespace)s, %(own)s)
     union select name from table_version where catalog = %(catalog)s and namespace in (%(namespace)s, %(own)s)
     union select name from table_pending where try_id = %(try)s and namespace = %(own)s)
select c.name, case when p.try_id is not null then p.location when r.publication is not null then r.metadata_location
                    else o.metadata_location end as location
  from candidate c
  left join table_pending p on p.try_id = %(try)s and p.namespace = %(own)s and p.name = c.name
  left join lateral (
       select * from table_version v where v.catalog = %(catalog)s and v.name = c.name and {REPRODUCED}
        order by v.publication desc limit 1) r on true
  left join lateral (
       select * from table_version v where v.catalog = %(catalog)s and v.name = c.name and {ORIGINAL}
        order by v.publication desc limit 1) o on true
 order by 1
"""


def _of(attempt: Pinned, catalog: str, namespace: str) -> dict[str, Any]:
    """The parameters of the conditions above, and the try."""
    read = attempt.publication if attempt.run_publication is None else attempt.run_publication
    return {
        "try": attempt.id, "publication": attempt.publication, "read": read, "dag_id": attempt.dag_id, "run_id": attempt.run_id,
        "catalog": catalog, "namespace": namespace, "own": attempt.own(namespace), "original": attempt.original_publication,
        "original_run_id": attempt.original_run_id,
    }  # fmt: skip


def of(connection: Connection, catalog: str, attempt: Pinned | None, namespace: str, name: str) -> Pointer:
    """The pointer of a name: the current one, or that of a running try."""
    if attempt is None:
        location = connection.exec_driver_sql(
            "select metadata_location from iceberg_tables where catalog_name = %s and table_namespace = %s and table_name = %s",
            (catalog, namespace, name),
        ).scalar_one_or_none()
        return Pointer(location, location)
    if attempt.scratch is not None:
        values = {**_of(attempt, catalog, namespace), "name": name}
        return rows.first(Pointer, connection.exec_driver_sql(OF_REPRODUCTION, values)) or Pointer()
    found = rows.first(
        Pointer,
        connection.exec_driver_sql(
            f"""
            select case when p.try_id is null then v.metadata_location else p.location end as location,
                   case when p.try_id is null then v.metadata_location else p.base_location end as base
              from (values (1)) one (one)
              left join table_pending p on p.try_id = %(try)s and p.namespace = %(namespace)s and p.name = %(name)s
              left join lateral (
                   select metadata_location from table_version v
                    where v.catalog = %(catalog)s and v.namespace = %(namespace)s and v.name = %(name)s and {VISIBLE}
                    order by v.publication desc limit 1) v on true
            """,
            {**_of(attempt, catalog, namespace), "name": name},
        ),
    )
    return found or Pointer()


def has_made(connection: Connection, catalog: str, attempt: Pinned | None, namespace: str, name: str, *, mark: str) -> bool:
    """Whether a request with this mark has changed the name: an earlier one was stored, and its answer was lost."""
    found: bool = connection.exec_driver_sql(
        """
        select exists (
               select from table_version where catalog = %(catalog)s and namespace = %(namespace)s and name = %(name)s
                  and position(%(mark)s in metadata_location) > 0)
            or exists (
               select from table_pending p, unnest(p.written) w (place)
                where p.try_id = %(try)s and p.namespace = %(namespace)s and p.name = %(name)s
                  and position(%(mark)s in w.place) > 0)
        """,
        {
            "try": None if attempt is None else attempt.id, "catalog": catalog, "name": name, "mark": f"-{mark}-",
            "namespace": namespace if attempt is None else attempt.own(namespace),
        },
    ).scalar_one()  # fmt: skip
    return found


def has_any(connection: Connection, catalog: str, attempt: Pinned | None, locations: list[str]) -> bool:
    """Whether one of these metadata files is or was current, or is what a running try has written."""
    found: bool = connection.exec_driver_sql(
        """
        select exists (select from table_version where catalog = %s and metadata_location = any(%s))
            or exists (select from table_pending where try_id = %s and written && %s::text[])
        """,
        (catalog, locations, None if attempt is None else attempt.id, locations),
    ).scalar_one()
    return found


def names(connection: Connection, catalog: str, attempt: Pinned | None, namespace: str, *, views: bool = False) -> list[str]:
    """The tables of a namespace by name, as a running try sees them or as they are now; or its views."""
    if attempt is None:
        found = connection.exec_driver_sql(
            "select table_name, metadata_location from iceberg_tables where catalog_name = %s and table_namespace = %s order by 1",
            (catalog, namespace),
        )
        return [name for name, location in found if is_view(location) is views]
    if attempt.scratch is not None:
        seen = connection.exec_driver_sql(NAMES_OF_REPRODUCTION, _of(attempt, catalog, namespace))
        return [name for name, location in seen if location is not None and is_view(location) is views]
    # A table of the try's publication is current, or a later publication has changed it.
    found = connection.exec_driver_sql(
        f"""
        with candidate as (
            select table_name as name from iceberg_tables where catalog_name = %(catalog)s and table_namespace = %(namespace)s
             union select name from table_version
              where catalog = %(catalog)s and namespace = %(namespace)s and publication > %(read)s
             union select name from table_pending where try_id = %(try)s and namespace = %(namespace)s)
        select c.name, coalesce(p.location, v.metadata_location) as location from candidate c
          left join table_pending p on p.try_id = %(try)s and p.namespace = %(namespace)s and p.name = c.name
          left join lateral (
               select metadata_location from table_version v
                where v.catalog = %(catalog)s and v.namespace = %(namespace)s and v.name = c.name and {VISIBLE}
                order by v.publication desc limit 1) v on true
         where case when p.try_id is null then v.metadata_location else p.location end is not null
         order by 1
        """,
        _of(attempt, catalog, namespace),
    )
    return [name for name, location in found if is_view(location) is views]
