"""The report of a task that publishes three tables, beside the same report of a task without tables, in turns.

Each is the report of the first of two tasks, in the objects of a pool process, which continues with the second task in place.
pyiceberg appends to the tables, over the catalog of a worker, before the report is measured. No scheduler runs meanwhile, so every
transaction that writes is one of the report.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import calibrate, in_turns
from bench.options import Options
from bench.report import row_line
from bench.stack import Stack
from paceline.states import TaskState
from scheduler.store.db import rows
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Reported
from scheduler.store.worker.hot_path import HotPath
from workers.tables.server import CatalogServer
from workers.task.follow import DatabaseStore, Follower

#: Reports of each kind for each iteration, and those before them that do not count.
REPORTS, SMALL_REPORTS, WARM_UPS = 20, 2, 3
TABLES = ("sales.orders", "sales.items", "sales.totals")
FILE = """\
from paceline import DAG, task


@task
def noop():
    pass


with DAG("two", schedule=None, max_active_runs=1000):
    noop.override(task_id="first")() >> noop.override(task_id="second")()
"""
SUCCESS = Ending(TaskState.SUCCESS)
QUEUED = "select id, dispatch_id::text from task_instance where dag_run_id = %s and state = 'queued'"
BEAT = "update process set heartbeat_at = clock_timestamp() where id = %s returning id"
#: The number of the next transaction that writes. One that only reads has none.
NEXT_WRITER = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


class CountingHotPath(HotPath):
    """Counts its statements, and adds up the nanoseconds until PostgreSQL has answered them."""

    statements = waited_ns = 0

    def run(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> rows.Cursor:
        began = time.perf_counter_ns()
        try:
            return super().run(statement, parameters)
        finally:
            self.waited_ns += time.perf_counter_ns() - began
            self.statements += 1


def measure(options: Options) -> dict[str, Any]:
    """The medians of a `plain` report and of a `publishing` one, and of the differences of the pairs, `more`: `report_ms` of the
    whole call, `database_ms` until PostgreSQL has answered, `backend_ms` of CPU of its process, the `statements` that are sent,
    and `commits`, the transactions that write. `spread` has the smallest and the largest difference in `database_ms`.
    """
    pairs = (SMALL_REPORTS if options.small else REPORTS) * options.iterations
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as warehouse:
        environment = {"PACELINE_TABLES_WAREHOUSE": warehouse}
        with Stack({"two.py": FILE}, workers=0, environment=environment) as stack:
            stack.stop_processes()
            catalog = CatalogServer(stack.settings, os.environ)
            catalog.start()
            pool = PoolProcess(stack)
            try:
                for _ in range(WARM_UPS):
                    pool.report(publishes=False)
                    pool.report(publishes=True)
                measured = [
                    in_turns(number, lambda: pool.report(publishes=False), lambda: pool.report(publishes=True))
                    for number in range(pairs)
                ]
            finally:
                pool.hot.close()
                catalog.end()
    figures = _figures(measured)
    for name in ("plain", "publishing", "more"):
        options.say(f"a report, {name}: {row_line(figures[name], calibrate())}")
    return figures


class PoolProcess:
    """The objects of a pool process, in this process, whose worker is registered."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._worker = processes.register(
            stack.engine, kind="worker", name="publish", host="here", pid=1, queues=["default"], concurrency=1
        )
        self.hot = CountingHotPath(stack.settings, self._worker)
        follower = Follower(self.hot, stack.publisher, stack.wakeups, enabled=True)
        self._store = DatabaseStore(stack.settings, self.hot, follower)

    def report(self, *, publishes: bool) -> dict[str, float]:
        """Run the first task of a new run, measure its report, and report the second one."""
        claim = self._claimed()
        if publishes:
            self._append(claim)
        figures, answer = self._measured(claim)
        assert isinstance(answer, Reported) and answer.continues is not None, f"the second task does not continue: {answer}"
        self._store.report(answer.continues, SUCCESS)
        return figures

    def _claimed(self) -> Claim:
        self._stack.rows(BEAT, (self._worker,))
        (run,) = self._stack.trigger(["two"])
        self._stack.wait(lambda: bool(self._stack.rows(QUEUED, (run,))), 60, "the first task to be queued")
        ((ti_id, dispatch_id),) = self._stack.rows(QUEUED, (run,))
        claim = self._store.claim(ti_id, dispatch_id, self._worker)
        assert claim is not None
        return claim

    def _append(self, claim: Claim) -> None:
        import pyarrow as pa
        from pyiceberg.catalog import load_catalog

        given = self._store.tables(claim)
        catalog = load_catalog(given.catalog, **given.properties)
        catalog.create_namespace_if_not_exists("sales")
        row = pa.table({"id": [claim.id], "run": [claim.run_id]})
        for name in TABLES:
            catalog.create_table_if_not_exists(name, row.schema).append(row)

    def _measured(self, claim: Claim) -> tuple[dict[str, float], object]:
        backend = self.hot.value("select pg_backend_pid()", ())  # also opens the connection, if it was idle for long
        next_in_place = NextInPlace(str(uuid.uuid4()))
        ((writer,),), used_ns = self._stack.rows(NEXT_WRITER), _cpu_ns(backend)
        self.hot.statements = self.hot.waited_ns = 0
        began = time.perf_counter_ns()
        answer = self._store.report(claim, SUCCESS, next_in_place)
        took_ns, waited_ns, statements = time.perf_counter_ns() - began, self.hot.waited_ns, self.hot.statements
        return {
            "report_ms": took_ns / 1e6,
            "database_ms": waited_ns / 1e6,
            "backend_ms": (_cpu_ns(backend) - used_ns) / 1e6,
            "statements": statements,
            "commits": self._stack.rows(NEXT_WRITER)[0][0] - writer,
        }, answer


def _cpu_ns(pid: int) -> int:
    """The CPU time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


def _figures(measured: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, Any]:
    more = [{name: publishing[name] - plain[name] for name in plain} for plain, publishing in measured]
    return {
        "tables": len(TABLES),
        "pairs": len(measured),
        "plain": _medians([plain for plain, _ in measured]),
        "publishing": _medians([publishing for _, publishing in measured]),
        "more": _medians(more),
        "spread": {"database_ms": [round(end([one["database_ms"] for one in more]), 3) for end in (min, max)]},
    }


def _medians(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(median(one[name] for one in reports), 3) for name in reports[0]}
