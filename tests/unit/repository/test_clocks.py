"""No decision depends on the clock of a machine, only on PostgreSQL's. The files that read another clock are listed here."""

import ast
import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support import clock

from paceline.authoring import deferral
from paceline.authoring.execution import current
from paceline.triggers import DateTimeTrigger, TimeDeltaTrigger
from workers.waiter.triggers import OtherRuns

ROOT = Path(__file__).resolve().parents[3]
#: All of PostgreSQL's functions for the present moment.
SQL_CLOCKS = re.compile(
    r"\b(clock_timestamp|statement_timestamp|transaction_timestamp|now|timeofday)\(\)|\b(current_timestamp|current_time|current_date)\b"
)
#: Reads of the machine's clock, by the called object. Monotonic clocks measure how long something takes, and are free.
WALL = {"now", "utcnow", "today"}
TIME = {"time", "time_ns", "localtime", "gmtime", "ctime", "clock_gettime"}
#: File -> why its reads decide nothing that concerns another machine.
ALLOWED = {
    "scheduler/api/oidc.py": "how long a person may take to log in at a provider, within minutes",
    "scheduler/process/log_format.py": "the times in logs",
    "scheduler/settings/log_paths.py": "how long a copy on this machine was not read",
    "scheduler/process/fault_points.py": "when a fault struck, for the tests that read it",
    "scheduler/testing/runs.py": "a run in this process alone",
    "scheduler/cli/progress.py": "what a person is shown",
    "scheduler/cli/queues.py": "what a person is shown",
    "scheduler/cli/output.py": "whether a time shown to a person is of today",
    "scheduler/cli/demo.py": "the name of a run",
    "scheduler/cli/dags.py": "the logical date of a test run in this process",
    "scheduler/cli/migrate_airflow.py": "the first day that a comparison with Airflow covers",
    "paceline/airflow/classic.py": "days_ago() of a file for Airflow 2",
    "paceline/airflow/timezone.py": "utcnow() in the code of a DAG file",
    "paceline/authoring/triggers.py": "outside of tasks and waiters, where nobody says what PostgreSQL's clock shows",
    "scheduler/dagfiles/watch.py": "whether a file was written just now; at worst it is read once more, or a check later",
    "scheduler/store/upkeep/heartbeats.py": "CLOCK_BOOTTIME, which is monotonic: how long the lease of this worker lasts",
    "workers/flower/queues.py": "what a person is shown",
    "workers/process/logs.py": "the times in logs",
    "scheduler/testing/in_memory/store.py": "a run in this process alone",
    "workers/spark/clusters/standalone.py": "until when a request to a Spark master is valid; the master compares",
    "workers/spark/sessions/task.py": "beside what a JVM of the same machine notes of its stages",
}


def reads_of_the_clock(source: str) -> Iterator[int]:
    """Lines that call something like datetime.now() or time.time()."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "time" and {name.name for name in node.names} & TIME:
            yield node.lineno
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if (owner in {"datetime", "date", "DateTime"} and node.attr in WALL) or (owner == "time" and node.attr in TIME):
                yield node.lineno


@pytest.mark.parametrize("source", ["datetime.now(UTC)", "datetime.datetime.utcnow()", "time.time()", "clock = time.time",
                                    "from time import time", "date.today()"])  # fmt: skip
def test_a_read_of_the_clock_is_found(source: str) -> None:
    assert list(reads_of_the_clock(source)) == [1]


@pytest.mark.parametrize("source", ["time.monotonic()", "ti.now()", "clock.now(connection)", "time.sleep(1)"])
def test_other_calls_are_not(source: str) -> None:
    assert list(reads_of_the_clock(source)) == []


def test_no_other_file_reads_the_clock_of_its_machine() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for package in ("paceline", "scheduler", "workers")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (lines := list(reads_of_the_clock(path.read_text(encoding="utf-8"))))
    }

    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) == set(found), "an entry of the list is no longer needed"


def test_a_test_can_move_each_clock_that_a_statement_reads() -> None:
    read = {
        name
        for path in sorted((ROOT / "scheduler/store").rglob("*.py"))
        for names in SQL_CLOCKS.findall(path.read_text(encoding="utf-8"))
        for name in names
        if name
    }

    assert read == set(re.findall(r"create function moved\.(\w+)", clock.SHADOW))


class Skewed:
    """A waiter on a machine with a wrong clock, and the time of PostgreSQL."""

    def __init__(self, shows: datetime) -> None:
        self.shows = shows

    def now(self) -> datetime:
        return self.shows


@pytest.mark.parametrize(("late", "fires"), [(timedelta(seconds=1), True), (-timedelta(hours=1), False)])
def test_a_trigger_waits_by_the_clock_of_postgresql_and_not_by_that_of_its_waiter(late: timedelta, fires: bool) -> None:
    trigger = DateTimeTrigger(datetime(2100, 1, 1, tzinfo=UTC))
    trigger.other_runs = Skewed(trigger.moment + late)

    async def wait() -> bool:
        try:
            await asyncio.wait_for(deferral.first_event(trigger), 0.1)
        except TimeoutError:
            return False
        return True

    assert asyncio.run(wait()) is fires


def test_the_database_time_of_a_waiter_advances() -> None:
    async def nobody(targets: object) -> list[object]:
        return []

    other_runs = OtherRuns(nobody, datetime(2100, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]

    first = other_runs.now()

    assert datetime(2100, 1, 1, tzinfo=UTC) <= first <= other_runs.now() < first + timedelta(minutes=1)


def test_a_delay_is_counted_on_the_clock_of_postgresql_from_inside_a_task() -> None:
    with current({"ti": Skewed(datetime(2100, 1, 1, tzinfo=UTC))}):  # type: ignore[arg-type]
        assert TimeDeltaTrigger(timedelta(hours=1)).moment == datetime(2100, 1, 1, 1, tzinfo=UTC)
