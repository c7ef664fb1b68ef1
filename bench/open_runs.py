"""The part `open_runs`: CPU of a scheduler and of PostgreSQL to make, start, queue and sweep runs; of a worker to close them."""

import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from bench import shapes
from bench.options import Options, Piece
from bench.stack import Stack
from paceline.states import TaskState
from scheduler.messaging.publisher import Publisher
from scheduler.services.promote import Promote
from scheduler.services.queue import Queue
from scheduler.services.sweep import Sweep
from scheduler.store.actions import mark
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.moves.first import Limits
from scheduler.store.runs import manual_runs
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import HotPath

#: Tasks of a run; runs that one pass starts or closes; passes. CPU of PostgreSQL is counted in hundredths of a second.
LENGTHS, BATCH, BATCHES = (5, 50), 20, 40
#: Open runs in which a task has just ended, for the sweep.
TOUCHED, SMALL_TOUCHED = (100, 1000), (5, 10)
SWEEPS = 20
#: Registered workers, for what creating a run costs with many of them.
WORKERS, SMALL_WORKERS = (100, 10_000), (5, 10)
REGISTER = """
    insert into process (id, kind, name, host, pid, queues, concurrency, heartbeat_at)
    select 'many#' || n, 'worker', 'many-' || n, 'h', 1, '{default}', 16, clock_timestamp() + interval '1 day'
      from generate_series((select count(*) from process) + 1, %s) n returning id
"""
#: No limit holds a task back.
ENVIRONMENT = {"PACELINE_CORE_PARALLELISM": "1000000", "PACELINE_CORE_MAX_ACTIVE_RUNS_PER_DAG": "1000000"}
WIDE = "update pool set slots = 1000000 returning name"
#: A sweep checks the runs in which a task has ended recently.
RECENTLY = "update task_instance set ended_at = clock_timestamp() + interval '1 hour' where state = 'success' returning id"
#: Milliseconds of the scheduler, or of the process that does its work, and of PostgreSQL.
Spent = tuple[float, float]


def measure(options: Options) -> Piece:
    """`open_runs`: milliseconds of [scheduler, PostgreSQL]. `make_ms` and `start_ms` of a run, by its tasks; `begin_ms` of a run
    that is created with its first task queued; `close_ms`, of the pool process that reports the last task; `queue_ms` of a task
    that the queue service queues; `sweep_ms` by the open runs in which a task has ended since the last sweep; `begin_by_workers_ms`
    by the registered workers.
    """
    found: dict[str, Any] = defaultdict(dict)
    for length in LENGTHS:
        with Stack(shapes.chain(length).files, schedulers=0, workers=0, environment=ENVIRONMENT) as stack:
            costs = Costs(stack)
            for _ in range(2 if options.small else BATCHES):
                costs.batch()
            for name, spent in costs.per_run().items():
                found[name][str(length)] = spent
            if length == LENGTHS[0]:
                for workers in SMALL_WORKERS if options.small else WORKERS:
                    found["begin_by_workers_ms"][str(workers)] = costs.begin_with(workers, 2 if options.small else SWEEPS)
                for touched in SMALL_TOUCHED if options.small else TOUCHED:
                    found["sweep_ms"][str(touched)] = costs.sweep(touched, 2 if options.small else SWEEPS)
        options.say(f"runs of {length}: {dict(found)}")
    return {"open_runs": found}


class Costs:
    """The services of a scheduler in this process, and their CPU. A registered worker that runs nothing has enough places."""

    def __init__(self, stack: Stack) -> None:
        stack.start(schedulers=1, workers=0)  # which reads the file
        stack.stop_processes()
        stack.rows(WIDE)
        self._stack = stack
        (self._dag_id,) = shapes.chain().dag_ids
        self._versions = versions = Versions()
        scheduler = processes.register(stack.engine, kind="scheduler", name="s", host="h", pid=1)
        processes.register(stack.engine, kind="worker", name="w", host="h", pid=1, queues=("default",), concurrency=1_000_000)
        self._promote = Promote(stack.engine, stack.settings, versions)
        self._sweep = Sweep(stack.engine, stack.settings, versions, lambda: self._promote.hints)
        self._queue = Queue(stack.engine, stack.settings, Publisher(stack.settings), lambda: scheduler)
        self._hot = HotPath(stack.settings, "bench")
        self._spent: dict[str, Spent] = defaultdict(lambda: (0.0, 0.0))
        self._runs = self._open = 0

    def batch(self) -> None:
        """Make, start, queue and close BATCH runs, and then create as many with their first task queued."""
        run_ids = self._make(BATCH)
        self._started()
        self._close(run_ids)
        begun = self._begin(BATCH)
        waiting = self._stack.rows("select count(*) from dag_run where state = 'queued'")[0][0]
        assert not waiting, f"{waiting} runs did not begin"
        self._close(begun, "of_begun")
        self._runs += BATCH

    def _close(self, run_ids: dict[int, str], name: str = "close_ms") -> None:
        for run_id in run_ids.values():
            transact(self._stack.engine, mark.mark, Runs(dag_id=self._dag_id, run_id=run_id), Tasks(), TaskState.SUCCESS)
        # Closing a run asks nothing of a claim but its run.
        nothing = dict.fromkeys(("id", "dispatch_id", "map_index", "version_id"))
        claims = [cast(Claim, SimpleNamespace(**nothing, dag_run_id=id_)) for id_ in run_ids]
        self._metered(name, lambda: [self._hot.close_run(claim) for claim in claims])
        left = self._stack.rows("select count(*) from dag_run where state in ('queued', 'running')")[0][0]
        assert not left, f"{left} runs did not close"

    def per_run(self) -> dict[str, list[float]]:
        """Milliseconds of [scheduler, PostgreSQL] for a run; one task of a run was queued."""
        of_run = {name: both for name, both in self._spent.items() if name.endswith("_ms")}
        return {name: [round(spent / self._runs, 4) for spent in both] for name, both in of_run.items()}

    def sweep(self, touched: int, times: int) -> list[float]:
        """The same for a sweep with so many open runs, in each of which a task has ended recently."""
        run_ids = self._make(touched - self._open)
        self._open = touched
        self._started()
        for run_id in run_ids.values():
            first = Tasks(task_ids=("t000",))
            transact(self._stack.engine, mark.mark, Runs(dag_id=self._dag_id, run_id=run_id), first, TaskState.SUCCESS)
        self._stack.rows(RECENTLY)
        for _ in range(3):
            self._sweep.run_once()  # decides the tasks below the marked ones
            self._promote.run_once()
        self._spent.pop("sweep", None)
        for _ in range(times):
            self._metered("sweep", self._sweep.run_once)
        return [round(spent / times, 4) for spent in self._spent.pop("sweep")]

    def begin_with(self, workers: int, times: int) -> list[float]:
        """The same for creating a run with its first task queued, while so many workers are registered."""
        self._stack.rows(REGISTER, (workers,))
        with self._stack.connection.cursor() as cursor:
            cursor.execute("vacuum analyze process")
        self._spent.pop("by_workers", None)
        for _ in range(times):
            self._close(self._begin(BATCH, "by_workers"), "of_begun")
        return [round(spent / times / BATCH, 4) for spent in self._spent.pop("by_workers")]

    def _make(self, count: int) -> dict[int, str]:
        return self._created("make_ms", count)

    def _begin(self, count: int, name: str = "begin_ms") -> dict[int, str]:
        return self._created(name, count, Limits.of(self._stack.settings, "bench"))

    def _created(self, name: str, count: int, limits: Limits | None = None) -> dict[int, str]:
        run_ids: dict[int, str] = {}

        def create() -> None:
            for _ in range(count):
                run = transact(self._stack.engine, manual_runs.trigger, self._dag_id, versions=self._versions, limits=limits)
                run_ids[run.id] = run.run_id

        self._metered(name, create)
        return run_ids

    def _started(self) -> None:
        self._metered("start_ms", self._promote.run_once)
        self._metered("queue_ms", self._queue.run_once)

    def _metered(self, name: str, work: Callable[[], object]) -> None:
        own, postgres = time.process_time(), self._stack.cpu_seconds()["postgres"]
        work()
        used = time.process_time() - own, self._stack.cpu_seconds()["postgres"] - postgres
        before = self._spent[name]
        self._spent[name] = before[0] + used[0] * 1000, before[1] + used[1] * 1000
