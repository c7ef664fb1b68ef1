"""The standing load of PostgreSQL: its CPU for a pass of the queue service, a heartbeat, a registration and a connection."""

import itertools
import uuid
from collections.abc import Callable, Sequence

from bench import shapes
from bench.open_runs import REGISTER, SMALL_WORKERS, WORKERS
from bench.options import Options, Piece
from bench.stack import Stack
from scheduler.messaging.publisher import Publisher
from scheduler.services.queue import Queue
from scheduler.store.db.database import create, transact
from scheduler.store.runs import manual_runs
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import HeartbeatConnection
from scheduler.store.worker.hot_path import HotPath
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
    """`pass_postgres_ms` and `beat_postgres_ms` by number of running task instances. The pass can queue nothing.

    `pass_by_workers_ms`, `beat_by_workers_ms` and `register_by_workers_ms` by number of registered workers. `connection_ms` is a
    connection of a pool process from its start to its end.
    """
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
        by_workers = _by_workers(stack, queue, SMALL_WORKERS if options.small else WORKERS, enough_s)
        connection_ms = _connection(stack, enough_s)
    options.say(f"by workers: {by_workers}; a connection takes {connection_ms} ms")
    return {
        "standing": {"pass_postgres_ms": passes, "beat_postgres_ms": beats, **by_workers, "connection_ms": connection_ms},
    }


def _by_workers(stack: Stack, queue: Queue, sizes: Sequence[int], enough_s: float) -> dict[str, dict[str, float]]:
    """Milliseconds of PostgreSQL by the number of registered workers."""
    found: dict[str, dict[str, float]] = {
        name: {} for name in ("pass_by_workers_ms", "beat_by_workers_ms", "register_by_workers_ms")
    }
    for size in sizes:
        stack.rows(REGISTER, (size,))
        with stack.connection.cursor() as cursor:
            cursor.execute("vacuum analyze process")
        found["pass_by_workers_ms"][str(size)] = _cpu_ms(stack, queue.run_once, enough_s)
        found["beat_by_workers_ms"][str(size)] = _beat(stack, enough_s)
        found["register_by_workers_ms"][str(size)] = _registration(stack, enough_s)
    return found


def _registration(stack: Stack, enough_s: float) -> float:
    """A worker that enters its start, and is gone: the next one finds as many."""

    def register() -> None:
        worker = processes.register(engine, kind="worker", name="w", host="h", pid=1, queues=("default",), concurrency=HELD)
        stack.rows("delete from process where id = %s returning id", (worker,))

    engine = create(stack.settings, pool_size=1)
    try:
        return _cpu_ms(stack, register, enough_s)
    finally:
        engine.dispose()


def _connection(stack: Stack, enough_s: float) -> float:
    """With the settings and the statements that a pool process prepares in it, and a claim that finds nothing."""

    def connect() -> None:
        connection = HotPath(stack.settings, "bench")
        connection.claim(0, str(uuid.uuid4()))
        connection.close()

    return _cpu_ms(stack, connect, enough_s)


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
    # CPU of processes that have ended is counted when the server takes note of their end.
    before, used, times = stack.cpu_seconds()["postgres"], 0.0, 0
    while not times or used < enough_s:
        for _ in range(20):
            work()
        times += 20
        used = stack.cpu_seconds()["postgres"] - before
    return round(used / times * 1000, 3)
