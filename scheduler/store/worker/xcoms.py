"""XComs as a worker reads and writes them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from scheduler.authoring import xcom
from scheduler.store.db import fencing
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.worker_connection import WorkerConnection

PUSH = fencing.guarded(
    "insert into xcom (task_instance_id, key, value) select id, %s, %s from current"
    " on conflict (task_instance_id, key) do update set value = excluded.value, created_at = clock_timestamp() returning key"
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
#: The values of a task in another run: the one with that ID, or the newest one that has a value and is not later than it.
#: A run without a logical date counts by the time after which it runs, as in Airflow.
OTHER = """
with moment as materialized (
    select coalesce(r.logical_date, r.run_after) as date from dag_run r where r.dag_id = %(dag_id)s and r.run_id = %(run_id)s
), run as materialized (
    select r.id from dag_run r
     where r.dag_id = %(dag_id)s
       and case when %(prior)s then coalesce(r.logical_date, r.run_after) <= coalesce((select date from moment), %(date)s)
                else r.run_id = %(run_id)s end
       and exists (select from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %(key)s
                    where t.dag_run_id = r.id and t.task_id = %(task_id)s and t.map_index = coalesce(%(index)s, t.map_index))
     order by coalesce(r.logical_date, r.run_after) desc, r.id desc limit 1
)
select t.map_index, x.value from run join task_instance t on t.dag_run_id = run.id
  join xcom x on x.task_instance_id = t.id and x.key = %(key)s
 where t.task_id = %(task_id)s and t.map_index = coalesce(%(index)s, t.map_index) order by t.map_index
"""
COUNT_INSTANCES = """
select count(*) from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s
"""
INSTANCE = f"{ALL} offset %s limit 1"
#: The list or dict to map over, as text, unless the caller has the one that was stored at `known`.
MAPPED_OVER = """
select x.created_at, case when x.created_at is distinct from %s::timestamptz then x.value::text end
  from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
 where t.dag_run_id = %s and t.task_no = %s
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A task of another run: that with `run_id`, or with `prior` the newest one with a value up to its date, else to `date`."""

    dag_id: str
    run_id: str
    task_id: str
    prior: bool
    date: datetime


class MappedOver:
    """The entries of the last list or dict over which this process ran an instance of a mapped task.

    The value is split once, not for each instance: a map of ten thousand entries would read ten thousand times ten thousand.
    """

    def __init__(self) -> None:
        self._place: tuple[int, int, str] | None = None
        self._stored_at: datetime | None = None
        #: As JSON, so that no instance sees what another has changed. None: the value cannot be mapped over.
        self._entries: list[str] | None = None

    def entries(self, connection: WorkerConnection, dag_run_id: int, task_no: int, key: str) -> Sequence[str] | None:
        """The entries that the task has pushed now; one of a dict is the pair [key, value]."""
        place = (dag_run_id, task_no, key)
        known = self._stored_at if self._place == place else None
        found = connection.read(MAPPED_OVER, (known, key, dag_run_id, task_no))
        if not found:
            return None
        ((stored_at, text),) = found
        if text is not None:
            self._place, self._stored_at, self._entries = place, stored_at, _split(text)
        return self._entries


def _split(text: str) -> list[str] | None:
    value = json.loads(text)
    if isinstance(value, dict):
        value = [list(pair) for pair in value.items()]
    return [json.dumps(entry, ensure_ascii=False) for entry in value] if isinstance(value, list) else None


def push(connection: WorkerConnection, claim: Claim, key: str, json_text: str) -> None:
    """Store one value for a running task instance; StaleTryError."""
    connection.write(claim.writer, PUSH, (key, json_text))


def clear(connection: WorkerConnection, claim: Claim) -> None:
    """Delete the XComs of earlier tries; StaleTryError."""
    connection.write(claim.writer, CLEAR, ())


def pull(connection: WorkerConnection, dag_run_id: int, task_id: str, key: str, map_index: int, *, default: Any) -> Any:
    """The stored value, or `default`."""
    return connection.value(PULL, (dag_run_id, task_id, map_index, key), default)


def other(connection: WorkerConnection, source: Source, key: str, map_index: int | None) -> list[tuple[int, Any]]:
    """The values of a task in another run, each with its map index; those of all instances if `map_index` is None."""
    return [(index, value) for index, value in connection.read(OTHER, asdict(source) | {"key": key, "index": map_index})]


def of_instances(connection: WorkerConnection, dag_run_id: int, task_no: int, key: str) -> list[Any]:
    """The values that the instances of a mapped task pushed, in the order of map indexes."""
    return [value for (value,) in connection.read(ALL, (key, dag_run_id, task_no))]


def length(
    connection: WorkerConnection, dag_run_id: int, task_no: int, key: str, *, is_mapped: bool, over: MappedOver
) -> int | None:
    """The number of entries to map over; None if there is no list or dict."""
    if is_mapped:
        count: int = connection.value(COUNT_INSTANCES, (key, dag_run_id, task_no))
        return count
    entries = over.entries(connection, dag_run_id, task_no, key)
    return None if entries is None else len(entries)


def entry(
    connection: WorkerConnection, dag_run_id: int, task_no: int, key: str, place: int, *, is_mapped: bool, over: MappedOver
) -> list[Any]:
    """The entry at `place`, alone in a list; an empty list if there is none."""
    if is_mapped:
        return [value for (value,) in connection.read(INSTANCE, (key, dag_run_id, task_no, place))]
    return [xcom.decode(text) for text in (over.entries(connection, dag_run_id, task_no, key) or [])[place : place + 1]]
