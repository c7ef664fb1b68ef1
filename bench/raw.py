"""The raw baselines on the servers of a stack: bare Celery, and durable one-row commits of bare PostgreSQL."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import psycopg2
import redis

from bench import raw_app
from bench.measure import calibrate
from bench.stack import CONCURRENCY, Stack, StackError
from scheduler.embedded.supervisor import Command, Supervisor
from scheduler.messaging.brokers import client

#: Messages of the part `raw`, and of each sample that alternates with a shape.
MESSAGES, SAMPLE_MESSAGES = 5000, 2000
#: Measured hops, and warm-up hops before them.
HOPS, FIRST_HOPS = 300, 50
COMMITS_S = 0.5
LIMIT_S = 120.0
#: The time limit for the first messages of a worker.
START_S = 15.0
GLANCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of bare Celery, with messages sent before and while the worker runs, and of bare PostgreSQL.

    `cpu_s_per_task` counts the worker with its children, Redis, and the process that sends.
    """

    tasks_per_s: float
    hop_ms: float
    commits_per_s: float
    cpu_s_per_task: float
    calibration_ms: float


@dataclass(frozen=True, slots=True)
class Samples:
    """Bare Celery as it comes, with acknowledgments; and without them, which is how Paceline uses Celery."""

    celery: Sample
    no_ack: Sample


class RawCelery:
    """Bare Celery on the Redis of a stack, in its own numbered database. `running` starts a worker."""

    def __init__(self, stack: Stack, *, ack_emulation: bool = True, concurrency: int = CONCURRENCY) -> None:
        self._stack = stack
        self._ack_emulation = ack_emulation
        self._concurrency = concurrency
        url = stack.settings.broker_url.replace("virtual_host=0", f"virtual_host={1 if ack_emulation else 2}")
        self._url = url
        self._redis: redis.Redis = client(url)
        self._app = raw_app.make(url, ack_emulation=ack_emulation)
        self._supervisor: Supervisor | None = None
        self._stamps = stack.folder / f"stamps-{'with' if ack_emulation else 'without'}-acks"

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A worker that runs during the block, and that has already run a task.

        Sometimes a new worker never acknowledges its first messages. Then another one is started.
        """
        for last in (False, False, True):
            with self._worker():
                self._await_answer()
                try:
                    self.sent_while_running(20 * self._concurrency, limit_s=LIMIT_S if last else START_S)
                except StackError:
                    if last:
                        raise
                    self._redis.flushdb()
                    continue
                yield
                return

    def sent_before(self, messages: int = MESSAGES) -> float:
        """Tasks per second of messages that wait when a worker starts, without the first and the last hundredth of them."""
        self._send(messages)
        low, high = messages // 50, messages - messages // 50
        with self._worker():
            self._wait(messages - low)
            start = time.perf_counter()
            done = messages - self._wait(messages - high)
            return (done - low) / (time.perf_counter() - start)

    def sent_while_running(self, messages: int = MESSAGES, *, limit_s: float = LIMIT_S) -> float:
        """Tasks per second from the first sent to the last received message."""
        start = time.perf_counter()
        self._send(messages)
        self._wait(0, limit_s)
        return messages / (time.perf_counter() - start)

    def hops(self, count: int = HOPS, first: int = FIRST_HOPS) -> list[float]:
        """Sorted milliseconds from the start of a task to the start of the task that it sent, without the warm-up hops."""
        self._stamps.unlink(missing_ok=True)
        self._app.tasks["hop"].apply_async((count + first,))
        self._stack.wait(lambda: _lines(self._stamps) > count + first, LIMIT_S, "the hops of bare Celery")
        began = sorted(map(float, self._stamps.read_text().split()))
        return sorted((after - before) * 1000 for before, after in zip(began[first:], began[first + 1 :], strict=False))

    @contextlib.contextmanager
    def _worker(self) -> Iterator[None]:
        acks = "on" if self._ack_emulation else "off"
        environment = dict(os.environ) | {
            raw_app.BROKER: self._url,
            raw_app.ACK_EMULATION: acks,
            raw_app.STAMPS: str(self._stamps),
        }
        argv = [sys.executable, "-m", "celery", "-A", "bench.raw_app", "worker", "-P", "prefork", "-c", str(self._concurrency)]
        argv += ["-l", "WARNING", "--without-gossip", "--without-mingle"]
        with Supervisor(self._stack.folder / "logs", say=self._stack.messages.append) as supervisor:
            folder = Path(__file__).parent.parent
            supervisor.start(Command(name="raw", argv=tuple(argv), environment=environment, folder=folder))
            self._supervisor = supervisor
            try:
                yield
            finally:
                self._supervisor = None

    def cpu_seconds(self) -> float:
        """CPU seconds so far of the worker and its children, of Redis, and of this process, which sends."""
        assert self._supervisor is not None
        parent = psutil.Process(self._supervisor.pid("raw"))
        used = [one.cpu_times() for one in (parent, *parent.children(recursive=True))]
        return sum(one.user + one.system for one in used) + self._stack.cpu_seconds()["redis"] + time.process_time()

    def _send(self, messages: int) -> None:
        with self._app.producer_or_acquire() as producer:
            for _ in range(messages):
                self._app.tasks["noop"].apply_async(producer=producer)

    def _await_answer(self) -> None:
        """Wait for a first result: a worker that is still connecting can lose a message."""
        deadline = time.monotonic() + LIMIT_S
        while not self._app.control.ping(timeout=0.5):
            if time.monotonic() > deadline:
                raise StackError(f"bare Celery did not start within {LIMIT_S:.0f} s")

    def _wait(self, depth: int, limit_s: float = LIMIT_S) -> int:
        """Wait until at most that many messages are left, and return their number."""
        deadline = time.monotonic() + limit_s
        while (left := self._depth()) > depth:
            if time.monotonic() > deadline:
                raise StackError(f"{limit_s:.0f} s were too short for bare Celery; {left} messages are left")
            time.sleep(GLANCE_S)
        return left

    def _depth(self) -> int:
        """Messages in the broker, and messages that a worker has received but not acknowledged."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.llen(raw_app.QUEUE)
        pipe.hlen("unacked")
        return sum(pipe.execute())


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def commits_per_s(stack: Stack, seconds: float = COMMITS_S) -> float:
    """One-row updates per second on one connection, each with a durable commit."""
    with contextlib.closing(psycopg2.connect(stack.settings.database_url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("create table if not exists bench_raw (id int primary key, v bigint not null) with (fillfactor = 50)")
            cursor.execute("insert into bench_raw values (1, 0) on conflict do nothing")
            count, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < seconds:
                cursor.execute("update bench_raw set v = v + 1 where id = 1")
                count += 1
    return count / elapsed


def sample(stack: Stack, celery: RawCelery, *, small: bool = False) -> Sample:
    """Take one sample of everything from a running worker."""
    calibration_ms = calibrate()
    hops = celery.hops(*((10, 2) if small else ()))
    messages, before = 100 if small else SAMPLE_MESSAGES, celery.cpu_seconds()
    tasks_per_s = celery.sent_while_running(messages)
    return Sample(
        tasks_per_s=tasks_per_s,
        hop_ms=median(hops),
        cpu_s_per_task=(celery.cpu_seconds() - before) / messages,
        commits_per_s=commits_per_s(stack, 0.1 if small else COMMITS_S),
        calibration_ms=calibration_ms,
    )
