"""Faults at every point of tasks that write three tables: readers see all of a try or nothing of it, each run has its rows once.

`make test-tables` strikes each point 20 times (TABLES_TIMES) for an hour; TABLES_POINTS="code.after=kill@1,after b" selects
points. Without it, those that prove the most are struck once.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.mutants import Change, Mutant, write
from fastapi import Request
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from support import table_faults
from support.faulty import FULL, faulty_stack
from support.ledger import Ledger
from support.stacks import StackFactory
from support.table_faults import STEPS, Survival
from support.tables import served, with_tables

from scheduler.catalog import app
from scheduler.catalog.access import Caller
from scheduler.catalog.tables import Tables
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(6 * 3600 if FULL else 900)]

TIMES = int(os.environ.get("TABLES_TIMES", "20" if FULL else "1"))
#: Where a process is killed: before, during and after the commits of a task, and its report.
KILLS = (
    "claim.after=kill@1", "code.before=kill@1", "tables.given=kill@1",
    "tables.asked=kill@1", "tables.asked=kill@4", "tables.written=kill@1", "tables.written=kill@5", "tables.stored=kill@1",
    "tables.stored=kill@6", "tables.published=kill@1", "tables.published=kill@2", "code.after=kill@1", "code.after=kill@2",
    "report.before=kill@1", "publish.before=kill@1", "follow.locked=kill@1",
    "publish.moved=kill@1", "publish.moved=kill@2", "publish.rebase=kill@1", "publish.rebased=kill@1",
    "publish.rebased=kill@3", "follow.commit=kill@1", "report.after=kill@1",
)  # fmt: skip
COLLECTION = ("tables.collect=kill@1", "tables.delete=kill@1", "tables.delete=kill@5", "tables.collected=kill@1")
FROZEN = ("code.after=stop@1", "tables.written=stop@2", "publish.moved=stop@1", "follow.commit=stop@1")
#: As schedulers collect, who are killed here.
COLLECT = """
import os
from scheduler.catalog import gc
from scheduler.process import fault_points
from scheduler.settings import Settings
from scheduler.store.db import database

settings = Settings.load()
fault_points.arm(os.environ, settings.database_url)
gc.collect(settings, database.create(settings), older_s=0)
"""
#: Of the short form.
SHORT = {
    "tables.written=kill@5", "tables.stored=kill@6", "tables.published=kill@2", "code.after=kill@1", "publish.moved=kill@1",
    "publish.rebased=kill@1", "follow.commit=kill@1", "report.after=kill@1",
}  # fmt: skip
POINTS = [point for point in KILLS if FULL or point in SHORT]
CHOSEN = list(filter(None, os.environ.get("TABLES_POINTS", "").split(",")))


@pytest.fixture
def person(settings: Settings) -> Iterator[tuple[Tables, RestCatalog]]:
    """The tables, and a catalog for people outside of all tries."""
    engine = database.create(settings)
    tables = Tables(with_tables(settings), engine)

    def authenticate(request: Request) -> Caller:
        return Caller("person", may_write=True)

    with served(app.create(tables, authenticate)) as uri:
        catalog = load_catalog("outside", type="rest", uri=uri, token="person")
        assert isinstance(catalog, RestCatalog)
        yield tables, catalog
    engine.dispose()


@contextlib.contextmanager
def survival(
    factory: StackFactory, ledger: Ledger, person: tuple[Tables, RestCatalog], folder: Path, packages: Path | None = None
) -> Iterator[Survival]:
    """A stack of two workers, with other packages than those installed if they are given."""
    tables, catalog = person
    files = table_faults.prepared(folder / "tasks")
    env = {"PACELINE_TABLES_WAREHOUSE": tables.warehouse.url, **({"PYTHONPATH": str(packages)} if packages else {})}
    workers = [("default", 2), ("default", 2)]
    with faulty_stack(factory, ledger, folder / "faults", files=files, env=env, schedulers=1, workers=workers, waiters=0) as faulty:
        faulty.stack.settings = with_tables(faulty.stack.settings)
        yield Survival(faulty, tables, catalog, folder / "tasks")


def strike(one: Survival, point: str, times: int, *, must_strike: bool = True) -> None:
    """Kill a process at a point, while two runs write the same tables."""
    began = time.monotonic()
    with one.judged(point) as round_:
        for _ in range(times):
            if point in STEPS:
                (one.folder / "step").write_text(point)
            else:
                one.faulty.inject(point)
            round_.start()
            round_.settle()
            one.kills[point] += (one.folder / "struck").exists() if point in STEPS else len(one.faulty.struck())
            (one.folder / "struck").unlink(missing_ok=True)
    one.collect()
    one.orphans[point] = len(one.unneeded(round_.namespace))
    if must_strike and not one.kills[point]:
        one.found.append(f"{point} was not reached")
    print(
        f"{point}: {one.kills[point]} times, {one.orphans[point]} files stay, {table_faults.took(began)}; until now {one.found}",
        file=sys.stderr,
    )


def test_each_kill_leaves_all_tables_old_or_all_new_and_each_row_once(
    stack_factory: StackFactory, ledger: Ledger, person: tuple[Tables, RestCatalog], tmp_path: Path
) -> None:
    with survival(stack_factory, ledger, person, tmp_path) as one:
        for point in CHOSEN or (*POINTS, *(STEPS if FULL else ("after b",))):
            strike(one, point, TIMES)
        (one.folder / "fails").touch()
        strike(one, "report.after=kill@2", TIMES, must_strike=False)
    print(json.dumps(table_faults.counted(one)), file=sys.stderr)
    assert one.found == []
    assert not any(one.orphans.values()), one.orphans


def test_a_worker_that_is_stopped_and_comes_back_changes_nothing(
    stack_factory: StackFactory, ledger: Ledger, person: tuple[Tables, RestCatalog], tmp_path: Path
) -> None:
    with survival(stack_factory, ledger, person, tmp_path) as one:
        for point in FROZEN if FULL else FROZEN[:2]:
            for _ in range(TIMES):
                with one.judged(point) as round_:
                    one.faulty.inject(point)
                    round_.start()
                    round_.freeze()
                    # What it does late is done before the tables are judged.
                    round_.start()
                    round_.settle()
                one.kills[point] += 1
    print(json.dumps(table_faults.counted(one)), file=sys.stderr)
    assert one.found == []


def collected(one: Survival) -> int:
    """The exit code of a collection in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", COLLECT], env={**os.environ, **one.faulty.stack.env}, timeout=120, check=False
    ).returncode


def test_a_collection_that_is_killed_continues_with_the_next_one(
    stack_factory: StackFactory, ledger: Ledger, person: tuple[Tables, RestCatalog], tmp_path: Path
) -> None:
    with survival(stack_factory, ledger, person, tmp_path) as one:
        (one.folder / "fails").touch()
        for point in COLLECTION:
            for _ in range(TIMES):
                with one.judged(point) as round_:
                    round_.start()
                    round_.settle()
                one.faulty.inject(point)
                assert collected(one) == -signal.SIGKILL
                one.faulty.inject("")
                one.kills[point] += 1
                assert collected(one) == 0
                one.orphans[point] = len(one.unneeded(round_.namespace))
    print(json.dumps(table_faults.counted(one)), file=sys.stderr)
    assert one.found == []
    assert not any(one.orphans.values()), one.orphans


PUBLISH, FOLLOW, TRIES = "scheduler/store/tables/publish.py", "workers/task/follow.py", "scheduler/store/tables/tries.py"
TOGETHER = """            if ending.tables is not None:
                table_tries.publish(self._hot, claim, ending.tables)
                fault_points.point("publish.moved")
"""
#: Defects of the product, with the fault under which a round must detect them.
MUTANTS = {
    "bases are not compared": (
        [Change(PUBLISH, "     where i.metadata_location is distinct from c.base_location\n", "     where false\n")], "",
    ),
    "published in a transaction of its own": (
        [Change(FOLLOW, TOGETHER, ""),
         Change(FOLLOW, '            fault_points.point("publish.before")\n',
                '            fault_points.point("publish.before")\n'
                "            with self._hot.locked(claim, plan, waiting):\n"
                "                table_tries.publish(self._hot, claim, ending.tables)\n"
                '            fault_points.point("publish.moved")\n')],
        "publish.moved=kill@1",
    ),
    "the next try keeps what the dead one wrote": (
        [Change("scheduler/store/worker/table_tries.py", "    token = tries.new_token()\n",
                "    token = tries.new_token()\n    take_over(ask, claim)\n")],
        "code.after=kill@1",
    ),
    "the token of a dead try is accepted": (
        [Change(TRIES, " and i.dispatch_id = t.dispatch_id and i.state = 'running'\n", "\n")],
        "code.after=kill@1",
    ),
    "an epoch waits for the success": (
        [Change("scheduler/catalog/tables.py",
                "streaming.publish_epoch(connection, catalog, caller.attempt, changes) if streams else []", "[]")],
        "code.after=kill@1",
    ),
    "a failure publishes": (
        [Change(FOLLOW, "bool(self.settings.tables.warehouse) and ending.state is TaskState.SUCCESS",
                "bool(self.settings.tables.warehouse)")],
        "fails",
    ),
}  # fmt: skip


@pytest.mark.skipif(not FULL, reason="one stack each: make test-tables")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_of_the_product_is_detected(
    name: str, stack_factory: StackFactory, ledger: Ledger, person: tuple[Tables, RestCatalog], tmp_path: Path
) -> None:
    changes, fault = MUTANTS[name]
    packages = write(Mutant(name.replace(" ", "_"), "", changes), tmp_path / "packages")
    with survival(stack_factory, ledger, person, tmp_path, packages) as one:
        if fault == "fails":
            (one.folder / "fails").touch()
        strike(one, fault if "=" in fault else "report.after=delay:0", 3, must_strike=False)
    print(name, one.found, file=sys.stderr)
    assert one.found


def test_each_defect_is_one_of_the_present_product() -> None:
    from chaos.mutants import ROOT, changed

    for name, (changes, _) in MUTANTS.items():
        for change in changes:
            changed(Mutant(name, "", changes), change, (ROOT / change.file).read_text())


def test_every_point_of_tables_is_struck() -> None:
    struck = {point.partition("=")[0] for point in (*KILLS, *COLLECTION)}
    assert set(fault_points.TABLES) <= struck
