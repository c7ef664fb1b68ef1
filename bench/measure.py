"""Measures one run of a shape: its duration, the gaps between its tasks, and its CPU."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.shapes import Shape
from bench.stack import Stack
from scheduler.serialized.dag import SerializedDag

INSTANCES = """
    select t.dag_run_id, t.task_no, extract(epoch from t.started_at)::float8, extract(epoch from t.ended_at)::float8, t.state
      from task_instance t where t.dag_run_id = any(%s)
"""
RUNS = """
    select r.id, r.version_id, extract(epoch from r.ended_at)::float8 from dag_run r where r.id = any(%s)
"""

#: The runs before the first one that counts, of a shape with at least so many files.
WARM_UPS, MANY_FILES = 10, 50
WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`makespan_s` goes from before the first trigger to the stored end of the last run.

    `hops_ms`, sorted, has for each task with something above it the time from the stored start of its last upstream task to its
    own; where more tasks are ready than can run, most of that is waiting for a free place. CPU is by role: `client` is this
    process, which makes the runs, and `total` all together. `wal_bytes` are those that PostgreSQL has written to its log.
    """

    tasks: int
    succeeded: int
    makespan_s: float
    hops_ms: list[float]
    cpu_s_per_task: dict[str, float]
    calibration_ms: float
    wal_bytes: float

    @property
    def tasks_per_s(self) -> float:
        return self.tasks / self.makespan_s


def run(stack: Stack, shape: Shape, timeout_s: float = 300.0) -> Measured:
    """Trigger the shape, and wait until it has ended."""
    calibration_ms = calibrate()
    before, ((wal_before,),) = _cpu_seconds(stack), stack.rows(WAL)
    start = time.time()
    run_ids = stack.trigger(shape.dag_ids)
    stack.wait_closed(run_ids, timeout_s)
    after, ((wal_after,),) = _cpu_seconds(stack), stack.rows(WAL)
    instances = stack.rows(INSTANCES, (run_ids,))
    closed = stack.rows(RUNS, (run_ids,))
    return Measured(
        tasks=len(instances),
        succeeded=sum(state == "success" for *_, state in instances),
        makespan_s=max(end for _, _, end in closed) - start,
        hops_ms=sorted(hops(stack, closed, instances)),
        cpu_s_per_task={role: (after[role] - before[role]) / len(instances) for role in before},
        calibration_ms=calibration_ms,
        wal_bytes=wal_after - wal_before,
    )


def warm_up(stack: Stack, shape: Shape) -> None:
    """Run the shape once, or if it has many files as often as it takes until about each pool process has loaded each of them.

    With 4 pool processes, WARM_UPS runs leave 5 % of the files to load.
    """
    for _ in range(WARM_UPS if len(shape.files) >= MANY_FILES else 1):
        run(stack, shape)


def in_turns(iteration: int, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Call both, in alternating order, so that a machine that becomes slower gives neither an advantage."""
    if iteration % 2 == 0:
        result = first()
        return result, second()
    other = second()
    return first(), other


def _cpu_seconds(stack: Stack) -> dict[str, float]:
    used, client = stack.cpu_seconds(), time.process_time()
    return used | {"client": client, "total": used["total"] + client}


def hops(stack: Stack, closed: Sequence[tuple[Any, ...]], instances: Sequence[tuple[Any, ...]]) -> list[float]:
    """Milliseconds from the last start of an upstream task instance to the start of each task instance that has one.

    From start to start, as for bare Celery: a report stores the end of a task and the start of the next one in one statement.
    """
    versions = {version for _, version, _ in closed}
    data = stack.rows("select id, data from dag_version where id = any(%s)", (list(versions),))
    upstream = {version: SerializedDag.from_json(text).upstream for version, text in data}
    above = {run_id: upstream[version] for run_id, version, _ in closed}
    began: dict[tuple[int, int], float] = defaultdict(float)
    for run_id, task_no, start, _, _ in instances:
        began[run_id, task_no] = max(began[run_id, task_no], start)
    return [
        (start - max(began[run_id, no] for no in above[run_id][task_no])) * 1000
        for run_id, task_no, start, _, _ in instances
        if above[run_id][task_no]
    ]


def calibrate() -> float:
    """Milliseconds that a fixed loop of plain Python takes, the best of five: the current speed of the machine."""
    best = float("inf")
    for _ in range(5):
        start, total = time.perf_counter(), 0
        for i in range(100_000):
            total += i * i
        best = min(best, time.perf_counter() - start)
    return best * 1000


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile of sorted values, interpolated between neighbors."""
    place = (len(values) - 1) * share
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of sorted values, rounded to a thousandth."""
    return {f"p{share}": round(quantile(values, share / 100), 3) for share in (50, 95, 99)}
