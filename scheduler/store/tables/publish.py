"""Publication: pointers become current together, if each still replaces what it was written on.

A publication first takes the lock of the counter, in a statement of its own. The statement that follows begins when the lock
is held, so it sees every earlier publication. In the report of a task, the locks of task instances come before this one.

A request that has an idempotency key is done once, however often a client that got no answer sends it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from scheduler.store.db import rows
from scheduler.store.tables.pointers import ANY, IN_BATCH, VIEW, Change, Pinned

#: The lock of the counter, unless the try has written nothing.
HOLD_FOR_TRY = """
select number from table_publication
 where exists (select from table_pending p join table_try t on t.id = p.try_id
                where t.task_instance_id = %(ti_id)s and t.dispatch_id = %(dispatch_id)s)
   for update
"""
HOLD = "select number from table_publication for update"
_OF_TRY = """
    select p.namespace, p.name, p.base_location, p.location, p.facts - 'leaves' as facts
      from table_pending p join table_try t on t.id = p.try_id
     where t.task_instance_id = %(ti_id)s and t.dispatch_id = %(dispatch_id)s and p.location is distinct from p.base_location
"""
#: What a running try has written to some names, or to all of them with NULL. A scheduler takes the mark: see dags/outlets.py.
_OF_NAMES = """
    select p.namespace, p.name, p.base_location, p.location, (p.facts - 'leaves') || '{"streams": true}' as facts
      from table_pending p
     where p.try_id = %(try)s and p.location is distinct from p.base_location
       and (%(names)s::text[] is null or p.namespace || '.' || p.name = any(%(names)s))
"""
_OF_CHANGES = """
    select * from jsonb_to_recordset(%(changes)s) c (namespace text, name text, base_location text, location text, facts jsonb)
"""
#: How Iceberg's JDBC catalog tells views from tables.
_KIND = f"case when right(c.location, {len(VIEW)}) = '{VIEW}' then 'VIEW' else 'TABLE' end"
_PUBLISH = """
with chosen as materialized ({chosen}),
moved as materialized (
    select c.namespace, c.name, c.location, i.metadata_location as current,
           v.published_by, v.dag_id, v.run_id, v.task_id, v.map_index, v.try_number
      from chosen c
      left join iceberg_tables i
             on i.catalog_name = %(catalog)s and i.table_namespace = c.namespace and i.table_name = c.name
      left join lateral (
           select * from table_version v
            where v.catalog = %(catalog)s and v.namespace = c.namespace and v.name = c.name
            order by v.publication desc limit 1) v on true
     where i.metadata_location is distinct from c.base_location
), next as (
    update table_publication set number = number + 1
     where exists (select from chosen) and not exists (select from moved) returning number
), dropped as (
    delete from iceberg_tables i using chosen c, next
     where c.location is null and i.catalog_name = %(catalog)s and i.table_namespace = c.namespace and i.table_name = c.name
), current as (
    insert into iceberg_tables as i (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
    select %(catalog)s, c.namespace, c.name, c.location, {kind} from chosen c, next where c.location is not null
    on conflict (catalog_name, table_namespace, table_name) do update
       set iceberg_type = excluded.iceberg_type,
           metadata_location = excluded.metadata_location, previous_metadata_location = i.metadata_location
), noted as (
    insert into table_version (catalog, namespace, name, publication, metadata_location, published_by, facts,
                               task_instance_id, dag_id, run_id, task_id, map_index, try_number)
    select %(catalog)s, c.namespace, c.name, next.number, c.location, %(by)s, c.facts,
           %(ti_id)s, %(dag_id)s, %(run_id)s, %(task_id)s, %(map_index)s, %(try_number)s
      from chosen c, next
){ended}
select (select number from next) as publication, {in_batch} as in_batch, m.* from (values (1)) one (one) left join moved m on true
"""
#: Also ends the try: its token, and what it has written. A try that leaves files, such as those of a table that it created and
#: dropped, keeps its row until they are deleted; nothing of it remains to be published.
PUBLISH_TRY = _PUBLISH.format(
    chosen=_OF_TRY,
    kind=_KIND,
    in_batch=f"""exists (
        select from chosen, table_try t
         where t.task_instance_id = %(ti_id)s and t.dispatch_id = %(dispatch_id)s and t.publication = {IN_BATCH})""",
    ended=""", done as materialized (
    select t.id, exists (select from table_pending p where p.try_id = t.id and p.facts ? 'leaves') as leaves from table_try t
     where t.task_instance_id = %(ti_id)s and t.dispatch_id = %(dispatch_id)s and not exists (select from moved)
), ended as (
    delete from table_try t using done where t.id = done.id and not done.leaves
), kept as (
    update table_pending p set base_location = p.location from done where p.try_id = done.id and done.leaves
)""",
)
#: The try goes on, and reads what is current from now on.
PUBLISH_NAMES = _PUBLISH.format(
    chosen=_OF_NAMES,
    kind=_KIND,
    in_batch="false",
    ended=""", published as (
    delete from table_pending p using chosen c, next
     where p.try_id = %(try)s and p.namespace = c.namespace and p.name = c.name and not p.facts ? 'leaves'
), kept as (
    update table_pending p set base_location = p.location, updates = null, facts = '{"leaves": true}' from chosen c, next
     where p.try_id = %(try)s and p.namespace = c.namespace and p.name = c.name and p.facts ? 'leaves'
), moved_on as (
    update table_try t set publication = case t.publication when %(in_batch)s then t.publication else %(any)s end
      from next where t.id = %(try)s
)""",
)
PUBLISH_CHANGES = _PUBLISH.format(chosen=_OF_CHANGES, kind=_KIND, in_batch="false", ended="")
#: What the tables know of a publication that no task made.
NO_TASK = dict.fromkeys(("ti_id", "dag_id", "run_id", "task_id", "map_index", "try_number"))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the answer: the number of the publication, or a table that has changed since and who changed it."""

    publication: int | None = None
    #: Whether the try has written in a batch of a streaming query that was not published.
    in_batch: bool = False
    namespace: str | None = None
    name: str | None = None
    #: What the try has written, and what is current; None stands for no table.
    location: str | None = None
    current: str | None = None
    published_by: str | None = None
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None

    @property
    def writer(self) -> str:
        """Who changed the table, for people."""
        if self.dag_id is None:
            return self.published_by or "a program outside Paceline"
        mapped = f"[{self.map_index}]" if self.map_index is not None and self.map_index >= 0 else ""
        return f"{self.dag_id}.{self.task_id}{mapped} of run {self.run_id}, try {self.try_number}"


def publish(connection: Connection, catalog: str, changes: Sequence[Change], *, by: str) -> tuple[int | None, list[Row]]:
    """Publish changes that no task made. Returns the number of the publication, or None and the tables that had changed."""
    connection.exec_driver_sql(HOLD)
    chosen = [
        {"namespace": one.namespace, "name": one.name, "base_location": one.expected, "location": one.location, "facts": one.facts}
        for one in changes
    ]  # fmt: skip
    parameters: Mapping[str, Any] = {**NO_TASK, "catalog": catalog, "changes": json.dumps(chosen), "by": by}
    answer = rows.of_result(Row, connection.exec_driver_sql(PUBLISH_CHANGES, dict(parameters)))
    return answer[0].publication, moved(answer)


def publish_names(
    connection: Connection, catalog: str, attempt: Pinned, names: Sequence[tuple[str, str]] | None
) -> tuple[int | None, list[Row]]:
    """Publish what a running try has written to these names, or to all with None. The try is locked before, by `tries.write`.

    Returns as `publish` does, and None without tables if there is nothing to publish.
    """
    connection.exec_driver_sql(HOLD)
    parameters = {
        "try": attempt.id, "any": ANY, "in_batch": IN_BATCH, "catalog": catalog, "by": f"{attempt.dag_id}.{attempt.task_id}",
        "names": None if names is None else [f"{attempt.own(namespace)}.{name}" for namespace, name in names],
        "ti_id": attempt.task_instance_id, "dag_id": attempt.dag_id, "run_id": attempt.run_id, "task_id": attempt.task_id,
        "map_index": attempt.map_index, "try_number": attempt.try_number,
    }  # fmt: skip
    answer = rows.of_result(Row, connection.exec_driver_sql(PUBLISH_NAMES, parameters))
    return answer[0].publication, moved(answer)


def moved(answer: Sequence[Row]) -> list[Row]:
    """The tables that stood in the way of a publication."""
    return [row for row in answer if row.name is not None]


def request_digest(caller: str, key: str, *request: str) -> bytes:
    """What is stored of a request. An equal request of another caller, or with another key, has another digest."""
    return hashlib.sha256(json.dumps([caller, key, *request]).encode("utf-8", "surrogatepass")).digest()


def request_is_done(connection: Connection, request: bytes) -> bool:
    """Whether a request has been done."""
    found = connection.exec_driver_sql("select 1 from table_request where digest = %s", (request,))
    return found.first() is not None


def note_request(connection: Connection, request: bytes | None) -> bool:
    """Note that a request is done by this transaction; False if another one did it, for which this waits."""
    if request is None:
        return True
    noted = connection.exec_driver_sql("insert into table_request (digest) values (%s) on conflict do nothing", (request,))
    return noted.rowcount == 1
