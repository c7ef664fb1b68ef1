"""SIGKILL while a task writes three tables: readers see all of a try or nothing of it, and each run has its rows once.

`make test-tables` kills at every point several times; without FAULT_TESTS=full each point is struck once.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import Request
from pyiceberg.table import StaticTable
from sqlalchemy import Engine
from support.faulty import FULL
from support.stacks import Stack, StackFactory
from support.tables import served, with_tables
from support.waiting import eventually

from scheduler.catalog import app
from scheduler.catalog.tables import Caller, Tables
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(3600 if FULL else 600)]

NAMES = ("a", "b", "c")
POINTS = (*fault_points.TABLES, "code.after", "report.before", "follow.locked", "follow.commit", "report.after")
TIMES = 20 if FULL else 1
DAG = """
import os
import pyarrow as pa
from paceline import dag, task
from pyiceberg.catalog import load_catalog

def append(catalog, ti):
    for name in ("a", "b", "c"):
        catalog.load_table(f"sales.{name}").append(pa.table({"run": [ti.run_id], "attempt": pa.array([ti.try_number], pa.int64())}))

@dag(schedule=None, max_active_runs=16)
def writes():
    @task(retries=20, retry_delay=0)
    def write(ti=None):
        append(ti.catalog, ti)
    write()

@dag(schedule=None)
def mutant():
    @task(retries=20, retry_delay=0)
    def write(ti=None):
        append(load_catalog("outside", type="rest", uri=os.environ["OUTSIDE"], token="person"), ti)
    write()

writes()
mutant()
"""


class Reader(threading.Thread):
    """Reads the three tables as of one moment, again and again, and notes each moment at which they differ."""

    def __init__(self, engine: Engine, tables: Tables) -> None:
        super().__init__(daemon=True)
        self._engine, self._tables, self._ending = engine, tables, threading.Event()
        self.mixes: list[dict[str, list[tuple[str, int]]]] = []
        self.reads = 0

    def run(self) -> None:
        while not self._ending.is_set():
            rows = self.read()
            self.reads += 1
            if len({tuple(each) for each in rows.values()}) > 1:
                self.mixes.append(rows)

    def read(self) -> dict[str, list[tuple[str, int]]]:
        with self._engine.begin() as connection:
            found = connection.exec_driver_sql("select table_name, metadata_location from iceberg_tables").all()
        return {
            name: sorted((row["run"], row["attempt"]) for row in StaticTable.from_metadata(location).scan().to_arrow().to_pylist())
            for name, location in found
        }

    def end(self) -> None:
        self._ending.set()
        self.join(60)


@pytest.fixture
def lake(settings: Settings) -> Iterator[tuple[Engine, Tables, str]]:
    """The tables, and a catalog for people outside of all tries."""
    engine = database.create(settings)
    tables = Tables(with_tables(settings), engine)

    def person(request: Request) -> Caller:
        return Caller("person", may_write=True)

    with served(app.create(tables, person)) as uri:
        yield engine, tables, uri
    engine.dispose()


@pytest.fixture
def stack(stack_factory: StackFactory, settings: Settings, lake: tuple[Engine, Tables, str], tmp_path: Path) -> Stack:
    import pyarrow as pa
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("outside", type="rest", uri=lake[2], token="person")
    catalog.create_namespace("sales")
    schema = pa.schema([("run", pa.string()), ("attempt", pa.int64())])
    for name in NAMES:
        catalog.create_table(f"sales.{name}", schema, properties={"paceline.rebase-appends": "true"})
    (tmp_path / "faults").mkdir()
    (tmp_path / "plan").write_text("")
    env = {
        "PACELINE_TABLES_WAREHOUSE": str(settings.home / "lake"), "OUTSIDE": lake[2],
        "PACELINE_FAULTS": f"@{tmp_path / 'plan'}", "PACELINE_FAULTS_FOLDER": str(tmp_path / "faults"),
    }  # fmt: skip
    stack = stack_factory(dags={"lake.py": DAG}, schedulers=1, workers=[("default", 4)], env=env)
    for dag_id in ("writes", "mutant"):
        eventually(lambda dag_id=dag_id: stack.cli("dags", "unpause", dag_id).returncode == 0)
    return stack


@pytest.fixture
def strike(tmp_path: Path) -> Callable[[str], None]:
    """Kill the next processes that reach a point."""

    def inject(point: str) -> None:
        for count in (tmp_path / "faults").glob("*.count"):
            count.unlink()
        (tmp_path / "plan").write_text(f"{point}=kill@1" if point else "")

    return inject


def run(stack: Stack, engine: Engine, dag_id: str, run_ids: list[str]) -> None:
    """Trigger these runs, and wait until all have succeeded."""
    for run_id in run_ids:
        assert stack.cli("dags", "trigger", dag_id, "--run-id", run_id).returncode == 0

    def ended() -> bool:
        with engine.begin() as connection:
            states = connection.exec_driver_sql("select state from dag_run where run_id = any(%s)", (run_ids,)).scalars().all()
        assert "failed" not in states, stack.logs()
        return [*states] == ["success"] * len(run_ids)

    eventually(ended, timeout=240)


def struck(tmp_path: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return {line.split()[2] for line in (tmp_path / "faults" / "struck").read_text().splitlines()}
    return set()


def test_each_kill_leaves_all_tables_old_or_all_new_and_each_row_once(
    stack: Stack, lake: tuple[Engine, Tables, str], strike: Callable[[str], None], tmp_path: Path
) -> None:
    engine, tables, _ = lake
    reader = Reader(engine, tables)
    reader.start()
    ledger: list[str] = []
    for point in POINTS:
        for time in range(TIMES):
            strike(point)
            # Two at once, so that one of them has to move its appends.
            run_ids = [f"{point}-{time}-{each}" for each in range(2)]
            run(stack, engine, "writes", run_ids)
            ledger += run_ids
    reader.end()
    assert reader.mixes == []
    assert reader.reads > len(ledger)
    for name, rows in reader.read().items():
        assert [run_id for run_id, _ in rows] == sorted(ledger), name
    assert set(POINTS) - {"publish.rebase"} <= struck(tmp_path)


def test_the_reader_sees_a_mix_of_what_is_written_outside_of_a_try(
    stack: Stack, lake: tuple[Engine, Tables, str], strike: Callable[[str], None]
) -> None:
    engine, tables, _ = lake
    reader = Reader(engine, tables)
    reader.start()
    strike("code.after")
    run(stack, engine, "mutant", ["one", "two"])
    reader.end()
    assert reader.mixes
    assert any(len(rows) > 2 for rows in reader.read().values()), "a repeated try has doubled its rows"
