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
#: CPU is assigned in slices of this many seconds, so that a long task does not delay short ones.
SLICE_S = 0.001
#: Seconds between two polls of a scheduler without a wakeup, and between two sweeps.
IDLE_S = 1.0
#: Seconds by which a sweep looks back beyond the last one, see services/sweep.py.
LATE_S = 5.0
#: `prefetch_window`, `max_tis_per_query`, and the most runs that one transaction of promote examines.
PREFETCH_WINDOW, BATCH, RUNS = 32, 256, 20
#: The shares of the steps of a task in the CPU of a child and of PostgreSQL. Only hops depend on them, not makespans.
CHILD_CLAIM, CHILD_WORK, CHILD_REPORT, CHILD_PUBLISH = 0.3, 0.3, 0.25, 0.15
POSTGRES_CLAIM, POSTGRES_REPORT = 0.35, 0.65
#: CPU of a scheduler for a pass that finds nothing.
PASS_S = 0.001
#: Seconds in any case, and seconds for each.
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


NO_COSTS = Costs(scheduler=0, worker=0, child=0, postgres=0, redis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The measurements. `followed` is a task instance that a worker queued, `in_place` one with which its process continued."""

    followed: Costs
    in_place: Costs
    #: What a mapped task instance takes in addition: it reads its value.
    mapped: Costs = NO_COSTS
    #: Seconds of a flush to the disk. All commits that wait when it begins share it.
    flush_s: float
    #: Seconds from the arrival of a message or an answer until its receiver runs, which is no process's CPU.
    wake_s: float
    #: Seconds from the stored start of a run until its first tasks can be queued, which is no process's CPU.
    start_s: float = 0.0
    #: The share of the CPU of workers, children and PostgreSQL that does not delay the step itself, only work on the same core:
    #: acknowledgments, logs, cleanup, the writers of PostgreSQL.
    beside: float = 0.3
    #: CPU of a scheduler for a pass; CPU of PostgreSQL for a pass and for a heartbeat of a worker, by queued and running tasks.
    pass_s: float = PASS_S
    pass_postgres_s: Line = (0.001, 0.0)
    beat_postgres_s: Line = (0.0002, 0.0)
    #: Queueing a task instance by a scheduler, in addition to `followed`.
    queue: Work = Work()
    #: Creating, starting and closing a run, by its tasks. A scheduler or the client that triggers creates it.
    make: Work = Work()
    start: Work = Work()
    close: Work = Work()
    #: A sweep, by the open runs in which a task has ended recently.
    sweep: Work = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The hardware and processes. With `shared_cores`, all parts share one machine. Otherwise, each part has its own."""

    schedulers: int = 1
    workers: int = 1
    children: int = 4
    pools: int = 1
    brokers: int = 1
    heartbeat_s: float = 2.0
    #: worker.in_place_seconds.
    in_place_s: float = 0.2
    #: Slots of each pool. None: as many as there are children.
    slots: int | None = None
    #: Further task instances that run during the whole simulation.
    standing: int = 0
    shared_cores: int | None = None
    postgres_cores: int = 8
    worker_cores: int = 2


@dataclass(slots=True)
class Run:
    """An open run. `ended` has the times at which its tasks ended."""

    number: int
    graph: Graph
    pool: int
    left: list[int]
    open: int
    ended: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Task:
    """A ready task instance.

    `since` is the start of its last upstream task plus the duration of that task's user code, or else the start of its run.
    """

    run: Run
    number: int
    since: float

    def __lt__(self, other: "Task") -> bool:
        """Whether it ranks before another task instance."""
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[int, int, int]:
        return -self.run.graph.weights[self.number], self.run.number, self.number


class Cpu:
    """Some cores. `busy_s` is their CPU time so far."""

    def __init__(self, env: simpy.Environment, cores: int) -> None:
        self._env = env
        self._free = simpy.Resource(env, cores)
        self.busy_s = 0.0

    def use(self, seconds: float) -> Step:
        """Use a core, in slices."""
        self.busy_s += seconds
        while seconds > 0:
            part = min(seconds, SLICE_S)
            with self._free.request() as core:
                yield core
                yield self._env.timeout(part)
            seconds -= part


class Log:
    """The write-ahead log. All commits that wait when a flush begins share it."""

    def __init__(self, env: simpy.Environment, flush_s: float) -> None:
        self._env = env
        self._flush_s = flush_s
        self._next = env.event()
        self._wanted = env.event()
        self.busy_s = 0.0
        env.process(self._write())

    def flush(self) -> Step:
        """Wait until earlier writes are on the disk."""
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
    """A running deployment. `trigger` creates runs, and `env.run` lets time pass."""

    def __init__(self, parameters: Parameters, deployment: Deployment) -> None:
        self.env = simpy.Environment()
        self.parameters = parameters
        self.deployment = deployment
        self.dice = random.Random(1)
        shared = deployment.shared_cores
        machine = Cpu(self.env, shared) if shared else None
        self.postgres = machine or Cpu(self.env, deployment.postgres_cores)
        self.redis = [machine or Cpu(self.env, 1) for _ in range(deployment.brokers)]
        self.scheduler_cpus = [machine or Cpu(self.env, 1) for _ in range(deployment.schedulers)]
        self.log = Log(self.env, parameters.flush_s)
        self.queues = [simpy.Store(self.env) for _ in range(deployment.brokers)]
        self.pools = [simpy.Resource(self.env, 1) for _ in range(deployment.pools)]
        self.pools_held_s = [0.0] * deployment.pools
        #: A heap for each pool.
        self.waiting: list[list[Task]] = [[] for _ in range(deployment.pools)]
        self.active = [0] * deployment.pools
        self.hops: list[float] = []
        self.closed: list[Run] = []
        #: Task instances of the runs that were triggered, and those that have ended.
        self.triggered = 0
        self.done = 0
        #: Runs that promote has to start and to close, the number of open runs, and the times at which tasks ended.
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
            self.env.process(self._consume(machine or Cpu(self.env, deployment.worker_cores), number % deployment.brokers))
            self.env.process(self._beat())

    def trigger(self, graph: Graph, count: int = 1, cpu: Cpu | None = None) -> None:
        """Create runs one after the other, on this CPU or on that of a random scheduler."""
        self.env.process(self._make(graph, count, cpu or self.dice.choice(self.scheduler_cpus)))

    def _make(self, graph: Graph, count: int, cpu: Cpu) -> Step:
        for _ in range(count):
            self.triggered += len(graph.above)
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
        """Start new runs and close ended ones, RUNS in a transaction."""
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
        if self.parameters.start_s:
            self.env.process(self._start_later(run))
        else:
            self._ready(run, self.env.now)

    def _start_later(self, run: Run) -> Step:
        since = self.env.now
        yield self.env.timeout(self.parameters.start_s)
        self._ready(run, since)
        self.wake()

    def _ready(self, run: Run, since: float) -> None:
        for number, above in enumerate(run.graph.above):
            if not above:
                heapq.heappush(self.waiting[run.pool], Task(run, number, since))

    def _close(self, run: Run) -> None:
        self.open -= 1
        self.closed.append(run)

    def _touched(self) -> int:
        """Open runs in which a task has ended since shortly before the last sweep. Assumes one such task for each run."""
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
        """The number of task instances of a pool that may be queued or running, besides the standing ones."""
        config = self.deployment
        places = config.workers * config.children // config.pools + PREFETCH_WINDOW
        return places if config.slots is None else min(places, config.slots - config.standing // config.pools)

    def _send(self, task: Task) -> Step:
        broker = task.run.pool % len(self.queues)
        yield from self.redis[broker].use(self.parameters.followed.redis)
        self.queues[broker].put(task)

    def _work(self, cpu: Cpu, seconds: float) -> Step:
        """Do the work of a step. The share `beside` runs in parallel with the next step."""
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
        """The parent process of a worker, which takes a message only for a free child."""
        children = simpy.Resource(self.env, self.deployment.children)
        while True:
            child = children.request()
            yield child
            task = yield self.queues[broker].get()
            yield self.env.timeout(self.parameters.wake_s)
            yield from self._work(cpu, self.parameters.followed.worker)
            self.env.process(self._run(task, cpu, children, child))

    def _run(self, task: Task, cpu: Cpu, children: simpy.Resource, child: Any) -> Step:
        """A pool process: claim, run, report and follow. Then it continues in place, or sends the next message."""
        cost = self.parameters.followed
        yield self.env.timeout(self.parameters.wake_s)
        until = self.env.now + self.deployment.in_place_s
        yield from self._work(cpu, cost.child * CHILD_CLAIM)
        yield from self._work(self.postgres, cost.postgres * POSTGRES_CLAIM)
        started, report = self.env.now, (cost.child * CHILD_REPORT, cost.postgres * POSTGRES_REPORT)
        yield from self._work(cpu, cost.child * CHILD_WORK)
        while True:
            self.hops.append(started - task.since)
            if task.run.graph.mapped and task.number:
                yield from self._work(cpu, self.parameters.mapped.child)
                yield from self._work(self.postgres, self.parameters.mapped.postgres)
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
            # In place, there is no claim and no message. Only the loop of the parent process runs at times.
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
        """Record the end, and make downstream tasks ready. Returns the task that gets the slot: the first in line, if it is of the
        same run. If a task of another run ranks first, the queue service fills the slot.
        """
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
