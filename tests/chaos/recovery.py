"""The time until work moves again after a fault, read from the witness: every move of a task instance with its time."""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg2
import redis
from support.ledger import ask

from scheduler.messaging.publisher import dispatch_ids_in_broker

LIMIT_S = 60.0
POLL_S = 0.1
Row = tuple[Any, ...]

RUNNING_ON = """
select t.id, t.try_number from task_instance t join process p on p.id = t.worker
 where t.state = 'running' and p.name like %s || '@%%' and p.stopped_at is null and t.pool = 'default_pool'
   and t.max_active_tis_per_dag is null and t.max_active_tis_per_dagrun is null
"""
#: The later fate of these task instances: when the next try began, or nothing if none follows.
NEXT_TRY = """
select n.id, (select min(extract(epoch from w.at)) from witness w
               where w.ti_id = n.id and w.after = 'running' and w.try_number > n.try_number),
       t.state in ('success', 'failed', 'skipped') and t.try_number = n.try_number
  from unnest(%s::bigint[], %s::int[]) n (id, try_number) join task_instance t on t.id = n.id
"""
QUEUED = "select id from task_instance where state = 'queued' and queue = %s"
#: Queued by one process, and not known to be with the broker; those of them that still are.
UNSENT_BY = "select dispatch_id::text, queue from task_instance where state = 'queued' and queued_by = %s and dispatched_at is null"
STILL_UNSENT = (
    "select dispatch_id::text from task_instance where dispatch_id = any(%s::uuid[]) and state = 'queued' and dispatched_at is null"
)
#: When each of these left the queue, if it has.
STARTED = """
select n.id, (select min(extract(epoch from w.at)) from witness w
               where w.ti_id = n.id and w.before = 'queued' and w.at > to_timestamp(%s))
  from unnest(%s::bigint[]) n (id)
"""
PROBED = """
select min(extract(epoch from w.at)) from witness w join task_instance t on t.id = w.ti_id join dag_run r on r.id = t.dag_run_id
 where r.run_id = %s and w.after = 'queued'
"""
FIRST_MOVE = """
select min(extract(epoch from at)) from witness where at > to_timestamp(%s) and 'running' in (before, after)
"""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Of one fault: which kind of figure, and its values in seconds."""

    kind: str
    seconds: list[float]


class Meter:
    """Queries Paceline's database, and repeats a query while another fault makes it unavailable."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, statement: str, *parameters: object) -> list[Row]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                return ask(self._url, statement, *parameters)
            except psycopg2.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def running_on(self, worker: str) -> dict[int, int]:
        """Try numbers by task instance; only those that nothing but the loss of their worker keeps waiting."""
        return dict(self.ask(RUNNING_ON, worker))

    def next_tries(self, tries: dict[int, int], since: float) -> list[float]:
        """Seconds from `since` to the next try of each, without those that came to an end after all."""

        def look() -> list[float] | None:
            rows = self.ask(NEXT_TRY, list(tries), list(tries.values()))
            if all(begun is not None or ended for _, begun, ended in rows):
                return [float(begun) - since for _, begun, _ in rows if begun is not None]
            return None

        return _until(look, otherwise=[LIMIT_S])

    def queued(self, queue: str) -> list[int]:
        return [row[0] for row in self.ask(QUEUED, queue)]

    def all_sent(self, by: str, since: float, broker: Callable[[], contextlib.AbstractContextManager[redis.Redis]]) -> float:
        """Seconds from `since` until each message that this process owed is with the broker or a worker; 0 if it owed none.

        A message that was sent but not noted waits for a free place of a worker like any other, which is no recovery.
        """
        queue_of = dict(self.ask(UNSENT_BY, by))

        def look() -> list[float] | None:
            left = {row[0] for row in self.ask(STILL_UNSENT, list(queue_of))}
            if left:
                try:
                    with broker() as client:
                        left -= dispatch_ids_in_broker(client, {queue_of[one] for one in left})
                except redis.RedisError:
                    return None
            return None if left else [time.time() - since]

        first = look()
        return 0.0 if first is not None else _until(look, otherwise=[LIMIT_S])[0]

    def all_started(self, ids: Iterable[int], seen: float, since: float) -> float:
        """Seconds from `since` until the last of these, which were `seen` in the queue then, has left it."""
        wanted = list(ids)

        def look() -> list[float] | None:
            rows = self.ask(STARTED, seen, wanted)
            return [max(0.0, float(at) - since) for _, at in rows] if all(at is not None for _, at in rows) else None

        return max(_until(look, otherwise=[LIMIT_S]), default=0.0)

    def probed(self, run_id: str, since: float) -> float:
        return self._first(PROBED, run_id, since)

    def first_move(self, since: float) -> float:
        """Seconds from `since` to the first claim or report."""
        return self._first(FIRST_MOVE, since, since)

    def _first(self, statement: str, parameter: object, since: float) -> float:
        def look() -> list[float] | None:
            found = self.ask(statement, parameter)[0][0]
            return None if found is None else [float(found) - since]

        return _until(look, otherwise=[LIMIT_S])[0]


def figures(recoveries: Iterable[Recovery]) -> dict[str, dict[str, float | None]]:
    """p50, max and the number of samples of each kind, as the report has them; None where nothing was measured."""
    by_kind: dict[str, list[float]] = {"scheduler": [], "worker": [], "redis": [], "postgres": []}
    for recovery in recoveries:
        by_kind[recovery.kind] += recovery.seconds
    return {
        kind: {"p50": round(median(all_), 2), "max": round(max(all_), 2), "samples": len(all_)}
        if all_
        else {"p50": None, "max": None, "samples": 0}
        for kind, all_ in by_kind.items()
    }


def _until(look: Callable[[], list[float] | None], *, otherwise: list[float]) -> list[float]:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_S)
    return otherwise
