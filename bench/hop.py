"""The part `hop`: what one hop of a chain consists of, in microseconds, beside a commit of one row on the same connection.

The chain runs in this process, in the objects of a pool process. The fault points mark the time instead of failing.
"""

import functools
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.options import Options, Piece
from bench.stack import Stack
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.worker.hot_path import HotPath
from workers.process import logs
from workers.process.guard import Guard
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlaceSeries
from workers.task.execute import TryRunner
from workers.task.follow import DatabaseStore, Follower

TASKS, ROUNDS = 100, 20
#: The task marks the moment at which its code runs.
FILE = """\
import sys

from paceline import DAG, task


@task
def noop():
    if "bench.hop" in sys.modules:
        sys.modules["bench.hop"].MARKS.mark("code")


with DAG("chain", schedule=None):
    before = noop.override(task_id="t000")()
    for number in range(1, {count}):
        before >> (before := noop.override(task_id=f"t{{number:03}}")())
"""
#: The marks of a hop in their order, with what happens from one to the next.
STAGES = {
    "continue.after": "the slot, the log file and its first line",
    "code.before": "the guard, the context and the arguments of the task",
    "code": "the result as JSON; the process as it was before",
    "code.after": "the last line of the log; the slot says what may follow",
    "report.before": "the plan of the report and its parameters",
    "sent": "PostgreSQL and the way to it",
    "answered": "the answer as a claim",
    "report.after": "the log file is closed; Flower gets its event",
}
ROUND_TRIP, FLOOR = "select 1", "insert into bench_hop (v) values (1)"
QUEUED = "select id, dispatch_id::text from task_instance where dag_run_id = %s and state = 'queued'"


class Marks:
    """The moments at which this process reached the marks of STAGES, in nanoseconds."""

    def __init__(self) -> None:
        self.moments: list[tuple[str, int]] = []

    def mark(self, name: str) -> None:
        self.moments.append((name, time.perf_counter_ns()))

    def hops(self) -> list[dict[str, float]]:
        """Microseconds by stage of each hop that passed every mark once, in their order. The first and the last task pass fewer."""
        wanted, found = [*STAGES, next(iter(STAGES))], []
        moments = [moment for moment in self.moments if moment[0] in STAGES]
        for at in range(len(moments) - len(STAGES)):
            hop = moments[at : at + len(wanted)]
            if [name for name, _ in hop] == wanted:
                found.append({hop[place][0]: (hop[place + 1][1] - hop[place][1]) / 1000 for place in range(len(STAGES))})
        return found


MARKS = Marks()


class MarkedHotPath(HotPath):
    """Marks when a statement is sent, and when it is answered."""

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        MARKS.mark("sent")
        try:
            return super().run(statement, parameters)
        finally:
            MARKS.mark("answered")


def measure(options: Options) -> Piece:
    """`hop`, all in microseconds: the median `total`, the median of each of its `stages`, the CPU of the `backend` and of this
    `process` a hop; and the medians of a `round_trip` and of a durable insert of one row, the `floor`, on the same connection.
    """
    tasks, rounds = (5, 2) if options.small else (TASKS, ROUNDS)
    found: dict[str, list[float]] = defaultdict(list)
    stages: dict[str, list[float]] = defaultdict(list)
    # The DAG file that this process loads finds the marks under this name, also if the bench was started as __main__.
    assert sys.modules["bench.hop"].MARKS is MARKS
    with Stack({"chain.py": FILE.format(count=tasks)}, workers=0) as stack:
        runner, hot = _pool_process(stack)
        hot.run("create table bench_hop (id bigserial primary key, v bigint not null)")
        marks_nothing, fault_points.point = fault_points.point, MARKS.mark
        try:
            for round_ in range(-1, rounds):
                MARKS.moments.clear()
                used = _cpu_us(hot)
                _run(stack, runner)
                used = {side: now - used[side] for side, now in _cpu_us(hot).items()}
                for hop in MARKS.hops() if round_ >= 0 else ():
                    found["total"].append(sum(hop.values()))
                    for stage, took in hop.items():
                        stages[stage].append(took)
                for name, took in _floors(hot, tasks).items() if round_ >= 0 else ():
                    found[name].append(took)
                for side, took in used.items() if round_ >= 0 else ():
                    found[side].append(took / tasks)
        finally:
            fault_points.point = marks_nothing
            hot.close()
    medians: dict[str, Any] = {name: round(median(values)) for name, values in found.items()}
    medians["stages"] = {STAGES[name]: round(median(values)) for name, values in stages.items()}
    medians["hops"] = len(found["total"])
    options.say(f"a hop takes {medians['total']} us, {medians['stages'][STAGES['sent']]} of them in PostgreSQL;"
                f" a durable insert of a row {medians['floor']} us, a round trip {medians['round_trip']} us")  # fmt: skip
    return {"hop": medians}


def _pool_process(stack: Stack) -> tuple[TryRunner, HotPath]:
    """The objects of a pool process, in this process, whose worker is registered."""
    settings, slots = stack.settings, RunningTasks(1)
    slots.worker_id = processes.register(
        stack.engine, kind="worker", name="hop", host="here", pid=1, queues=["default"], concurrency=1
    )
    hot, slot = MarkedHotPath(settings, slots.worker_id), slots.slot(0)
    follower = Follower(hot, Publisher(settings), Wakeups(settings), enabled=True)
    contents = StoredContents.over(functools.partial(transact, stack.engine), settings)
    return TryRunner(
        settings=settings,
        logs_folder=settings.logs_folder,
        store=DatabaseStore(settings, hot, follower),
        files=LoadedVersions(settings.dags_folder, BundleCache.of(settings, contents)),
        slot=slot,
        guard=Guard(own_process=True),
        log=logs.TryLog(),
        series=InPlaceSeries(slot, seconds=60.0),
    ), hot


def _run(stack: Stack, runner: TryRunner) -> None:
    """A run of the chain, from the message of its first task on in place."""
    stack.rows("update process set heartbeat_at = clock_timestamp() where name = 'hop' returning id")
    (run,) = stack.trigger(["chain"])
    stack.wait(lambda: bool(stack.rows(QUEUED, (run,))), 60, "the first task to be queued")
    runner.run(*stack.rows(QUEUED, (run,))[0])
    stack.wait_closed([run])


def _floors(hot: HotPath, times: int) -> dict[str, float]:
    found: dict[str, list[float]] = {"round_trip": [], "floor": []}
    for _ in range(times):
        for name, statement in (("round_trip", ROUND_TRIP), ("floor", FLOOR)):
            began = time.perf_counter_ns()
            hot.run(statement)
            found[name].append((time.perf_counter_ns() - began) / 1000)
    return {name: median(values) for name, values in found.items()}


def _cpu_us(hot: HotPath) -> dict[str, float]:
    """The CPU time so far of the backend of this connection, and of this process, in microseconds."""
    backend = hot.value("select pg_backend_pid()", ())
    running_ns = Path(f"/proc/{backend}/schedstat").read_text(encoding="ascii").split()[0]
    return {"backend": int(running_ns) / 1000, "process": time.process_time_ns() / 1000}
