"""A stack whose processes fail at named points (process/fault_points.py), and DAGs that bring it to each of these points."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from scheduler.messaging.brokers import client
from scheduler.messaging.publisher import broker_lists
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.settings.model import environment_names
from scheduler.store.actions import backfills
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs
from support.ledger import Ledger
from support.stacks import Stack, StackFactory
from support.waiting import eventually

#: Whether tests take the sizes of `make test-faults`: minutes for each.
FULL = os.environ.get("FAULT_TESTS") == "full"

#: Lost processes are detected within seconds, so that tests do not wait long.
QUICK_DEATHS = {
    "PACELINE_SCHEDULER_SCHEDULER_HEARTBEAT_SEC": "0.5", "PACELINE_SCHEDULER_SCHEDULER_HEALTH_CHECK_THRESHOLD": "3",
    "PACELINE_WORKER_HEARTBEAT_SEC": "0.5", "PACELINE_WORKER_HEARTBEAT_TIMEOUT": "3",
    "PACELINE_WAITER_HEARTBEAT_SEC": "0.5", "PACELINE_WAITER_HEARTBEAT_TIMEOUT": "3",
    "PACELINE_SCHEDULER_TASK_QUEUED_TIMEOUT": "1",
}  # fmt: skip


class Code(str):
    """Python for a DAG file, where other options are values."""

    __slots__ = ()
    __repr__ = str.__str__


EARLIEST = datetime(2010, 1, 1, tzinfo=UTC)
RETRIED = {"retries": 8, "retry_delay": 0.1}
#: The body and the options of each DAG. The runs of all but `slow` succeed in the end.
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "work": (
        """
        @task
        def first():
            with entry():
                return [1, 2, 3]

        @task
        def each(n):
            work()

        @task
        def join():
            work()

        each.expand(n=first()) >> join() >> task(task_id="last")(lambda: work())()
        """,
        {},
    ),
    "flaky": (
        """
        @task
        def t(ti):
            with entry():
                if ti.try_number == 1:
                    raise ValueError("the first try fails")
        t()
        """,
        {},
    ),
    # Few at a time: where others wait, they outrank the next task of a run.
    "row": (
        """
        chain(*[task(task_id=name)(lambda: work())() for name in ("a", "b", "c", "d")])
        """,
        {"max_active_runs": 4},
    ),
    "dies": (
        """
        @task
        def t(ti):
            with entry():
                ti.try_number == 1 and os.kill(os.getpid(), 9)
        t()
        """,
        {},
    ),
    "waits": (
        """
        from paceline.sensors import WaitSensor
        WaitSensor(task_id="wait", time_to_wait=timedelta(seconds=1), deferrable=True) >> task(task_id="t")(lambda: work())()
        """,
        {},
    ),
    "makes": (
        """
        task(task_id="t", outlets=[Asset("ledger://made")])(lambda: work())()
        """,
        {},
    ),
    "slow": (
        """
        task(task_id="t")(lambda: work(20))()
        """,
        {"dagrun_timeout": timedelta(seconds=1)},
    ),
    "late": (
        """
        task(task_id="t")(lambda: work(1))()
        """,
        {"deadline": Code("DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=0.1), told)")},
    ),
    "takes": ("task(task_id='t')(lambda: work())()", {"schedule": Code("[Asset('ledger://made')]")}),
    "told": ("task(task_id='t')(lambda: work())()", {"on_success_callback": Code("told")}),
    "dated": ("task(task_id='t')(lambda: work())()", {"schedule": "@hourly", "start_date": EARLIEST}),
}
IMPORTS = """
from paceline import Asset, DeadlineAlert, DeadlineReference, chain

def told(context):
    pass
"""
#: The DAG that reaches a fault point, where that is not `work`.
NEEDS = {
    "due": "flaky", "lost": "dies", "await": "waits", "fire": "waits", "update": "makes", "asset": "makes", "timeout": "slow",
    "deadline": "late", "notice": "told", "delivered": "told", "callback": "told", "backfill": "dated", "plan": "once",
    "parse": "once", "continue": "row",
}  # fmt: skip
FAILS = frozenset({"slow"})


def dag_files(ledger: Ledger) -> dict[str, str]:
    """The sources of the DAG files by name."""
    return {f"{name}.py": _dag(ledger, name, body, **options) for name, (body, options) in BODIES.items()}


def _dag(ledger: Ledger, name: str, body: str, **options: Any) -> str:
    given = {"max_active_runs": 64, "max_active_tasks": 200, "default_args": RETRIED, **options}
    return IMPORTS + ledger.dag(name, body, **given)


@dataclass
class FaultyStack:
    """A stack, its faults and its ledger."""

    stack: Stack
    ledger: Ledger
    folder: Path
    engine: Engine
    made: int = 0
    filled: int = 0

    @property
    def url(self) -> str:
        return self.stack.settings.database_url

    def inject(self, plan: str) -> None:
        """Replace the planned faults, and reset their counts."""
        for count in self.folder.glob("*.count"):
            count.unlink()
        (self.folder / "struck").unlink(missing_ok=True)
        new = self.folder / "plan.new"
        new.write_text(plan)
        new.replace(self.folder / "plan")

    def struck(self, point: str | None = None) -> list[int]:
        """The IDs of the processes in which a fault happened, in order."""
        path = self.folder / "struck"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [int(line[1]) for line in lines if point in (None, line[2])]

    def revive(self) -> None:
        """Have the supervisor restart ended processes at once. Its pauses are for unexpected crashes."""
        with self.stack.supervisor._guard:
            for child in self.stack.supervisor._children.values():
                child.failures = 0
                if child.restart_at is not None:
                    child.restart_at = 0.0

    def trigger(self, dag_id: str, count: int, label: str) -> None:
        for _ in range(count):
            self.made += 1
            transact(self.engine, manual_runs.trigger, dag_id, run_id=f"{label}-{self.made}")

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(statement, parameters)]

    def open_runs(self) -> int:
        """The number of open runs and backfills."""
        open_ = (
            "select (select count(*) from dag_run where state in ('queued', 'running'))"
            " + (select count(*) from backfill where ended_at is null)"
        )
        return int(self.rows(open_)[0][0])

    def settle(self, *, timeout: float, until: Callable[[], object] = lambda: True) -> None:
        """Wait until no run is open, and restart processes that end."""

        def settled() -> bool:
            self.revive()
            return self.open_runs() == 0 and bool(until())

        eventually(settled, timeout=timeout, interval=0.1, message=self.open)

    def open(self) -> str:
        """The unfinished task instances, for an error message."""
        rows = self.rows(
            "select r.run_id, r.state, t.task_id, t.map_index, coalesce(t.state, 'none'), t.try_number, t.reason, t.worker"
            "  from dag_run r join task_instance t on t.dag_run_id = r.id"
            " where r.state in ('queued', 'running') order by t.id limit 20"
        )
        return "\n".join(map(str, rows)) + f"\nstruck: {self.struck()}"

    def provoke(self, point: str, count: int) -> None:
        """Create `count` runs that reach the fault point."""
        step = point.partition(".")[0]
        dag_id = NEEDS.get(step, "work")
        if dag_id == "once":
            self._once(count)
        elif dag_id == "dated":
            self.filled += 1
            first = EARLIEST + timedelta(days=30 * self.filled)
            wanted = backfills.BackfillRequest(
                dag_id=dag_id, first=first, last=first + timedelta(hours=count - 1), max_active_runs=count
            )
            transact(self.engine, backfills.create, wanted)
        else:
            self.trigger(dag_id, count, point)
        if step == "expire":
            self.stack.kill("worker-1")
        elif step == "register":
            self.stack.kill("worker-2")
        elif step == "rescue":
            self._lose_messages()

    def _once(self, count: int) -> None:
        """Write DAG files that each have one run, due at once. Write few, because a separate process parses each."""
        for _ in range(min(count, 10)):
            self.made += 1
            source = _dag(self.ledger, f"once_{self.made}", 'task(task_id="t")(lambda: work())()', schedule="@once")
            path = self.stack.settings.dags_folder / f"once_{self.made}.py"
            path.with_suffix(".tmp").write_text(source)
            path.with_suffix(".tmp").rename(path)
        names = [f"once_{self.made - back}" for back in range(min(count, 10))]
        planned = "select count(*) from dag_run where dag_id = any(%s)"

        def all_planned() -> bool:
            self.revive()
            return self.rows(planned, names) == [(len(names),)]

        eventually(all_planned, timeout=120, interval=0.1, message=self.stack.logs)

    def _lose_messages(self) -> None:
        broker = client(self.stack.settings.broker_url)
        deadline = time.monotonic() + 20
        while not self.struck() and time.monotonic() < deadline:
            broker.delete(*broker_lists("default"))
            self.revive()
            time.sleep(0.02)
        broker.close()


def default_times() -> dict[str, str]:
    """The environment that restores the default durations, which QUICK_DEATHS and the stacks of tests shorten."""
    defaults, names = Settings(), environment_names()
    changed = [*QUICK_DEATHS, "PACELINE_SCHEDULER_ORPHANED_TASKS_CHECK_INTERVAL"]
    return {name: f"{getattr(getattr(defaults, names[name][0]), names[name][1]):g}" for name in changed}


def expected_state(dag_id: str) -> str:
    return "failed" if dag_id in FAILS else "success"


@contextmanager
def faulty_stack(
    factory: StackFactory, ledger: Ledger, folder: Path, *, files: dict[str, str] | None = None, plan: str = "",
    env: dict[str, str] | None = None, schedulers: int = 2, workers: Sequence[tuple[str, int]] = (("default", 3), ("default", 3)),
    waiters: int = 1,
) -> Iterator[FaultyStack]:  # fmt: skip
    """A stack whose processes read the planned faults from `folder`. Its DAGs are stored when the block starts."""
    folder.mkdir(exist_ok=True)
    (folder / "plan").write_text(plan)
    Ledger.witness(factory.settings.database_url)
    chosen = dag_files(ledger) if files is None else files
    given = {**QUICK_DEATHS, fault_points.FAULTS: f"@{folder / 'plan'}", fault_points.FOLDER: str(folder), **(env or {})}
    stack = factory(chosen, schedulers=schedulers, workers=workers, waiters=waiters, env=given)
    engine = database.create(stack.settings)
    faulty = FaultyStack(stack, ledger, folder, engine)
    try:
        eventually(
            lambda: (len(chosen),) in faulty.rows("select count(*) from dag where version_id is not null"),
            timeout=120, interval=0.1, message=lambda: f"{faulty.rows('select * from import_error')}\n{stack.logs()}",
        )  # fmt: skip
        yield faulty
    finally:
        # A stopped process cannot shut down cleanly.
        for pid in faulty.struck():
            if alive(pid):
                os.kill(pid, signal.SIGCONT)
        engine.dispose()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
