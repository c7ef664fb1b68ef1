"""A discrete-event model of Paceline: schedulers, workers, PostgreSQL and Redis, which cost what the bench has measured."""

import contextlib
import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field

import simpy

from bench.scale.graphs import Graph
from bench.scale.hardware import Cpu, Log, OwnCpus, Step
from bench.scale.parameters import Deployment, Line, Parameters, Work, at

#: Seconds between two polls of a scheduler without a wakeup, and between two sweeps.
IDLE_S = 1.0
#: Seconds by which a sweep looks back beyond the last one, and the task instances that it checks, see services/sweep.py.
LATE_S, MOST_SWEPT = 5.0, 20_000
#: `prefetch_window`, `max_tis_per_query`, and the most runs that one transaction of promote examines.
PREFETCH_WINDOW, BATCH, RUNS = 32, 256, 20
#: The most tasks of a run that the process that creates it can begin, see docs/explanation/first-task.md.
MOST_OF_BEGUN = 100
#: With more workers than this, each has CPU to spare, so none of them is a process of the model.
FEW_WORKERS = 20
#: The shares of the steps of a task in the CPU of a child and of PostgreSQL. Only hops depend on them, not makespans.
CHILD_CLAIM, CHILD_WORK, CHILD_REPORT, CHILD_PUBLISH = 0.3, 0.3, 0.25, 0.15
POSTGRES_CLAIM, POSTGRES_REPORT = 0.35, 0.65


@dataclass(slots=True)
class Run:
    """An open run. `ended` has the times at which its tasks ended, and `held_s` counts how long its row was locked."""

    number: int
    graph: Graph
    pool: int
    left: list[int]
    open: int
    asked_at: float
    ended: dict[int, float] = field(default_factory=dict)
    held_s: float = 0.0


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


class Model:
    """A running deployment. `trigger` and `plan` create runs, and `run` lets time pass. Each task opens `opened` connections."""

    def __init__(self, parameters: Parameters, deployment: Deployment, opened: float = 0.0) -> None:
        self.env = env = simpy.Environment()
        self.parameters = parameters
        self.deployment = deployment
        self.dice = random.Random(1)
        self._connecting_s = parameters.connection_s * opened
        shared, slowdown = deployment.shared_cores, parameters.slowdown
        machine = Cpu(env, shared, slowdown) if shared else None
        self.postgres = machine or Cpu(env, deployment.postgres_cores, slowdown)
        self.redis = [machine or Cpu(env, 1) for _ in range(deployment.brokers)]
        self.scheduler_cpus = [machine or Cpu(env, 1) for _ in range(deployment.schedulers)]
        self.log = Log(env, parameters.flush_s, deployment.disk_bytes_per_s)
        self.queues = [simpy.Store(env) for _ in range(deployment.brokers)]
        self.pools = [simpy.Resource(env, 1) for _ in range(deployment.pools)]
        self.pools_held_s = [0.0] * deployment.pools
        #: A heap for each pool.
        self.waiting: list[list[Task]] = [[] for _ in range(deployment.pools)]
        self.active = [0] * deployment.pools
        self.hops: list[float] = []
        self.closed: list[Run] = []
        #: Task instances that have ended, started, and become ready.
        self.done = self._started = self._ready_so_far = 0
        #: Runs that promote has to start, the number of open runs, and the times at which tasks ended.
        self._made: list[Run] = []
        self.open = 0
        #: Of the closed runs: how long their rows were locked by schedulers, and how long they were open.
        self.runs_held_s = self.runs_open_s = 0.0
        self._ends: deque[float] = deque()
        self._sweep_at = IDLE_S
        self._open_tasks = 0
        self._numbers = itertools.count()
        self._bell = env.event()
        self._pool_of_run = itertools.cycle(range(deployment.pools))
        for cpu in self.scheduler_cpus:
            env.process(self._schedule(cpu))
        self._start_workers(machine)
        env.process(self._beat())

    def trigger(self, graph: Graph, count: int = 1) -> None:
        """Create runs one after the other in a client on the CPU of a random scheduler. It queues their first tasks if it may."""
        self.env.process(self._create_all(graph, count, self.dice.choice(self.scheduler_cpus), is_client=True))

    def plan(self, graph: Graph) -> None:
        """Create a run in a random scheduler. Its queue service queues the first tasks."""
        self.env.process(self._create_all(graph, 1, self.dice.choice(self.scheduler_cpus), is_client=False))

    def run(self, until_s: float, most_steps: int) -> bool:
        """Let time pass until this moment. False if it takes more steps than this, and time stopped before."""
        for _ in range(most_steps):
            if self.env.peek() >= until_s:
                return True
            self.env.step()
        return False

    @property
    def backlog(self) -> int:
        """Task instances that are ready and have not started, with the first ones of runs that are due and not created yet."""
        return self._ready_so_far - self._started

    def _create_all(self, graph: Graph, count: int, cpu: Cpu, *, is_client: bool) -> Step:
        for _ in range(count):
            self._ready_so_far += graph.above.count(0)
            pool, left = next(self._pool_of_run), list(graph.above)
            yield from self._create(Run(next(self._numbers), graph, pool, left, len(left), self.env.now), cpu, is_client)

    def _create(self, run: Run, cpu: Cpu, is_client: bool) -> Step:
        tasks, pool = len(run.graph.above), run.pool
        begins = tasks <= MOST_OF_BEGUN and not run.graph.mapped
        work = self.parameters.begin if begins else self.parameters.make
        yield from cpu.use(at(work.scheduler, tasks))
        # It neither waits for the lock of a pool, nor overtakes a task instance that waits.
        may_queue = begins and is_client and not self.waiting[pool] and not self.pools[pool].count
        queued = may_queue and self.active[pool] < self._places()
        began = self.env.now
        with self.pools[pool].request() if queued else contextlib.nullcontext():
            self.active[pool] += queued
            workers_s = self.parameters.begin_of_worker_s * self.deployment.workers if queued else 0.0
            yield from self.postgres.use(at(work.postgres, tasks) + workers_s)
            yield from self.log.flush(self.parameters.wal.of_run)
            self.pools_held_s[pool] += (self.env.now - began) * queued
        self.open += 1
        self._open_tasks += tasks
        if not begins:
            self._made.append(run)
        else:
            self._ready(run, without_first=queued)
        if queued:
            yield from self._send(Task(run, 0, run.asked_at))
        if not queued or self.waiting[pool]:
            self.wake()

    def _do(self, cpu: Cpu, work: Work, each: int, times: int = 1) -> Step:
        for used, (always, one) in ((cpu, work.scheduler), (self.postgres, work.postgres)):
            yield from used.use(always * times + one * each)

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
            yield from self._promote(cpu)
            # One scheduler sweeps for all.
            if self.env.now >= self._sweep_at:
                self._sweep_at = self.env.now + IDLE_S
                yield from self._do(cpu, self.parameters.sweep, self._touched())
            for pool in self.dice.sample(range(len(self.pools)), len(self.pools)):
                if self._may_queue(pool):
                    yield from self._queue(cpu, pool)
            if any(self._may_queue(pool) for pool in range(len(self.pools))):
                self.wake()

    def _may_queue(self, pool: int) -> bool:
        """Whether a pass could queue something now. The process that holds the pool wakes the schedulers later."""
        return bool(self.waiting[pool]) and not self.pools[pool].count and self.active[pool] < self._places()

    def _promote(self, cpu: Cpu) -> Step:
        """Start new runs, RUNS in a transaction."""
        made, self._made = self._made, []
        for batch in (made[first : first + RUNS] for first in range(0, len(made), RUNS)):
            began = self.env.now
            yield from self._do(cpu, self.parameters.start, sum(len(run.graph.above) for run in batch), len(batch))
            yield from self.log.flush()
            for run in batch:
                run.held_s += self.env.now - began
                self._ready(run)

    def _ready(self, run: Run, *, without_first: bool = False) -> None:
        for number, above in enumerate(run.graph.above):
            if not above and not (without_first and number == 0):
                heapq.heappush(self.waiting[run.pool], Task(run, number, run.asked_at))

    def _close(self, run: Run, cpu: Cpu | OwnCpus) -> Step:
        """By the pool process that has reported the last task. It does not wait for the disk."""
        for used, line in ((cpu, self.parameters.close.scheduler), (self.postgres, self.parameters.close.postgres)):
            yield from used.use(at(line, len(run.graph.above)))
        self.open -= 1
        self._open_tasks -= len(run.graph.above)
        self.closed.append(run)
        self.runs_held_s += run.held_s
        self.runs_open_s += self.env.now - run.asked_at

    def _touched(self) -> int:
        """Open runs that a sweep checks: those in which a task has ended since shortly before the last one, each only one."""
        while self._ends and self._ends[0] < self.env.now - IDLE_S - LATE_S:
            self._ends.popleft()
        most = MOST_SWEPT * self.open // max(1, self._open_tasks)
        return min(self.open + self.deployment.standing, len(self._ends), most)

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
            of_workers_s = self.parameters.pass_of_worker_s * self.deployment.workers
            yield from self.postgres.use(self._by_active(self.parameters.pass_postgres_s) + of_workers_s)
            yield from self.log.flush()
            self.pools_held_s[pool] += self.env.now - began
            for run in {task.run.number: task.run for task in chosen}.values():
                run.held_s += self.env.now - began
        if self.waiting[pool]:
            self.wake()
        for task in chosen:
            yield from self._send(task)

    def _by_active(self, cost: Line) -> float:
        return at(cost, self.deployment.standing + sum(self.active))

    def _places(self) -> int:
        """The number of task instances of a pool that may be queued or running, besides the standing ones."""
        config = self.deployment
        places = config.processes // config.pools + PREFETCH_WINDOW
        return places if config.slots is None else min(places, config.slots - config.standing // config.pools)

    def _send(self, task: Task) -> Step:
        broker = task.run.pool % len(self.queues)
        yield from self.redis[broker].use(self.parameters.followed.redis)
        self.queues[broker].put(task)

    def _work(self, cpu: Cpu | OwnCpus, seconds: float, *, in_place: bool = False) -> Step:
        """Do the work of a step. Of a task that came by message, the share `beside` runs in parallel with the next step."""
        beside = 0.0 if in_place else self.parameters.beside
        yield from cpu.use(seconds * (1 - beside))
        if beside:
            self.env.process(cpu.use(seconds * beside))

    # Workers

    def _beat(self) -> Step:
        """The heartbeats of all workers, evenly spread."""
        cost, workers = self.parameters.beat_postgres_s, self.deployment.workers
        while True:
            yield self.env.timeout(self.deployment.heartbeat_s / workers)
            self.env.process(self.postgres.use(self._by_active(cost) + self.parameters.beat_of_worker_s * workers))

    def _start_workers(self, machine: Cpu | None) -> None:
        config, env = self.deployment, self.env
        if config.workers <= FEW_WORKERS:
            for number in range(config.workers):
                cpu = machine or Cpu(env, config.worker_cores, self.parameters.slowdown)
                env.process(self._consume(cpu, number % config.brokers, config.children, in_turn=True))
        else:
            for broker in range(config.brokers):
                env.process(self._consume(OwnCpus(env), broker, config.processes // config.brokers, in_turn=False))

    def _consume(self, cpu: Cpu | OwnCpus, broker: int, children: int, *, in_turn: bool) -> Step:
        """The parent process of a worker, or those of many, takes a message only for a free child. One takes one after another."""
        free = simpy.Container(self.env, children, children)
        while True:
            yield free.get(1)
            task = yield self.queues[broker].get()
            if in_turn:
                yield from self._receive(cpu)
            self.env.process(self._run(task, cpu, free, received=in_turn))

    def _receive(self, cpu: Cpu | OwnCpus) -> Step:
        yield self.env.timeout(self.parameters.wake_s)
        yield from self._work(cpu, self.parameters.followed.worker)

    def _run(self, task: Task, cpu: Cpu | OwnCpus, free: simpy.Container, *, received: bool) -> Step:
        """A pool process: claim, run, report and follow. Then it continues in place, or sends the next message."""
        cost = self.parameters.followed
        if not received:
            yield from self._receive(cpu)
        yield self.env.timeout(self.parameters.wake_s)
        until = self.env.now + self.deployment.in_place_s
        yield from self._work(cpu, cost.child * CHILD_CLAIM)
        yield from self._answer(cost.postgres * POSTGRES_CLAIM + self._connecting_s)
        started, report = self.env.now, (cost.child * CHILD_REPORT, cost.postgres * POSTGRES_REPORT)
        yield from self._work(cpu, cost.child * CHILD_WORK)
        follows = False
        while True:
            self.hops.append(started - task.since)
            self._started += 1
            if task.run.graph.mapped and task.number:
                yield from self._work(cpu, self.parameters.mapped.child, in_place=follows)
                yield from self._work(self.postgres, self.parameters.mapped.postgres, in_place=follows)
            yield from self._user_code(cpu, task.run.graph)
            in_place = self.env.now < until
            yield from self._work(cpu, report[0], in_place=follows)
            yield from self._answer(report[1], in_place=follows)
            successor, ended_at = self._report(task, started), self.env.now
            is_last = not task.run.open  # others may report during the flush
            yield from self.log.flush(self.parameters.wal.of_task + self.parameters.wal.to_tables)
            if is_last:
                yield from self._close(task.run, cpu)
            if successor is None or not in_place:
                break
            task, started, follows = successor, ended_at, True
            # In place, there is no claim and no message. Only the loop of the parent process runs at times.
            report = self.parameters.in_place.child, self.parameters.in_place.postgres
            self.env.process(cpu.use(self.parameters.in_place.worker))
        if successor is not None:
            yield from self._work(cpu, cost.child * CHILD_PUBLISH)
            yield from self._send(successor)
        yield free.put(1)

    def _answer(self, seconds: float, *, in_place: bool = False) -> Step:
        """A statement of a pool process, which uses so much CPU of PostgreSQL."""
        yield from self._work(self.postgres, seconds, in_place=in_place)
        yield self.env.timeout(self.parameters.answer_s)

    def _user_code(self, cpu: Cpu | OwnCpus, graph: Graph) -> Step:
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
                self._ready_so_far += 1
                heapq.heappush(waiting, Task(run, number, started + run.graph.seconds))
        successor = heapq.heappop(waiting) if waiting and waiting[0].run is run else None
        self.active[run.pool] -= successor is None
        if waiting and self.active[run.pool] < self._places():
            self.wake()
        return successor
