"""The tables of reproductions: what they have published beside their originals, the results of comparisons, and their removal."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg2.extras
from sqlalchemy import Connection

from paceline.exceptions import NotFoundError
from paceline.states import RUN_UNFINISHED
from scheduler.store.db import rows
from scheduler.store.tables.comparisons import IS_COMPARABLE, IS_COMPARED, IS_GIVEN_UP

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
#: What the last try of each task instance read, and whether a task of the run had published that.
READ = """
select i.task_id, i.map_index, t.namespace, t.name, t.publication, t.metadata_location as location,
       exists (select from table_version v join task_instance o on o.id = v.task_instance_id and o.dag_run_id = t.dag_run_id
                where v.catalog = %(catalog)s and v.namespace = t.namespace and v.name = t.name
                  and v.metadata_location = t.metadata_location) as is_own
  from table_read t join task_instance i on i.id = t.task_instance_id and i.try_number = t.try_number
 where t.dag_run_id = %(run)s
"""
#: Schedulers that have no tables compare nothing. So tables that nobody has compared go, too, after so many times as long.
UNCOMPARED = 7
#: Of these tables, those that have a version from before a run. No version that is newer than a kept one is removed by age.
REACH_BACK = """
select distinct v.namespace || '.' || v.name from table_version v
 where v.catalog = %(catalog)s and v.namespace || '.' || v.name = any(%(tables)s)
   and v.publication <= (select min(least(n.publication, n.run_publication)) from table_pin n where n.dag_run_id = %(run)s)
"""
#: Those whose run was deleted, or ended some time ago without `keep`, and is compared if it can be.
ABANDONED = f"""
select p.dag_run_id as id, p.scratch from reproduction p left join dag_run r on r.id = p.dag_run_id
 where p.catalog = %(catalog)s
   and (r.id is null or not p.keep and r.state not in {RUN_UNFINISHED.sql}
                        and r.ended_at < clock_timestamp() - make_interval(secs => %(older_s)s)
                        and ({IS_COMPARED} or {IS_GIVEN_UP} or not {IS_COMPARABLE}
                             or r.ended_at < clock_timestamp() - make_interval(secs => {UNCOMPARED} * %(older_s)s)))
   and (r.id is null or exists (
        select from iceberg_namespace_properties n where n.catalog_name = p.catalog and n.namespace = p.scratch))
"""
#: The reproductions of a run, or the run itself if it is one, the newest first. A result of an earlier end counts no more.
OF_RUN = f"""
select p.dag_run_id as id, p.original_id, p.catalog, p.scratch, p.keep, p.ignored, r.dag_id, r.run_id, r.state, r.started_at,
       r.ended_at, o.run_id as original_run_id, o.state as original_state,
       case when {IS_COMPARED} then p.verdict end as verdict,
       case when p.tried_end = r.ended_at then p.failure end as failure,
       exists (
           select from iceberg_namespace_properties n where n.catalog_name = p.catalog and n.namespace = p.scratch) as has_tables
  from reproduction p join dag_run r on r.id = p.dag_run_id left join dag_run o on o.id = p.original_id
 where p.original_id = %(run)s or p.dag_run_id = %(run)s order by p.dag_run_id desc limit %(limit)s
"""
#: Not if the tables were dropped meanwhile, so that what was read may be a part of them.
STORE_VERDICT = """
update reproduction p set verdict = %(verdict)s, compared_end = r.ended_at from dag_run r
 where p.dag_run_id = %(id)s and r.id = p.dag_run_id and r.ended_at = %(ended_at)s
   and exists (select from iceberg_namespace_properties n where n.catalog_name = p.catalog and n.namespace = p.scratch)
"""
#: Reproductions of one run that are shown.
MOST = 50
RUN_OF = """
select r.state from dag_run r join reproduction p on p.dag_run_id = r.id where p.scratch = %(scratch)s for share of r
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
    #: Whether a task of the same run has published it.
    is_own: bool


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A reproduction beside its original, which may be deleted. `verdict` is the result of the comparison, if there is one."""

    id: int
    original_id: int
    catalog: str
    scratch: str
    keep: bool
    ignored: list[str]
    dag_id: str
    run_id: str
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    original_run_id: str | None
    original_state: str | None
    verdict: dict[str, Any] | None
    #: Why the last try of a scheduler to compare it failed.
    failure: str | None
    has_tables: bool

    @property
    def has_ended(self) -> bool:
        """Whether its run has ended, and was not cleared since."""
        return self.state not in RUN_UNFINISHED

    @property
    def result(self) -> str | None:
        """The result in one word; None if it has ended and there is none."""
        if not self.has_ended:
            return "pending"
        return None if self.verdict is None else "equal" if self.verdict["is_equal"] else "different"

    @property
    def original_runs(self) -> bool:
        """Whether its original was cleared, and has not ended again."""
        return self.original_state in RUN_UNFINISHED

    @property
    def why_none(self) -> str | None:
        """Why it is not compared now, if there is no result."""
        if self.original_run_id is None:
            return "Its original was deleted."
        if self.original_runs:
            return "Its original runs again, and is compared when it has ended."
        if not self.has_tables:
            return self.failure or "Its tables were deleted before anybody compared them."
        return None


def reproductions(connection: Connection, dag_run_id: int, limit: int = MOST) -> list[Reproduced]:
    """The newest reproductions of a run; of a reproduction, itself."""
    return rows.of_result(Reproduced, connection.exec_driver_sql(OF_RUN, {"run": dag_run_id, "limit": limit}))


def reproduction(connection: Connection, dag_run_id: int) -> Reproduced:
    """A reproduction. NotFoundError if its run was deleted."""
    found = next((one for one in reproductions(connection, dag_run_id, 1) if one.id == dag_run_id), None)
    if found is None:
        raise NotFoundError("The run of the reproduction was deleted.")
    return found


def store_verdict(connection: Connection, one: Reproduced, verdict: dict[str, Any]) -> bool:
    """Store the result of a comparison. False if the run was cleared or its tables were dropped meanwhile."""
    values = {"id": one.id, "ended_at": one.ended_at, "verdict": psycopg2.extras.Json(verdict)}
    return connection.exec_driver_sql(STORE_VERDICT, values).rowcount == 1


def published(connection: Connection, catalog: str, dag_run_id: int) -> list[Published]:
    """What a run published, in this order."""
    return rows.of_result(Published, connection.exec_driver_sql(PUBLISHED, {"catalog": catalog, "run": dag_run_id}))


def read(connection: Connection, catalog: str, dag_run_id: int) -> list[Read]:
    """What a run has read."""
    return rows.of_result(Read, connection.exec_driver_sql(READ, {"catalog": catalog, "run": dag_run_id}))


def reach_back(connection: Connection, catalog: str, dag_run_id: int, tables: Collection[str]) -> set[str]:
    """The tables of which nothing that a run published can have been removed."""
    if not tables:
        return set()
    values = {"catalog": catalog, "run": dag_run_id, "tables": list(tables)}
    return set(connection.exec_driver_sql(REACH_BACK, values).scalars())


def abandoned(connection: Connection, catalog: str, older_s: float) -> list[tuple[int, str]]:
    """The reproductions whose tables nobody needs, and their namespaces."""
    found = connection.exec_driver_sql(ABANDONED, {"catalog": catalog, "older_s": older_s})
    return [(row.id, row.scratch) for row in found]


def drop(connection: Connection, catalog: str, scratch: str, folder: str) -> list[str] | None:
    """Drop the tables of a reproduction, and the namespace. Returns the folders with its files, all below `folder`.

    None if its run was cleared, so that its tasks use them.
    """
    # Until the commit, clearing waits, and then finds no tables.
    state = connection.exec_driver_sql(RUN_OF, {"scratch": scratch}).scalar_one_or_none()
    if state is not None and state in RUN_UNFINISHED:
        return None
    values = {"catalog": catalog, "scratch": scratch, "below": f"{scratch}.", "folder": f"{folder}/"}
    for statement in DROP:
        connection.exec_driver_sql(statement, values)
    found = connection.exec_driver_sql(
        "update table_folder set used_at = clock_timestamp()"
        " where catalog = %(catalog)s and starts_with(location, %(folder)s) returning location",
        values,
    )
    return sorted(found.scalars())
