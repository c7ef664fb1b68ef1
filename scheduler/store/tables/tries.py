"""The tries that may write tables: their tokens, and what they have written.

A token is valid while its task instance is running with the dispatch of the try. Only its hash is stored.
"""

import hashlib
import json
import secrets
from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.states import DELAYED, HOLDS_SLOTS, SUSPENDED, WAITS_FOR_WORKER, States
from scheduler.store.db import fencing, rows
from scheduler.store.tables.pointers import ANY, IN_BATCH, VIEW, Change, Pinned

#: The facts that are those of all commits of a try together.
SUMMED = ["added_records", "deleted_records", "added_data_files", "added_files_size", "schema_change"]
#: Of a running try: in the first use, and when a later dispatch of the same try continues, which keeps what the try has written.
#: If the DAG has read_at="run_start", it also pins the run to the publication at its start. What the last try of a task instance
#: reads is kept for reproductions. As fencing.guarded.
GIVE = f"""
with current as ({fencing.CURRENT}),
run as (
    select r.id, r.started_at
      from current c join task_instance i on i.id = c.id join dag_run r on r.id = i.dag_run_id
      join dag_version v on v.id = r.version_id
     where v.data->>'read_at' = 'run_start' and r.run_type <> 'reproduction'
), pin as (
    insert into table_run as t (dag_run_id, started_at, publication)
    select run.id, run.started_at,
           case when exists (select from table_run o where o.dag_run_id = run.id and o.started_at = run.started_at) then 0
                else coalesce((select max(publication) from table_version where published_at <= run.started_at), 0) end
      from run
    on conflict (dag_run_id) do update
       set publication = case when t.started_at = excluded.started_at then t.publication else excluded.publication end,
           started_at = excluded.started_at
    returning publication
), written as (
    insert into table_try (token_hash, task_instance_id, try_number, dispatch_id, publication, run_publication)
    select %s, %s, %s, %s, p.number, (select publication from pin) from current, table_publication p
    on conflict (task_instance_id, try_number) do update
       set token_hash = excluded.token_hash, dispatch_id = excluded.dispatch_id
    returning task_instance_id, publication, run_publication
), kept as (
    insert into table_pin (dag_run_id, task_instance_id, publication, run_publication)
    select i.dag_run_id, i.id, least(w.publication, p.number), w.run_publication
      from written w join task_instance i on i.id = w.task_instance_id cross join table_publication p
    on conflict (dag_run_id, task_instance_id) do update
       set publication = excluded.publication, run_publication = excluded.run_publication, pinned_at = excluded.pinned_at
)
select (select count(*) from written) from current
"""
#: The try reads what is current from now on. A batch that has begun stays so.
READS_CURRENT = f"case t.publication when {IN_BATCH} then {IN_BATCH} else {ANY} end"
FOLLOW = fencing.guarded(
    f"""
    update table_try t set publication = {READS_CURRENT} from current
     where t.task_instance_id = %s and t.try_number = %s returning t.id
    """
)
#: Whether an earlier dispatch of a try was given a token; then this dispatch publishes what it has written.
CONTINUE = fencing.guarded(
    "update table_try t set dispatch_id = %s from current where t.task_instance_id = %s and t.try_number = %s returning t.id",
)
#: What the try has written on tables that have changed since, and can be applied to them.
MOVABLE = """
select p.namespace, p.name, p.base_location, p.location, p.updates, i.metadata_location as current
  from table_pending p
  join table_try t on t.id = p.try_id
  left join iceberg_tables i on i.catalog_name = %s and i.table_namespace = p.namespace and i.table_name = p.name
 where t.task_instance_id = %s and t.dispatch_id = %s
   and i.metadata_location is distinct from p.base_location and p.location is distinct from p.base_location
 order by p.namespace, p.name
"""
#: Of a name under which a try leaves files that its publication does not need: gc deletes them after it. See publish.py.
LEAVES = '{"leaves": true}'
#: They stand on the newer table now.
MOVE = fencing.guarded(
    f"""
    update table_pending p
       set base_location = %s, location = %s, written = p.written || %s::text, facts = %s::jsonb || '{LEAVES}'
      from table_try t, current
     where t.id = p.try_id and t.task_instance_id = %s and t.dispatch_id = %s and p.namespace = %s and p.name = %s
       and p.location = %s
    returning p.try_id
    """
)
#: They are not to be published.
GIVE_UP = fencing.guarded(
    f"""
    update table_pending p set base_location = %s, location = %s, facts = '{LEAVES}'
      from table_try t, current
     where t.id = p.try_id and t.task_instance_id = %s and t.dispatch_id = %s and p.namespace = %s and p.name = %s
       and p.location = %s
    returning p.try_id
    """
)
#: A try continues with a Spark application that an earlier one has started and that holds the token of that try.
TAKE_OVER = fencing.guarded(
    """
    update table_try t set dispatch_id = %s, try_number = %s from current
     where t.id = (select max(id) from table_try where task_instance_id = %s) returning t.id
    """
)
#: The task of a reproduction reads what the same task of the original has read; a task that had read nothing there reads what the
#: first one has. A reproduction whose original is gone has no token: it would write the tables of everybody.
BY_HASH = """
select t.id, t.task_instance_id, t.dispatch_id::text, t.try_number, t.publication, t.run_publication,
       r.dag_id, r.run_id, i.task_id, i.map_index, p.scratch, o.run_id as original_run_id, k.publication as original_publication
  from table_try t
  join task_instance i on i.id = t.task_instance_id and i.dispatch_id = t.dispatch_id and i.state = 'running'
  join dag_run r on r.id = i.dag_run_id
  left join reproduction p on p.dag_run_id = r.id
  left join dag_run o on o.id = p.original_id
  left join lateral (
       select least(n.publication, n.run_publication) as publication
         from table_pin n join task_instance s on s.id = n.task_instance_id
        where n.dag_run_id = o.id
        order by (s.task_id, s.map_index) = (i.task_id, i.map_index) desc, 1 limit 1) k on true
 where t.token_hash = %s and (r.run_type <> 'reproduction' or k.publication is not null)
"""
#: What a task is called in the lists of a namespace. See scheduler/catalog/access.py.
NAMES = """
select 'dag:' || r.dag_id from dag_run r join task_instance i on i.dag_run_id = r.id where i.id = %(ti_id)s
 union all
select 'tag:' || tag from task_instance i join dag_run r on r.id = i.dag_run_id join dag_version v on v.id = r.version_id
 cross join lateral jsonb_array_elements_text(v.data->'tags') tag where i.id = %(ti_id)s
 union all
select 'bundle:' || b.bundle from task_instance i join dag_run r on r.id = i.dag_run_id join dag_version v on v.id = r.version_id
  join bundle_version b on b.id = v.bundle_version_id where i.id = %(ti_id)s
"""
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


#: A reproduction writes to a table of the original for the first time. The copy of its metadata becomes current in the scratch
#: namespace, so that the publication finds what the try has written on. Later, what tasks of the reproduction published is current.
FIRST_OF_SCRATCH = """
insert into iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
select p.catalog, %(namespace)s, %(name)s, %(expected)s,
       case when right(%(expected)s, %(suffix)s) = %(view)s then 'VIEW' else 'TABLE' end
  from table_try t join task_instance i on i.id = t.task_instance_id join reproduction p on p.dag_run_id = i.dag_run_id
 where t.id = %(try)s
   and exists (select from table_pending n where n.try_id = %(try)s and n.namespace = %(namespace)s and n.name = %(name)s
                  and n.base_location = %(expected)s)
   and not exists (select from table_version v where v.catalog = p.catalog and v.namespace = %(namespace)s and v.name = %(name)s)
    on conflict do nothing
"""


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(32)


def hashed(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def of_token(connection: Connection, token: str) -> Pinned | None:
    """The running try that has this token; None if there is none."""
    return rows.first(Pinned, connection.exec_driver_sql(BY_HASH, (hashed(token),)))


def names_of(connection: Connection, attempt: Pinned) -> set[str]:
    """The names of a task in the lists of a namespace: those of its DAG, its tags and its bundle."""
    return set(connection.exec_driver_sql(NAMES, {"ti_id": attempt.task_instance_id}).scalars())


def write(connection: Connection, attempt: Pinned, changes: list[Change]) -> Change | None:
    """Store what a try writes, all or nothing. The first change whose expected pointer is no longer its own, else None.

    Repeating a call that was stored changes nothing. StaleTryError if the try has ended.
    """
    # Until the commit, the report of the try waits: it publishes this, or this is refused.
    fencing.lock(connection, fencing.Writer(attempt.task_instance_id, attempt.dispatch_id, attempt.try_number))
    for change in sorted(changes, key=lambda one: (one.namespace, one.name)):
        written = [change.location] if change.is_new and change.location is not None else []
        parameters = {
            "try": attempt.id, "namespace": attempt.own(change.namespace), "name": change.name, "expected": change.expected,
            "location": change.location, "updates": None if change.updates is None else json.dumps(change.updates),
            "facts": json.dumps(change.facts), "written": written, "summed": SUMMED, "leaves": LEAVES,
            "view": VIEW, "suffix": len(VIEW),
        }  # fmt: skip
        stored = connection.exec_driver_sql(
            """
            insert into table_pending as p (try_id, namespace, name, base_location, location, updates, written, facts)
            values (%(try)s, %(namespace)s, %(name)s, %(expected)s, %(location)s, %(updates)s, %(written)s, %(facts)s)
            on conflict (try_id, namespace, name) do update
               set location = excluded.location,
                   facts = case when excluded.location is null
                       then case when cardinality(p.written) > 0 then %(leaves)s::jsonb else '{}' end
                       else p.facts || excluded.facts || (
                           select coalesce(jsonb_object_agg(e.key, case jsonb_typeof(e.value)
                                  when 'array' then e.value || coalesce(excluded.facts->e.key, '[]')
                                  else to_jsonb(e.value::bigint + coalesce((excluded.facts->e.key)::bigint, 0)) end), '{}')
                             from jsonb_each(p.facts) e
                            where e.key = any(%(summed)s)) end,
                   updates = p.updates || excluded.updates,
                   written = p.written || excluded.written
             where p.location is not distinct from %(expected)s
            returning 1
            """,
            parameters,
        ).first()
        if stored is None and not _is_stored(connection, attempt, change):
            return change
        if attempt.scratch is not None and change.expected is not None:
            connection.exec_driver_sql(FIRST_OF_SCRATCH, parameters)
    return None


def follow(connection: Connection, attempt: Pinned) -> None:
    """Let a running try read what is current from now on. StaleTryError if it has ended."""
    fencing.lock(connection, fencing.Writer(attempt.task_instance_id, attempt.dispatch_id, attempt.try_number))
    connection.exec_driver_sql(f"update table_try t set publication = {READS_CURRENT} where id = %s", (attempt.id,))


def begin_batch(connection: Connection, attempt: Pinned) -> bool:
    """Note that a batch of a running try, which is locked, begins, and let the try read what is current.

    False if a batch has begun before and was not published: what it wrote would be published with this one.
    """
    begun = connection.exec_driver_sql(
        f"update table_try set publication = {IN_BATCH} where id = %s and publication <> {IN_BATCH}", (attempt.id,)
    )
    return begun.rowcount == 1


def end_batch(connection: Connection, attempt: Pinned) -> None:
    """Note that the batch of a running try is published, in the same transaction."""
    connection.exec_driver_sql("update table_try set publication = %s where id = %s", (ANY, attempt.id))


def _is_stored(connection: Connection, attempt: Pinned, change: Change) -> bool:
    """Whether an earlier call whose answer was lost has stored it."""
    found = connection.exec_driver_sql(
        """
        select 1 from table_pending where try_id = %s and namespace = %s and name = %s and location is not distinct from %s
        """,
        (attempt.id, attempt.own(change.namespace), change.name, change.location),
    )
    return found.first() is not None


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
