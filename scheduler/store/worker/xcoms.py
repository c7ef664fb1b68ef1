"""XComs as a worker reads and writes them. One entry of a long list can be read without the whole list."""

from typing import Any

from scheduler.store.db import fencing
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.worker_connection import WorkerConnection

PUSH = fencing.guarded(
    "insert into xcom (task_instance_id, key, value) select id, %s, %s from current"
    " on conflict (task_instance_id, key) do update set value = excluded.value, created_at = now() returning key"
)
CLEAR = fencing.guarded("delete from xcom x using current where x.task_instance_id = current.id returning x.key")
PULL = """
select x.value from task_instance t join xcom x on x.task_instance_id = t.id
 where t.dag_run_id = %s and t.task_id = %s and t.map_index = %s and x.key = %s
"""
#: The values of a mapped task in the order of map indexes; instances that pushed nothing are left out.
ALL = """
select x.value from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s order by t.map_index
"""
COUNT_INSTANCES = """
select count(*) from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s
"""
INSTANCE = f"{ALL} offset %s limit 1"
_LENGTH = """case json_typeof(x.value)
       when 'array' then json_array_length(x.value)
       when 'object' then (select count(*) from json_object_keys(x.value)) end"""
COUNT_ENTRIES = f"""
select {_LENGTH}
  from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s
"""
#: One entry of a list or dict; an entry of a dict is the pair [key, value].
ENTRY = f"""
select case json_typeof(x.value)
       when 'array' then x.value -> %s
       when 'object' then (select json_build_array(key, value) from json_each(x.value) offset %s limit 1) end
  from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s and {_LENGTH} > %s
"""


def push(connection: WorkerConnection, claim: Claim, key: str, json_text: str) -> None:
    """Store one value for a running task instance; StaleTryError."""
    connection.write(claim.writer, PUSH, (key, json_text))


def clear(connection: WorkerConnection, claim: Claim) -> None:
    """Delete the XComs of earlier tries; StaleTryError."""
    connection.write(claim.writer, CLEAR, ())


def pull(connection: WorkerConnection, dag_run_id: int, task_id: str, key: str, map_index: int, *, default: Any) -> Any:
    """The stored value, or `default`."""
    return connection.value(PULL, (dag_run_id, task_id, map_index, key), default)


def of_instances(connection: WorkerConnection, dag_run_id: int, task_no: int, key: str) -> list[Any]:
    """The values that the instances of a mapped task pushed, in the order of map indexes."""
    return [value for (value,) in connection.read(ALL, (key, dag_run_id, task_no))]


def length(connection: WorkerConnection, dag_run_id: int, task_no: int, key: str, *, is_mapped: bool) -> int | None:
    """The number of entries to map over; None if there is no list or dict."""
    found: int | None = connection.value(COUNT_INSTANCES if is_mapped else COUNT_ENTRIES, (key, dag_run_id, task_no))
    return found


def entry(connection: WorkerConnection, dag_run_id: int, task_no: int, key: str, place: int, *, is_mapped: bool) -> list[Any]:
    """The entry at `place`, alone in a list; an empty list if there is none."""
    if is_mapped:
        return [value for (value,) in connection.read(INSTANCE, (key, dag_run_id, task_no, place))]
    return [value for (value,) in connection.read(ENTRY, (place, place, key, dag_run_id, task_no, place))]
