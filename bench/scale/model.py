"""A discrete-event model of Paceline: schedulers, workers, PostgreSQL and Redis, which cost what the bench has measured."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from bench.scale.graphs import Graph

#: The next action of a process of the model.
Step = Generator[simpy.Event, Any, None]
#: CPU is given out in slices of this many seconds, so that a long task does not keep short ones waiting.
SLICE_S = 0.001
#: Seconds after which a scheduler looks without having been woken, and between two sweeps.
IDLE_S = 1.0
#: Seconds for which a sweep looks back further than the last one, see services/sweep.py.
LATE_S = 5.0
#: `queue_headroom`, `max_tis_per_query`, and the most runs that one transaction of promote examines.
HEADROOM, BATCH, RUNS = 32, 256, 20
#: The shares of the CPU of a child and of PostgreSQL; only hops depend on it, not how long a run takes.
CHILD_CLAIM, CHILD_WORK, CHILD_REPORT, CHILD_PUBLISH = 0.3, 0.3, 0.25, 0.15
POSTGRES_CLAIM, POSTGRES_REPORT = 0.35, 0.65
#: CPU of a scheduler for a pass that finds nothing.
PASS_S = 0.001
#: Seconds: always, and for each.
Line = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """CPU of a scheduler and of PostgreSQL."""

    scheduler: Line = (0.0, 0.0)
    postgres: Line = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of CPU that one task instance takes from each process on its way from ready to success."""

    scheduler: float
    worker: float
    child: float
    postgres: float
    redis: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The measurements. `followed` is a task instance that a worker queued, `in_place` one with which its process continued."""

    followed: Costs
    in_place: Costs
    #: Until a commit is on the disk; all that wait when it begins share one.
    flush_s: float
    #: A message or an answer is there, and its receiver runs: the rest of a step that is nobody's CPU.
    wake_s: float
    #: Share of the CPU of workers, children and PostgreSQL that is spent beside the step and delays only what needs the same core:
    #: acknowledgments, logs, tidying up, the writers of PostgreSQL.
    beside: float = 0.3
    #: CPU of PostgreSQL for a pass and for a beat of a worker is by the task instances that are queued or running.
    pass_s: float = PASS_S
    pass_postgres_s: Line = (0.001, 0.0)
    beat_postgres_s: Line = (0.0002, 0.0)
    #: A task instance that a scheduler queues, beside `followed`.
    queue: Work = Work()
    #: Making, starting and closing a run, by its tasks. The first by a scheduler, or by the client that triggers.
    make: Work = Work()
    start: Work = Work()
    close: Work = Work()
    #: A sweep, by the open runs in which a task has ended lately.
    sweep: Work = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The hardware and processes. With `shared_cores` everything runs on one machine of so many cores, else each part on its
    own.
    """

    schedulers: int = 1
    workers: int = 1
    children: int = 4
    pools: int = 1
    brokers: int = 1
    heartbeat_s: float = 2.0
    #: worker.in_place_seconds.
    in_place_s: float = 0.2
    #: Of each pool; None if as many as all children.
    slots: int | None = None
    #: Task instances that run all the time beside those of the model, because they take longer than it lasts.
    standing: int = 0
    shared_cores: int | None = None
    postgres_cores: int = 8
    worker_cores: int = 2


@dataclass(slots=True)
class Run:
    """A run that is under way; `ended` has the end of each task, once it is there."""

    number: int
    graph: Graph
    pool: int
    left: list[int]
    open: int
    ended: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Task:
    """A task instance that is ready. `since` is the start of its last upstream task plus the time of its user code, or the start
    of its run."""

    run: Run
    number: int
    since: float

    def __lt__(self, other: "Task") -> bool:
        """Whether it ranks before another one."""
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[int, int, int]:
        return -self.run.graph.weights[self.number], self.run.number, self.number


class Cpu:
    """Some cores. `busy_s` is what they have worked."""

    def __init__(self, env: simpy.Environment, cores: int) -> None:
        self._env = env
        self.cores = cores
        self._free = simpy.Resource(env, cores)
        self.busy_s = 0.0

    def use(self, seconds: float) -> Step:
        """Work for so long, in slices."""
        self.busy_s += seconds
        while seconds > 0:
            part = min(seconds, SLICE_S)
            with self._free.request() as core:
                yield core
                yield self._env.timeout(part)
            seconds -= part


class Log:
    """The write-ahead log: one flush at a time, which all who wait when it begins share."""

    def __init__(self, env: simpy.Environment, flush_s: float) -> None:
        self._env = env
        self._flush_s = flush_s
        self._next = env.event()
        self._wanted = env.event()
        self.busy_s = 0.0
        env.process(self._write())

    def flush(self) -> Step:
        """Wait until what was written before is on the disk."""
        if not self._wanted.triggered:
            self._wanted.succeed()
        yield self._next

    def _write(self) -> Step:
        while True:
            yield self._wanted
            waiting, self._next, self._wanted = self._next, self._env.event(), self._env.event()
            yield self._env.timeout(self._flush_s)
            self.busy_s += self._flush_s
            waiting.succeed()


class Model:
    """A deployment that runs; `trigger` gives it work, `env.run` lets time pass."""

    def __init__(self, parameters: Parameters, deployment: Deployment) -> None:
        self.env = simpy.Environment()
        self.parameters = parameters
        self.deployment = deployment
        self.dice = random.Random(1)
        shared = deployment.shared_cores
        one = Cpu(self.env, shared) if shared else None
        self.postgres = one or Cpu(self.env, deployment.postgres_cores)
        self.redis = [one or Cpu(self.env, 1) for _ in range(deployment.brokers)]
        self.scheduler_cpus = [one or Cpu(self.env, 1) for _ in range(deployment.schedulers)]
        self.log = Log(self.env, parameters.flush_s)
        self.queues = [simpy.Store(self.env) for _ in range(deployment.brokers)]
        self.pools = [simpy.Resource(self.env, 1) for _ in range(deployment.pools)]
        self.pools_held_s = [0.0] * deployment.pools
        #: Heaps.
        self.waiting: list[list[Task]] = [[] for _ in range(deployment.pools)]
        self.active = [0] * deployment.pools
        self.hops: list[float] = []
        self.closed: list[Run] = []
        self.done = 0
        #: Runs that promote has to start and to close; how many are open; and when tasks ended.
        self._made: list[Run] = []
        self._over: list[Run] = []
        self.open = 0
        self._ends: deque[float] = deque()
        self._numbers = itertools.count()
        self._bell = self.env.event()
        self._pool_of_run = itertools.cycle(range(deployment.pools))
        for cpu in self.scheduler_cpus:
            self.env.process(self._schedule(cpu))
        for number in range(deployment.workers):
            self.env.process(self._consume(one or Cpu(self.env, deployment.worker_cores), number % deployment.brokers))
            self.env.process(self._beat())

    def trigger(self, graph: Graph, count: int = 1, cpu: Cpu | None = None) -> None:
        """Make runs one after the other, from now on: with the CPU of a client, or of any scheduler."""
        self.env.process(self._make(graph, count, cpu or self.dice.choice(self.scheduler_cpus)))

    def _make(self, graph: Graph, count: int, cpu: Cpu) -> Step:
        for _ in range(count):
            yield from self._do(cpu, self.parameters.make, len(graph.above))
            yield from self.log.flush()
            self._made.append(Run(next(self._numbers), graph, next(self._pool_of_run), list(graph.above), len(graph.above)))
            self.open += 1
            self.wake()

    def _do(self, cpu: Cpu, work: Work, each: int, times: int = 1) -> Step:
        yield from cpu.use(work.scheduler[0] * times + work.scheduler[1] * each)
        yield from self.postgres.use(work.postgres[0] * times + work.postgres[1] * each)

    def wake(self) -> None:
        """Wake the schedulers."""
        if not self._bell.triggered:
            self._bell.succeed()

    # Schedulers

    def _schedule(self, cpu: Cpu) -> Step:
        sweep_at = IDLE_S
        while True:
            yield self._bell | self.env.timeout(IDLE_S)
            if self._bell.triggered:
                self._bell = self.env.event()
            yield from cpu.use(self.parameters.pass_s)
            yield from self._promote(cpu)
            if self.env.now >= sweep_at:
                sweep_at = self.env.now + IDLE_S
                yield from self._do(cpu, self.parameters.sweep, self._touched())
            for pool in self.dice.sample(range(len(self.pools)), len(self.pools)):
                if self.waiting[pool] and not self.pools[pool].count:
                    yield from self._queue(cpu, pool)
            if any(waiting and active < self._places() for waiting, active in zip(self.waiting, self.active, strict=True)):
                self.wake()

    def _promote(self, cpu: Cpu) -> Step:
        """Start the runs that were made, and close those that are over, in transactions of RUNS."""
        made, self._made = self._made, []
        over, self._over = self._over, []
        for work, all_runs, then in ((self.parameters.start, made, self._start), (self.parameters.close, over, self._close)):
            for at in range(0, len(all_runs), RUNS):
                batch = all_runs[at : at + RUNS]
                yield from self._do(cpu, work, sum(len(run.graph.above) for run in batch), len(batch))
                yield from self.log.flush()
                for run in batch:
                    then(run)

    def _start(self, run: Run) -> None:
        for number, above in enumerate(run.graph.above):
            if not above:
                heapq.heappush(self.waiting[run.pool], Task(run, number, self.env.now))

    def _close(self, run: Run) -> None:
        self.open -= 1
        self.closed.append(run)

    def _touched(self) -> int:
        """Open runs in which a task has ended since shortly before the last sweep, if no run has more than one of them."""
        while self._ends and self._ends[0] < self.env.now - IDLE_S - LATE_S:
            self._ends.popleft()
        return min(self.open + self.deployment.standing, len(self._ends))

    def _queue(self, cpu: Cpu, pool: int) -> Step:
        """One pass over one pool, which it locks until its commit."""
        work, places = self.parameters.queue, self._places()
        with self.pools[pool].request() as lock:
            yield lock
            began = self.env.now
            count = max(0, min(len(self.waiting[pool]), places - self.active[pool], BATCH))
            chosen = [heapq.heappop(self.waiting[pool]) for _ in range(count)]
            self.active[pool] += count
            yield from self._do(cpu, work, count)
            yield from self.postgres.use(self._by_active(self.parameters.pass_postgres_s))
            yield from self.log.flush()
            self.pools_held_s[pool] += self.env.now - began
        for task in chosen:
            yield from self._send(task)

    def _by_active(self, cost: Line) -> float:
        always, each = cost
        return always + each * (self.deployment.standing + sum(self.active))

    def _places(self) -> int:
        """How many of a pool may be queued or running, besides those that stand."""
        one = self.deployment
        places = one.workers * one.children // one.pools + HEADROOM
        return places if one.slots is None else min(places, one.slots - one.standing // one.pools)

    def _send(self, task: Task) -> Step:
        broker = task.run.pool % len(self.queues)
        yield from self.redis[broker].use(self.parameters.followed.redis)
        self.queues[broker].put(task)

    def _work(self, cpu: Cpu, seconds: float) -> Step:
        """The work before the next step; the rest continues beside it."""
        beside = self.parameters.beside
        yield from cpu.use(seconds * (1 - beside))
        if beside:
            self.env.process(cpu.use(seconds * beside))

    # Workers

    def _beat(self) -> Step:
        yield self.env.timeout(self.dice.random() * self.deployment.heartbeat_s)
        while True:
            yield from self.postgres.use(self._by_active(self.parameters.beat_postgres_s))
            yield self.env.timeout(self.deployment.heartbeat_s)

    def _consume(self, cpu: Cpu, broker: int) -> Step:
        """A worker's parent: takes a message only for a child that is free."""
        children = simpy.Resource(self.env, self.deployment.children)
        while True:
            child = children.request()
            yield child
            task = yield self.queues[broker].get()
            yield self.env.timeout(self.parameters.wake_s)
            yield from self._work(cpu, self.parameters.followed.worker)
            self.env.process(self._run(task, cpu, children, child))

    def _run(self, task: Task, cpu: Cpu, children: simpy.Resource, child: Any) -> Step:
        """A child: claim, run, report and follow. Then it continues in place, or sends what follows."""
        cost = self.parameters.followed
        yield self.env.timeout(self.parameters.wake_s)
        until = self.env.now + self.deployment.in_place_s
        yield from self._work(cpu, cost.child * CHILD_CLAIM)
        yield from self._work(self.postgres, cost.postgres * POSTGRES_CLAIM)
        started, report = self.env.now, (cost.child * CHILD_REPORT, cost.postgres * POSTGRES_REPORT)
        yield from self._work(cpu, cost.child * CHILD_WORK)
        while True:
            self.hops.append(started - task.since)
            yield from self._user_code(cpu, task.run.graph)
            in_place = self.env.now < until
            yield from self._work(cpu, report[0])
            yield from self._work(self.postgres, report[1])
            successor, ended_at = self._report(task, started), self.env.now
            yield from self.log.flush()
            if not task.run.open:
                self._over.append(task.run)
                self.wake()
            if successor is None or not in_place:
                break
            task, started = successor, ended_at
            # All that is left of a claim and of a message; the loop of the parent runs now and then.
            report = self.parameters.in_place.child, self.parameters.in_place.postgres
            self.env.process(cpu.use(self.parameters.in_place.worker))
        if successor is not None:
            yield from self._work(cpu, cost.child * CHILD_PUBLISH)
            yield from self._send(successor)
        children.release(child)

    def _user_code(self, cpu: Cpu, graph: Graph) -> Step:
        if graph.busy:
            yield from cpu.use(graph.seconds)
        else:
            yield self.env.timeout(graph.seconds)

    def _report(self, task: Task, started: float) -> Task | None:
        """Record the end and make ready what it decides. Returns who gets the slot: the first in line, if it is of the same run.
        If one of another run ranks first, the queue service fills the slot."""
        run = task.run
        run.ended[task.number] = self.env.now
        run.open -= 1
        self.done += 1
        self._ends.append(self.env.now)
        waiting = self.waiting[run.pool]
        for number in run.graph.below[task.number]:
            run.left[number] -= 1
            if not run.left[number]:
                heapq.heappush(waiting, Task(run, number, started + run.graph.seconds))
        successor = heapq.heappop(waiting) if waiting and waiting[0].run is run else None
        self.active[run.pool] -= successor is None
        if waiting and self.active[run.pool] < self._places():
            self.wake()
        return successor
