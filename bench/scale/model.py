"""A discrete-event model of Paceline: schedulers, workers, PostgreSQL and Redis, which cost what the bench has measured."""

import itertools
import random
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

#: What a process of the model does next.
Step = Generator[simpy.Event, Any, None]
#: CPU is given out in slices of this many seconds, so that a long task does not keep short ones waiting.
SLICE_S = 0.001
#: Seconds after which a scheduler looks without having been woken.
IDLE_S = 1.0
#: `queue_headroom` and `max_tis_per_query`.
HEADROOM, BATCH = 32, 256
#: How a child's CPU and PostgreSQL's are divided; only hops depend on it, not how long a run takes.
CHILD_CLAIM, CHILD_WORK, CHILD_REPORT, CHILD_PUBLISH = 0.3, 0.3, 0.25, 0.15
POSTGRES_CLAIM, POSTGRES_REPORT = 0.35, 0.65


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
    """What was measured. `followed` is a task instance that a worker queued, `scheduled` one that a scheduler queued."""

    followed: Costs
    scheduled: Costs
    #: Until a commit is on the disk; all that wait when it begins share one.
    flush_s: float
    #: A message or an answer is there, and its receiver runs: the rest of a step that is nobody's CPU.
    wake_s: float
    #: Share of the CPU of workers, children and PostgreSQL that is spent beside the step and delays only what needs the same core:
    #: acknowledgments, logs, tidying up, the writers of PostgreSQL.
    beside: float = 0.3
    #: CPU of a scheduler for a pass that finds nothing; and of PostgreSQL for a pass and for a beat of a worker, (always, for each
    #: task instance that is queued or running).
    pass_s: float = 0.001
    pass_postgres_s: tuple[float, float] = (0.001, 0.0)
    beat_postgres_s: tuple[float, float] = (0.0002, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What there is. With `shared_cores` everything runs on one machine of so many cores, else each part on its own."""

    schedulers: int = 1
    workers: int = 1
    children: int = 4
    pools: int = 1
    brokers: int = 1
    heartbeat_s: float = 2.0
    #: Task instances that run all the time beside those of the model, because they take longer than it lasts.
    standing: int = 0
    shared_cores: int | None = None
    postgres_cores: int = 8
    worker_cores: int = 2


@dataclass(frozen=True, slots=True)
class Graph:
    """A DAG by task number: who is below each task, how many are above it. A task uses the CPU, or waits, for `seconds`."""

    below: Sequence[Sequence[int]]
    above: Sequence[int]
    seconds: float = 0.0
    busy: bool = True


@dataclass(slots=True)
class Run:
    """A run that is under way; `ended` has the end of each task, once it is there."""

    graph: Graph
    pool: int
    made_at: float
    left: list[int]
    open: int
    ended: dict[int, float] = field(default_factory=dict)
    closed_at: float | None = None


@dataclass(slots=True)
class Task:
    """A task instance that is ready."""

    run: Run
    number: int
    #: Of its last upstream task; when the run was made if there is none.
    ready_at: float


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

    def __init__(self, parameters: Parameters, deployment: Deployment, seed: int = 1) -> None:
        self.env = simpy.Environment()
        self.parameters = parameters
        self.deployment = deployment
        self.dice = random.Random(seed)
        shared = deployment.shared_cores
        one = Cpu(self.env, shared) if shared else None
        self.postgres = one or Cpu(self.env, deployment.postgres_cores)
        self.redis = [one or Cpu(self.env, 1) for _ in range(deployment.brokers)]
        self.scheduler_cpus = [one or Cpu(self.env, 1) for _ in range(deployment.schedulers)]
        self.log = Log(self.env, parameters.flush_s)
        self.queues = [simpy.Store(self.env) for _ in range(deployment.brokers)]
        self.pools = [simpy.Resource(self.env, 1) for _ in range(deployment.pools)]
        self.pools_held_s = [0.0] * deployment.pools
        self.waiting: list[deque[Task]] = [deque() for _ in range(deployment.pools)]
        self.active = [0] * deployment.pools
        self.hops: list[float] = []
        self.closed: list[Run] = []
        self.done = 0
        self._bell = self.env.event()
        self._pool_of_run = itertools.cycle(range(deployment.pools))
        for cpu in self.scheduler_cpus:
            self.env.process(self._schedule(cpu))
        for number in range(deployment.workers):
            self.env.process(self._consume(one or Cpu(self.env, deployment.worker_cores), number % deployment.brokers))
            self.env.process(self._beat())

    def trigger(self, graph: Graph) -> Run:
        """Make a run now."""
        run = Run(graph, next(self._pool_of_run), self.env.now, list(graph.above), len(graph.above))
        first = [number for number, above in enumerate(graph.above) if not above]
        self.waiting[run.pool].extend(Task(run, number, self.env.now) for number in first)
        self.wake()
        return run

    def wake(self) -> None:
        """Wake the schedulers."""
        if not self._bell.triggered:
            self._bell.succeed()

    # Schedulers

    def _schedule(self, cpu: Cpu) -> Step:
        while True:
            yield self._bell | self.env.timeout(IDLE_S)
            if self._bell.triggered:
                self._bell = self.env.event()
            yield from cpu.use(self.parameters.pass_s)
            for pool in self.dice.sample(range(len(self.pools)), len(self.pools)):
                if self.waiting[pool] and not self.pools[pool].count:
                    yield from self._queue(cpu, pool)
            if any(waiting and active < self._places() for waiting, active in zip(self.waiting, self.active, strict=True)):
                self.wake()

    def _queue(self, cpu: Cpu, pool: int) -> Step:
        """One pass over one pool, which it locks until its commit."""
        cost, places = self.parameters.scheduled, self._places()
        extra = max(0.0, cost.postgres - self.parameters.followed.postgres)
        with self.pools[pool].request() as lock:
            yield lock
            began = self.env.now
            count = max(0, min(len(self.waiting[pool]), places - self.active[pool], BATCH))
            chosen = [self.waiting[pool].popleft() for _ in range(count)]
            self.active[pool] += count
            yield from cpu.use(cost.scheduler * count)
            yield from self.postgres.use(self._by_active(self.parameters.pass_postgres_s) + extra * count)
            yield from self.log.flush()
            self.pools_held_s[pool] += self.env.now - began
        for task in chosen:
            yield from self._send(task)

    def _by_active(self, cost: tuple[float, float]) -> float:
        always, each = cost
        return always + each * (self.deployment.standing + sum(self.active))

    def _places(self) -> int:
        """How many of a pool may be queued or running."""
        one = self.deployment
        return one.workers * one.children // one.pools + HEADROOM

    def _send(self, task: Task) -> Step:
        broker = task.run.pool % len(self.queues)
        yield from self.redis[broker].use(self.parameters.followed.redis)
        self.queues[broker].put(task)

    def _work(self, cpu: Cpu, seconds: float) -> Step:
        """What must be done before the next step, while the rest is left to go on beside it."""
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
        """A child: claim, run, report and follow, send."""
        cost, graph = self.parameters.followed, task.run.graph
        yield self.env.timeout(self.parameters.wake_s)
        yield from self._work(cpu, cost.child * CHILD_CLAIM)
        yield from self._work(self.postgres, cost.postgres * POSTGRES_CLAIM)
        self.hops.append(self.env.now - task.ready_at)
        yield from self._work(cpu, cost.child * CHILD_WORK)
        if graph.busy:
            yield from cpu.use(graph.seconds)
        else:
            yield self.env.timeout(graph.seconds)
        yield from self._work(cpu, cost.child * CHILD_REPORT)
        yield from self._work(self.postgres, cost.postgres * POSTGRES_REPORT)
        successor = self._report(task)
        yield from self.log.flush()
        if successor is not None:
            yield from self._work(cpu, cost.child * CHILD_PUBLISH)
            yield from self._send(successor)
        children.release(child)
        if not task.run.open and task.run.closed_at is None:
            self.env.process(self._close(task.run))

    def _report(self, task: Task) -> Task | None:
        """Record the end and make ready what it decides; who gets the slot."""
        run, now = task.run, self.env.now
        run.ended[task.number] = now
        run.open -= 1
        self.done += 1
        ready = []
        for number in run.graph.below[task.number]:
            run.left[number] -= 1
            if not run.left[number]:
                ready.append(Task(run, number, now))
        waiting = self.waiting[run.pool]
        waiting.extend(ready)
        if not waiting:
            self.active[run.pool] -= 1
            return None
        if len(waiting) > 1 and self.active[run.pool] < self._places():
            self.wake()
        successor = waiting.popleft()
        return successor

    def _close(self, run: Run) -> Step:
        run.closed_at = -1.0
        cpu = self.dice.choice(self.scheduler_cpus)
        yield self.env.timeout(self.parameters.wake_s)
        yield from cpu.use(self.parameters.pass_s)
        yield from self.postgres.use(self.parameters.pass_postgres_s[0])
        yield from self.log.flush()
        run.closed_at = self.env.now
        self.closed.append(run)


def row(count: int, seconds: float = 0.0) -> Graph:
    """Tasks one after the other."""
    return _graph(count, ((number - 1, number) for number in range(1, count)), seconds)


def fan(count: int) -> Graph:
    """One, then many, then one."""
    edges = [(0, number) for number in range(1, count + 1)] + [(number, count + 1) for number in range(1, count + 1)]
    return _graph(count + 2, edges)


def tree(count: int) -> Graph:
    """Each followed by two."""
    return _graph(count, (((number - 1) // 2, number) for number in range(1, count)))


def grid(levels: int, width: int) -> Graph:
    """Each level needs all of the one before."""
    edges = (
        ((level - 1) * width + above, level * width + number)
        for level in range(1, levels)
        for above in range(width)
        for number in range(width)
    )
    return _graph(levels * width, edges)


def _graph(count: int, edges: Iterable[tuple[int, int]], seconds: float = 0.0) -> Graph:
    below: list[list[int]] = [[] for _ in range(count)]
    above = [0] * count
    for one, other in edges:
        below[one].append(other)
        above[other] += 1
    return Graph(below, above, seconds)
