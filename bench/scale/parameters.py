"""What the model is given: the costs that were measured, and the hardware and processes of a deployment."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Self

#: CPU of a scheduler for a pass that finds nothing.
PASS_S = 0.001
#: Seconds in any case, and seconds for each.
Line = tuple[float, float]


def at(line: Line, count: float) -> float:
    """Seconds for so many."""
    always, each = line
    return always + each * count


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """CPU of a scheduler, or of the process that does its work, and of PostgreSQL."""

    scheduler: Line = (0.0, 0.0)
    postgres: Line = (0.0, 0.0)

    def times(self, by: float) -> Self:
        """So many times as much of both."""
        return type(self)(**{one.name: tuple(seconds * by for seconds in getattr(self, one.name)) for one in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of CPU that one task instance takes from each process on its way from ready to success."""

    scheduler: float
    worker: float
    child: float
    postgres: float
    redis: float

    def times(self, by: float) -> Self:
        """So many times as much of each."""
        return type(self)(**{one.name: getattr(self, one.name) * by for one in fields(self)})


NO_COSTS = Costs(scheduler=0, worker=0, child=0, postgres=0, redis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wal:
    """Bytes that PostgreSQL writes for a task instance and for a run: to its log at once, and to its tables at a checkpoint."""

    of_task: float = 0.0
    of_run: float = 0.0
    to_tables: float = 0.0


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
    #: Seconds that a pool process waits for an answer of PostgreSQL beyond its CPU and the disk.
    answer_s: float = 0.0
    #: How many times as long a slice of CPU takes while another core of the same machine is busy. Cores share caches and units.
    slowdown: float = 1.0
    #: The share of the CPU of workers, children and PostgreSQL that does not delay the step itself, only work on the same core:
    #: acknowledgments, logs, cleanup, the writers of PostgreSQL.
    beside: float = 0.3
    #: CPU of a scheduler for a pass; CPU of PostgreSQL for a pass and for a heartbeat of a worker, by queued and running tasks.
    pass_s: float = PASS_S
    pass_postgres_s: Line = (0.001, 0.0)
    beat_postgres_s: Line = (0.0002, 0.0)
    #: What each registered worker adds to a pass, to a heartbeat and to the creation of a run.
    pass_of_worker_s: float = 0.0
    beat_of_worker_s: float = 0.0
    begin_of_worker_s: float = 0.0
    #: CPU of PostgreSQL for the registration of a worker, and for a connection of a pool process from its start to its end.
    register_s: float = 0.0
    connection_s: float = 0.0
    #: Queueing a task instance by a scheduler, in addition to `followed`.
    queue: Work = Work()
    #: Creating a run that a scheduler starts later, creating one that begins at once, starting and closing one, by its tasks.
    #: A scheduler or the client that triggers creates it, and the pool process that reports its last task closes it.
    make: Work = Work()
    begin: Work = Work()
    start: Work = Work()
    close: Work = Work()
    #: A sweep, by the open runs in which a task has ended recently.
    sweep: Work = Work()
    wal: Wal = Wal()

    def times(self, cpu: float, wait: float = 1.0) -> Self:
        """The same on a machine on which CPU takes so many times as long, and waits so many times."""
        works: dict[str, Any] = {name: getattr(self, name).times(cpu) for name in (*COSTS, *WORKS)}
        lines: dict[str, Any] = {name: (getattr(self, name)[0] * cpu, getattr(self, name)[1] * cpu) for name in LINES}
        seconds: dict[str, Any] = {name: getattr(self, name) * cpu for name in SECONDS}
        return replace(
            self, **works, **lines, **seconds, flush_s=self.flush_s * wait, wake_s=self.wake_s * wait, answer_s=self.answer_s * wait
        )


#: The names of the parameters of each kind that grow with the CPU.
COSTS = ("followed", "in_place", "mapped")
WORKS = ("queue", "make", "begin", "start", "close", "sweep")
LINES = ("pass_postgres_s", "beat_postgres_s")
SECONDS = ("pass_s", "pass_of_worker_s", "beat_of_worker_s", "begin_of_worker_s", "register_s", "connection_s")


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
    #: worker.idle_connection_seconds.
    idle_connection_s: float = 3.0
    #: Connections that the pool processes of a worker share, and never close. None: each pool process has its own.
    connections_of_worker: int | None = None
    max_connections: int = 5000
    #: Slots of each pool. None: as many as there are children.
    slots: int | None = None
    #: Further task instances that run during the whole simulation.
    standing: int = 0
    shared_cores: int | None = None
    postgres_cores: int = 8
    worker_cores: int = 2
    #: Bytes that the disk of PostgreSQL writes in a second.
    disk_bytes_per_s: float = 200e6

    @property
    def processes(self) -> int:
        """Pool processes of all workers."""
        return self.workers * self.children


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Connections to PostgreSQL that are open on average, and how many open in a second."""

    open: int
    opened_per_s: float


def connections(deployment: Deployment, per_s: float, task_s: float) -> Connections:
    """The connections of a deployment in which `per_s` tasks of `task_s` seconds end in a second.

    5 of a scheduler, and 1 of a worker for its heartbeat (docs/explanation/database.md), which uses those of a pooler. A pool
    process keeps its own for `idle_connection_s` after a claim and after a report. Between a report and its next claim, it waits
    for a message.
    """
    if deployment.connections_of_worker is not None:
        return Connections(open=5 * deployment.schedulers + deployment.workers * deployment.connections_of_worker, opened_per_s=0.0)
    always = 5 * deployment.schedulers + deployment.workers
    idle_s = deployment.idle_connection_s or math.inf
    pause_s = max(0.0, deployment.processes / per_s - task_s)
    held_s = min(task_s, idle_s) + min(pause_s, idle_s)
    opened = per_s * ((task_s > idle_s) + (pause_s > idle_s))
    return Connections(open=always + min(deployment.processes, math.ceil(per_s * held_s)), opened_per_s=opened)
