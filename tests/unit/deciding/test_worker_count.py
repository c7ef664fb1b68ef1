"""The number of workers of a queue: single decisions, and whole loads on a simulated clock."""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from scheduler.deciding import worker_count
from scheduler.deciding.worker_count import Autoscaler, Limits, Workload

LIMITS = Limits(minimum=0, maximum=100, concurrency=4, drain_s=300, default_service_s=10)
#: Arrivals of tasks, each with its duration, both in seconds.
Load = list[tuple[float, float]]


def load(waiting: int = 0, running: int = 0, **more: float | None) -> Workload:
    values = {"startable": waiting, "oldest_s": 0.0, "service_s": 10.0, "arrivals_per_s": 0.0} | more
    return Workload(waiting=waiting, running=running, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (load(), 0),
        (load(waiting=1), 1),
        (load(running=1), 1),
        (load(running=9), 3),
        # 1,200 tasks of 10 s within 300 s need 40 slots.
        (load(waiting=1200), 10),
        # The same backlog, when half of the time is gone.
        (load(waiting=1200, oldest_s=150), 20),
        # However old it is, a quarter of the time is left.
        (load(waiting=1200, oldest_s=9000), 40),
        # Eight new tasks of 10 s in a second need 80 slots, but there are tasks for 60 only.
        (load(waiting=20, running=40, arrivals_per_s=8), 15),
        (load(waiting=200, running=40, arrivals_per_s=8), 20),
        # Long tasks: each needs a slot of its own.
        (load(waiting=30, service_s=3600.0), 8),
        # A pool has one free slot: more workers would wait for it too.
        (load(waiting=1200, startable=1), 1),
        (load(waiting=1200, startable=0), 0),
        (load(waiting=1200, startable=0, running=4), 1),
        # Nothing has ended yet.
        (load(waiting=300, service_s=None), 3),
        (load(waiting=10**6), 100),
    ],
)
def test_a_decision(now: Workload, expected: int) -> None:
    assert worker_count.workers(now, LIMITS) == expected


def test_the_minimum_stays() -> None:
    assert worker_count.workers(load(), Limits(minimum=2, maximum=5, concurrency=4, drain_s=300, default_service_s=60)) == 2


#: Short tasks before, and tasks that end at the same time, make 16 slots look like too many.
BACKLOG = load(waiting=300, running=12, service_s=4.0)
BLOCKED = load(waiting=1200, startable=0, running=4)


@pytest.mark.parametrize(
    ("loads", "numbers"),
    [
        # It rises at once and falls after the cooldown of 30 s.
        ([(at, load(running=n)) for at, n in ((0, 8), (10, 20), (20, 8), (40, 0), (41, 0), (51, 0), (71, 0))],
         [2, 5, 5, 5, 2, 0, 0]),
        # A small rise after a fall waits for the cooldown, a large one does not.
        ([(at, load(running=n)) for at, n in ((0, 80), (10, 40), (41, 40), (50, 44), (60, 52), (70, 0), (91, 0))]
         + [(92, load(running=1))], [20, 20, 10, 10, 13, 13, 0, 1]),
        # It does not fall while a backlog fills the workers.
        ([(0, load(waiting=480)), *((at, BACKLOG) for at in range(10, 210, 10)), (210, load(waiting=2, running=9)),
          (229, load(running=9)), (231, load(running=9))], [4, *[4] * 20, 4, 4, 3]),
        # Workers that only wait for a pool may stop.
        ([(0, load(waiting=1200)), (10, BLOCKED), (41, BLOCKED)], [10, 10, 1]),
    ],
)  # fmt: skip
def test_the_numbers_of_a_sequence_of_loads(loads: list[tuple[float, Workload]], numbers: list[int]) -> None:
    times = iter([float(at) for at, _ in loads])
    autoscaler = Autoscaler(LIMITS, cooldown_s=30, clock=lambda: next(times))

    assert worker_count.workers(BACKLOG, LIMITS) == 3
    assert [autoscaler.decide(one) for _, one in loads] == numbers


# Loads ---------------------------------------------------------------------------------------------------------------


def burst(random_: random.Random) -> Load:
    """A backfill: 2,000 tasks at once, 5 to 15 s each."""
    return [(0.0, random_.uniform(5, 15)) for _ in range(2000)]


def day(random_: random.Random) -> Load:
    """Two hours with a wave: from no task to eight a second and back, 2 to 30 s each."""
    arrivals, at = [], 0.0
    while at < 7200:
        at += random_.expovariate(0.02 + 8 * math.sin(math.pi * at / 7200) ** 2)
        arrivals.append((at, random_.uniform(2, 30)))
    return arrivals


def steady(random_: random.Random) -> Load:
    """An hour with four tasks a second, 10 s each on average."""
    arrivals, at = [], 0.0
    while at < 3600:
        at += random_.expovariate(4)
        arrivals.append((at, random_.expovariate(1 / 10)))
    return arrivals


def hourly(random_: random.Random) -> Load:
    """Long tasks: every half hour 40 tasks, 5 to 15 minutes each."""
    return [(hour * 1800.0, random_.uniform(300, 900)) for hour in range(6) for _ in range(40)]


@dataclass
class Worker:
    ready_at: float
    started_at: float
    busy: int = 0
    stopping: bool = False


class Simulation:
    """Workers that start in 8 s, take the oldest task first, and drain when the number falls, as `docker compose` or
    Kubernetes would: the newest first, whether it has tasks or not.
    """

    STEP_S, DECIDE_EVERY, START_S = 1.0, 5, 8.0

    def __init__(self, tasks: Load, limits: Limits, cooldown_s: float, *, short_before: int = 0, pause_steps: int = 1) -> None:
        """With `short_before`, so many tasks of half a second have just ended. A slot is free for `pause_steps` steps on average
        before its next task starts: a machine with too little CPU.
        """
        self.now = 0.0
        self.pauses = random.Random(1)
        self.pause_steps = pause_steps
        self.short_before = short_before
        self.autoscaler = Autoscaler(limits, cooldown_s=cooldown_s, clock=lambda: self.now)
        self.limits = limits
        self.arriving = sorted(tasks)
        self.waiting: list[tuple[float, float]] = []
        self.running: list[tuple[float, float, float, int]] = []
        self.ended: list[tuple[float, float, float]] = [(-1.0, -1.5, 0.5)] * short_before
        self.workers: dict[int, Worker] = {}
        self.next_worker = 0
        self.worker_seconds = 0.0
        #: The numbers that were decided, when they changed.
        self.numbers: list[tuple[float, int]] = []
        self.longest_wait_s = 0.0

    def run(self) -> "Simulation":
        total, step = self.short_before + len(self.arriving), 0
        while len(self.ended) < total or self.workers:
            self._arrive_and_end()
            if step % self.DECIDE_EVERY == 0:
                self._scale()
            self._start()
            self.worker_seconds += len(self.workers) * self.STEP_S
            self.now += self.STEP_S
            step += 1
            assert self.now < 10**5, "the load never ends"
        return self

    def _arrive_and_end(self) -> None:
        while self.arriving and self.arriving[0][0] <= self.now:
            heapq.heappush(self.waiting, self.arriving.pop(0))
        while self.running and self.running[0][0] <= self.now:
            end, arrived, service_s, worker = heapq.heappop(self.running)
            self.ended.append((end, arrived, service_s))
            self.workers[worker].busy -= 1
        for number in [n for n, worker in self.workers.items() if worker.stopping and not worker.busy]:
            del self.workers[number]

    def _workload(self) -> Workload:
        recent = self.ended[-2000:]
        times = [service_s for _, _, service_s in recent]
        ages = [self.now - (end - service_s) for end, _, service_s, _ in self.running]
        ended_s, running_s = (sum(found) / len(found) if found else None for found in (times, ages))
        since = self.now - self.limits.drain_s
        known = [a for a, _ in self.waiting] + [a for _, a, _, _ in self.running] + [a for _, a, _ in recent]
        return Workload(
            waiting=len(self.waiting),
            running=sum(not self.workers[worker].stopping for *_, worker in self.running),
            startable=len(self.waiting),
            oldest_s=self.now - self.waiting[0][0] if self.waiting else 0.0,
            service_s=worker_count.service_time(ended_s, running_s),
            arrivals_per_s=sum(at > since for at in known) / self.limits.drain_s,
        )

    def _scale(self) -> None:
        wanted = self.autoscaler.decide(self._workload())
        if not self.numbers or self.numbers[-1][1] != wanted:
            self.numbers.append((self.now, wanted))
        active = [number for number, worker in self.workers.items() if not worker.stopping]
        for number in active[wanted:]:
            self.workers[number].stopping = True
        for _ in range(wanted - len(active)):
            self.workers[self.next_worker] = Worker(ready_at=self.now + self.START_S, started_at=self.now)
            self.next_worker += 1

    def _start(self) -> None:
        for number, worker in self.workers.items():
            while self.waiting and not worker.stopping and worker.ready_at <= self.now and worker.busy < self.limits.concurrency:
                if self.pauses.randrange(self.pause_steps):
                    break
                arrived, service_s = heapq.heappop(self.waiting)
                self.longest_wait_s = max(self.longest_wait_s, self.now - arrived)
                heapq.heappush(self.running, (self.now + service_s, arrived, service_s, number))
                worker.busy += 1


#: The largest number of worker-seconds, as a multiple of the ideal.
MOST = 1.2
#: Each load with the tasks of a worker.
LOADS: list[tuple[Callable[[random.Random], Load], int]] = [(burst, 4), (day, 4), (steady, 4), (hourly, 1)]


def flaps(numbers: list[tuple[float, int]]) -> int:
    """How often the number rose within 30 s after it fell, but not to 0."""
    return sum(
        0 < low < before and high > low and rose_at - fell_at < 30
        for (_, before), (fell_at, low), (rose_at, high) in zip(numbers, numbers[1:], numbers[2:], strict=False)
    )


@pytest.mark.parametrize("pause_steps", [1, 4])
@pytest.mark.parametrize("short_before", [0, 500, 2000])
def test_the_number_rises_once_and_falls_once_in_a_wave(short_before: int, pause_steps: int) -> None:
    """The wave of `make test-compose`, also after short tasks and on a machine with too little CPU, where few slots are taken."""
    limits = replace(LIMITS, maximum=4)

    done = Simulation([(0.0, 10.0)] * 480, limits, 15, short_before=short_before, pause_steps=pause_steps).run()

    numbers = [number for _, number in done.numbers]
    top = numbers.index(4)
    assert numbers[:top] == sorted(numbers[:top])
    assert numbers[top:] == sorted(numbers[top:], reverse=True)
    # A slot that is free for some seconds before each task costs its worker-seconds at any number.
    assert done.worker_seconds <= (MOST if pause_steps == 1 else 2) * 480 * 10 / 4


@pytest.mark.parametrize(("make", "concurrency"), LOADS, ids=lambda value: getattr(value, "__name__", None))
def test_a_load_needs_few_worker_seconds_and_ends_in_time(make: Callable[[random.Random], Load], concurrency: int) -> None:
    """The ideal has no start and no idle slot."""
    limits = replace(LIMITS, concurrency=concurrency)
    tasks = make(random.Random(3))

    done = Simulation(tasks, limits, cooldown_s=30).run()

    ideal = sum(service_s for _, service_s in tasks) / concurrency
    assert done.worker_seconds <= MOST * ideal
    assert done.longest_wait_s <= limits.drain_s * 1.1
    assert done.numbers[-1][1] == 0
    assert flaps(done.numbers) == 0
