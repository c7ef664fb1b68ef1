"""The standing load of PostgreSQL: its CPU for a pass of the queue service and for a heartbeat of a worker."""

import itertools
import uuid
from collections.abc import Callable

from bench import shapes
from bench.options import Options, Piece
from bench.stack import Stack
from scheduler.messaging.publisher import Publisher
from scheduler.services.queue import Queue
from scheduler.store.db.database import create, transact
from scheduler.store.runs import manual_runs
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import HeartbeatConnection
from workers.supervision.heartbeat import BEATS_PER_SWEEP

#: Running task instances, each in its own run; and those of the worker that sends the heartbeat.
SIZES, SMALL_SIZES = (100, 1000, 10_000), (5, 10)
HELD = 16
#: CPU is counted in hundredths of a second, so each operation is repeated until it has used this many seconds.
ENOUGH_S, SMALL_ENOUGH_S = 0.4, 0.02
RUN = "update dag_run set state = 'running', started_at = clock_timestamp() where state = 'queued'"
START = """
    update task_instance set state = 'running', try_number = 1, scheduled_at = clock_timestamp(), queued_at = clock_timestamp(),
           started_at = clock_timestamp(), dispatch_id = gen_random_uuid(), worker = 'elsewhere'
     where task_no = 0 and state is null
"""
#: A task instance that waits, because without one a pass ends early; and a pool without a slot for it.
WAIT = "update task_instance set state = 'scheduled', try_number = 1, scheduled_at = clock_timestamp() where id = %s"
FULL = "update pool set slots = 0"


def measure(options: Options) -> Piece:
    """`pass_postgres_ms` and `beat_postgres_ms` by number of running task instances. The pass can queue nothing."""
    shape = shapes.chain(10)
    passes: dict[str, float] = {}
    beats: dict[str, float] = {}
    enough_s = SMALL_ENOUGH_S if options.small else ENOUGH_S
    with Stack(shape.files, schedulers=0, workers=0) as stack:
        stack.start(schedulers=1, workers=0)
        stack.stop_processes()
        scheduler = processes.register(stack.engine, kind="scheduler", name="s", host="h", pid=1)
        queue = Queue(stack.engine, stack.settings, Publisher(stack.settings), lambda: scheduler)
        count = 0
        for size in SMALL_SIZES if options.small else SIZES:
            for _ in range(size - count):
                transact(stack.engine, manual_runs.trigger, shape.dag_ids[0])
            count = size
            _start(stack)
            passes[str(size)] = _cpu_ms(stack, queue.run_once, enough_s)
            beats[str(size)] = _beat(stack, enough_s)
            options.say(f"{size} running: PostgreSQL takes {passes[str(size)]} ms for a pass, {beats[str(size)]} ms for a beat")
    return {"standing": {"pass_postgres_ms": passes, "beat_postgres_ms": beats}}


def _start(stack: Stack) -> None:
    with stack.connection.cursor() as cursor:
        cursor.execute(RUN)
        cursor.execute(START)
        cursor.execute("select min(id) from task_instance where state is null")
        cursor.execute(WAIT, cursor.fetchone())
        cursor.execute(FULL)
        for table in ("task_instance", "dag_run", "process"):
            cursor.execute(f"vacuum analyze {table}")


def _beat(stack: Stack, enough_s: float) -> float:
    engine = create(stack.settings, pool_size=0)
    connection = HeartbeatConnection(stack.settings, "paceline bench", 60.0)
    try:
        worker = processes.register(engine, kind="worker", name="w", host="h", pid=1, queues=("default",), concurrency=HELD)
        held = {str(uuid.uuid4()): 1 + number for number in range(HELD)}
        beats = itertools.count(1)

        def beat() -> None:
            connection.renew(worker)
            connection.doubted(worker, held)
            if next(beats) % BEATS_PER_SWEEP == 0:
                transact(engine, processes.stored_as_running, worker)

        return _cpu_ms(stack, beat, enough_s)
    finally:
        connection.close()
        engine.dispose()


def _cpu_ms(stack: Stack, work: Callable[[], object], enough_s: float) -> float:
    """CPU of all server processes for one such operation."""
    work()
    before, times = stack.cpu_seconds()["postgres"], 0
    while (used := stack.cpu_seconds()["postgres"] - before) < enough_s:
        for _ in range(20):
            work()
        times += 20
    return round(used / times * 1000, 3)
