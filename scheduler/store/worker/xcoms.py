"""XComs as a worker reads and writes them."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from psycopg2.extensions import adapt
from sqlalchemy import Connection

from paceline.authoring import xcom
from paceline.states import OPEN
from scheduler.store.db import fencing
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import WorkerConnection

T = TypeVar("T")
#: How many values a process keeps: those of one task that is mapped over several, and of a few runs at the same time.
KEPT = 8
#: Changes when a person or a new version takes away, adds or renumbers results of a run `r`.
RESULTS = "array['version ' || r.version_id, 'clear ' || r.clear_number, r.results_changed_at::text]"
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
    select coalesce(r.logical_date, r.run_after) as date, r.run_type = 'reproduction' as reproduces
      from dag_run r where r.dag_id = %(dag_id)s and r.run_id = %(run_id)s
), run as materialized (
    select r.id from dag_run r
     where r.dag_id = %(dag_id)s
       and case when %(prior)s then coalesce(r.logical_date, r.run_after) <= coalesce((select date from moment), %(date)s)
                     and (r.run_id = %(run_id)s or r.run_type <> 'reproduction'
                          and (coalesce(r.logical_date, r.run_after) < (select date from moment)
                               or (select reproduces from moment) is distinct from true))
                else r.run_id = %(run_id)s end
       and exists (select from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %(key)s
                    where t.dag_run_id = r.id and t.task_id = %(task_id)s and t.map_index = coalesce(%(index)s, t.map_index))
     order by coalesce(r.logical_date, r.run_after) desc, r.id desc limit 1
)
select t.map_index, x.value from run join task_instance t on t.dag_run_id = run.id
  join xcom x on x.task_instance_id = t.id and x.key = %(key)s
 where t.task_id = %(task_id)s and t.map_index = coalesce(%(index)s, t.map_index) order by t.map_index
"""
#: A set that changes whenever other instances of a mapped task may have values: with results of the run, and with the unfinished
#: instances and which of them have a value. Those are found by their index, however many have ended.
STATE = f"""
{RESULTS} || array(select t.id || case when o.key is null then '' else ' has a value' end
                     from task_instance t left join xcom o on o.task_instance_id = t.id and o.key = %s
                    where t.dag_run_id = r.id and t.task_no = %s and {OPEN.or_none("t.state")})
"""
STATE_NOW = f"select {STATE} from dag_run r where r.id = %s"
#: That state, and the task instances of a mapped task that pushed a value, in the order of map indexes.
PUSHED = f"""
select {STATE}, array(select t.id from task_instance t join xcom x on x.task_instance_id = t.id and x.key = %s
                       where t.dag_run_id = r.id and t.task_no = %s order by t.map_index)
  from dag_run r where r.id = %s
"""
#: That state, and the value of one task instance.
VALUE = f"""
select {STATE}, x.value from dag_run r left join xcom x on x.task_instance_id = %s and x.key = %s where r.id = %s
"""
#: Without a list of those that pushed: it reads all instances before the one at the offset.
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


@dataclass(frozen=True, slots=True)
class Number:
    """The number that a task of a run has now, as a parameter of a statement.

    In the version that the caller knows, it was `task_no`. The run may have another version since.
    """

    dag_run_id: int
    task_no: int
    task_id: str

    def __conform__(self, _protocol: object) -> "Number":
        return self

    def getquoted(self) -> bytes:
        """The SQL, which psycopg2 asks for. The first part nearly always finds it, by the unique key."""
        task_id = adapt(self.task_id)
        task_id.encoding = "utf-8"
        run, no, name = str(self.dag_run_id).encode(), str(self.task_no).encode(), task_id.getquoted()
        of_run = b"(select k.task_no from task_instance k where k.dag_run_id = %b and k.task_id = %b" % (run, name)
        return b"(select coalesce(%b and k.task_no = %b limit 1), %b limit 1)))" % (of_run, no, of_run)


#: (run, task number, key) of what a task is mapped over.
Place = tuple[int, int | Number, str]


class MappedOver:
    """The last values over which this process ran instances of mapped tasks: entries of lists and dicts, and the task instances
    that pushed a value.

    Each is read and split once, not for each instance: a map of ten thousand entries would read ten thousand times ten thousand.
    """

    def __init__(self) -> None:
        #: When the value was stored, and its entries. As JSON, so that no instance sees what another has changed. None: the value
        #: cannot be mapped over.
        self._entries: OrderedDict[Place, tuple[datetime, list[str] | None]] = OrderedDict()
        #: The STATE in which they were read, and the IDs of the task instances.
        self._pushed: OrderedDict[Place, tuple[set[str | None], list[int]]] = OrderedDict()

    def entries(self, connection: WorkerConnection, dag_run_id: int, task_no: int | Number, key: str) -> Sequence[str] | None:
        """The entries that the task has pushed now; one of a dict is the pair [key, value]."""
        place = (dag_run_id, task_no, key)
        known, entries = self._entries.get(place, (None, None))
        found = connection.read(MAPPED_OVER, (known, key, dag_run_id, task_no))
        if not found:
            return None
        ((stored_at, text),) = found
        if text is not None:
            entries = _split(text)
        _keep(self._entries, place, (stored_at, entries))
        return entries

    def pushed(self, connection: WorkerConnection, dag_run_id: int, task_no: int | Number, key: str) -> list[int]:
        """The instances of a mapped task that have pushed a value, in the order of map indexes."""
        place = (dag_run_id, task_no, key)
        state, ids = self._pushed.get(place, (set(), []))
        if state and set(connection.value(STATE_NOW, (key, task_no, dag_run_id)) or ()) == state:
            return ids
        return self._read_pushed(connection, place)

    def value(self, connection: WorkerConnection, dag_run_id: int, task_no: int | Number, key: str, at: int) -> list[Any]:
        """The value at `at` of those that a mapped task pushed, alone in a list; an empty list if there is none."""
        place = (dag_run_id, task_no, key)
        known, ids = self._pushed.get(place, (None, []))
        if at < len(ids):
            for state, value in connection.read(VALUE, (key, task_no, ids[at], key, dag_run_id)):
                if set(state) == known and value is not None:
                    return [value]
        self._read_pushed(connection, place)
        return [value for (value,) in connection.read(INSTANCE, (key, dag_run_id, task_no, at))]

    def _read_pushed(self, connection: WorkerConnection, place: Place) -> list[int]:
        dag_run_id, task_no, key = place
        self._pushed.pop(place, None)
        for state, ids in connection.read(PUSHED, (key, task_no, key, task_no, dag_run_id)):
            _keep(self._pushed, place, (set(state), ids))
            return list(ids)
        return []


def _keep(values: "OrderedDict[Place, T]", place: Place, value: T) -> None:
    """Keep the value, and drop the one that was used least recently if there are too many."""
    values[place] = value
    values.move_to_end(place)
    if len(values) > KEPT:
        values.popitem(last=False)


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


def of_task(connection: Connection, values: dict[str, Any]) -> list[tuple[int, Any]]:
    """As `other`, for a process that is no worker; `values` are the parameters of OTHER."""
    return [(index, value) for index, value in connection.exec_driver_sql(OTHER, values)]


def of_instances(connection: WorkerConnection, dag_run_id: int, task_no: int | Number, key: str) -> list[Any]:
    """The values that the instances of a mapped task pushed, in the order of map indexes."""
    return [value for (value,) in connection.read(ALL, (key, dag_run_id, task_no))]


def length(
    connection: WorkerConnection, dag_run_id: int, task_no: int | Number, key: str, *, is_mapped: bool, over: MappedOver
) -> int | None:
    """The number of entries to map over; None if there is no list or dict."""
    if is_mapped:
        return len(over.pushed(connection, dag_run_id, task_no, key))
    entries = over.entries(connection, dag_run_id, task_no, key)
    return None if entries is None else len(entries)


def entry(
    connection: WorkerConnection, dag_run_id: int, task_no: int | Number, key: str, place: int, *, is_mapped: bool, over: MappedOver
) -> list[Any]:
    """The entry at `place`, alone in a list; an empty list if there is none."""
    if is_mapped:
        return over.value(connection, dag_run_id, task_no, key, place)
    return [xcom.decode(text) for text in (over.entries(connection, dag_run_id, task_no, key) or [])[place : place + 1]]


GET_OF_TASK = """
select value from task_state where task_instance_id = %s and key = %s and (expires_at is null or expires_at > clock_timestamp())
"""
GET_OF_ASSET = "select value from asset_state where uri = %s and key = %s"
SET_OF_TASK = fencing.guarded(
    "insert into task_state (task_instance_id, key, value, expires_at)"
    " select id, %s, %s, clock_timestamp() + make_interval(secs => %s) from current"
    " on conflict (task_instance_id, key) do update"
    " set value = excluded.value, updated_at = clock_timestamp(), expires_at = excluded.expires_at returning key"
)
SET_OF_ASSET = fencing.guarded(
    "insert into asset_state (uri, key, value, dag_id, run_id, task_id, map_index)"
    " select %s, %s, %s, %s, %s, %s, %s from current"
    " on conflict (uri, key) do update"
    " set value = excluded.value, updated_at = clock_timestamp(), dag_id = excluded.dag_id, run_id = excluded.run_id,"
    " task_id = excluded.task_id, map_index = excluded.map_index returning key"
)
DELETE_OF_TASK = fencing.guarded(
    "delete from task_state s using current where s.task_instance_id = current.id and s.key = coalesce(%s, s.key) returning s.key"
)
#: Other task instances may delete at the same time, so the rows are locked in one order.
DELETE_OF_ASSET = fencing.guarded(
    "delete from asset_state s using current,"
    " (select a.uri, a.key from asset_state a where a.uri = %s and a.key = coalesce(%s, a.key) order by a.key for update) a"
    " where s.uri = a.uri and s.key = a.key returning s.key"
)


def get(connection: WorkerConnection, claim: Claim, uri: str | None, key: str, *, default: Any) -> Any:
    """The value of the asset, or with None of the task instance; `default` if there is none or it has expired."""
    if uri is None:
        return connection.value(GET_OF_TASK, (claim.id, key), default)
    return connection.value(GET_OF_ASSET, (uri, key), default)


def put(
    connection: WorkerConnection, claim: Claim, uri: str | None, key: str, json_text: str, *, expires_in_s: float | None
) -> None:
    """Store one value; StaleTryError. Those of assets do not expire."""
    if uri is None:
        connection.write(claim.writer, SET_OF_TASK, (key, json_text, expires_in_s))
        return
    by = (claim.dag_id, claim.run_id, claim.task_id, claim.map_index)
    connection.write(claim.writer, SET_OF_ASSET, (uri, key, json_text, *by))


def delete(connection: WorkerConnection, claim: Claim, uri: str | None, key: str | None) -> None:
    """Delete one value or all; StaleTryError."""
    if uri is None:
        connection.write(claim.writer, DELETE_OF_TASK, (key,))
    else:
        connection.write(claim.writer, DELETE_OF_ASSET, (uri, key))
