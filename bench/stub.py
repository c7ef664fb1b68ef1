"""A worker that runs nothing: it claims and ends all tasks in the broker with two statements, so that schedulers are the limit."""

import re
import threading
import time
from typing import Self

import psycopg2

from bench.stack import Stack
from scheduler.messaging.brokers import client
from scheduler.messaging.publisher import broker_lists
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes

QUEUE, PLACES = "default", 500
PAUSE_S = 0.003
HEARTBEAT_S = 2.0
#: The dispatch ID in the text of a message.
ID = re.compile(rb'"id": ?"([0-9a-f-]{36})"')
CLAIM = """
    with sent as (
        select id from task_instance where state = 'queued' and dispatch_id = any(%s::uuid[]) order by id for no key update
    )
    update task_instance t set state = 'running', started_at = clock_timestamp(), worker = %s
      from sent where t.id = sent.id and t.state = 'queued'
"""
END = """
    with mine as (
        select id from task_instance where state = 'running' and dispatch_id = any(%s::uuid[]) order by id for no key update
    )
    update task_instance t set state = 'success', ended_at = clock_timestamp() from mine where t.id = mine.id
    returning t.dag_run_id
"""


class StubWorker(threading.Thread):
    """Registers as a worker with PLACES pool processes. It never follows, and sends a wakeup for each changed run."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(name="stub", daemon=True)
        self._engine = stack.engine
        self._redis = client(stack.settings.broker_url)
        self._wakeups = Wakeups(stack.settings)
        self._connection = psycopg2.connect(stack.settings.database_url, options="-c enable_seqscan=off")
        self._connection.autocommit = True
        self._id = processes.register(
            stack.engine, kind="worker", name="stub", host="here", pid=1, queues=[QUEUE], concurrency=PLACES
        )
        self._ending = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()
        transact(self._engine, processes.stop, self._id)
        self._connection.close()
        self._wakeups.close()
        self._redis.close()

    def run(self) -> None:
        beat = time.monotonic()
        while not self._ending.is_set():
            if time.monotonic() - beat > HEARTBEAT_S:
                transact(self._engine, processes.heartbeat, self._id)
                beat = time.monotonic()
            taken = self._take()
            if taken:
                self._end(taken)
            else:
                self._ending.wait(PAUSE_S)

    def _take(self) -> list[str]:
        pipe = self._redis.pipeline(transaction=True)
        lists = broker_lists(QUEUE)
        for key in lists:
            pipe.lrange(key, 0, -1)
        pipe.delete(*lists)
        found = [ID.search(body) for bodies in pipe.execute()[:-1] for body in bodies]
        return [match[1].decode() for match in found if match is not None]

    def _end(self, dispatch_ids: list[str]) -> None:
        ids = "{" + ",".join(dispatch_ids) + "}"
        with self._connection.cursor() as cursor:
            cursor.execute(CLAIM, (ids, self._id))
            cursor.execute(END, (ids,))
            runs = {row[0] for row in cursor.fetchall()}
        self._wakeups.wake("queue", *(f"run:{run}" for run in runs))
