"""Deploys while runs are open and processes are killed: each run executes one version of its code. No folder is shared.

Each file of a bundle version holds the number of the version: the DAG file, a module, a module that is imported late, and a file of
data. Each task, trigger and callback tells all four. `make test` deploys a few times; `make test-faults` 200 times, with 50 open
runs.
"""

import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from chaos import mutants
from chaos.mutants import Change, Mutant
from support.faulty import FULL
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from scheduler.actions import bundles, runs
from scheduler.actions.actor import Actor
from scheduler.messaging.wakeups import Wakeups
from scheduler.settings import Settings
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db import database

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1500 if FULL else 300)]

DEPLOYS = int(os.environ.get("DEPLOYS", "200" if FULL else "8"))
OPEN_RUNS = 50 if FULL else 10
#: Seconds between two deploys, and deploys between two kills.
PAUSE_S, KILL_EVERY = 2.0, 4
SEED = int(os.environ.get("FAULT_SEED", "20261128"))
TASKS = 5
DAG_FILE = """
import asyncio
import json
import time
from pathlib import Path

import lib
from paceline import DAG, BaseOperator, chain, task
from paceline.triggers import BaseTrigger, TriggerEvent

MARK = {mark}

def marks():
    import late

    data = int((Path(__file__).parent / "data" / "mark.txt").read_text())
    return [MARK, lib.mark(), late.MARK, data]

class Fires(BaseTrigger):
    def serialize(self):
        return f"{{__name__}}.Fires", {{}}

    async def run(self):
        await asyncio.sleep(0.2)
        yield TriggerEvent(marks())

class Waits(BaseOperator):
    def execute(self, context):
        self.defer(trigger=Fires(), method_name="resumed")

    def resumed(self, context, event):
        return event + marks()

def called(context):
    with open({told!r}, "a") as file:
        file.write(json.dumps([context["run_id"], marks()]) + "\\n")

def work():
    time.sleep(0.2)
    return marks()

options = {{"retries": 20, "retry_delay": 0.1}}
with DAG("marked", schedule=None, max_active_runs=100, default_args=options, on_success_callback=called):
    first, *others = [task(task_id=f"t{{i}}")(work)() for i in range({tasks} - 1)]
    chain(first, Waits(task_id="waits"), *others)
"""


def version(mark: int, told: Path) -> dict[str, BundleFile]:
    """The files of a version. Each version has a module that the next one lacks. Callbacks write to `told`."""
    texts = {
        "marked.py": DAG_FILE.format(mark=mark, tasks=TASKS, told=str(told)),
        "lib.py": f"from own_{mark} import MARK\n\ndef mark():\n    return MARK\n",
        f"own_{mark}.py": f"MARK = {mark}\n",
        "late.py": f"MARK = {mark}\n",
        "data/mark.txt": str(mark),
    }
    return {path: BundleFile(text.encode()) for path, text in texts.items()}


class Load:
    """Two machines with a scheduler, a worker and a waiter each, whose DAGs folders are empty."""

    def __init__(self, factory: StackFactory, settings: Settings, tmp_path: Path, env: dict[str, str] | None = None) -> None:
        self.engine = database.create(settings)
        self.told = tmp_path / "told"
        self.stacks: list[Stack] = []
        for name in ("one", "two"):
            home = tmp_path / name
            (home / "dags").mkdir(parents=True)
            own = {"PACELINE_HOME": str(home), "PACELINE_DAGS_FOLDER": str(home / "dags")} | (env or {})
            self.stacks.append(factory(schedulers=1, workers=[("default", 3)], waiters=1, env=own))
        wakeups = Wakeups(settings)
        self.actor = Actor(settings=settings, engine=self.engine, announce=wakeups.announce, name="cli:ada", made_by="cli")
        self._runs = itertools.count()
        self._victims = itertools.cycle(("worker-1", "scheduler-1", "waiter-1"))

    def rows(self, statement: str) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.exec_driver_sql(statement))

    def deploy(self, mark: int) -> None:
        bundles.deploy(self.actor, "sales", version(mark, self.told), message=str(mark))

    def fill(self, most: int) -> None:
        """Trigger runs until so many are open."""
        for _ in range(most - self.open()):
            runs.trigger(self.actor, "marked", run_id=f"r{next(self._runs)}")

    def open(self) -> int:
        count: int = self.rows("select count(*) from dag_run where state in ('queued', 'running')")[0][0]
        return count

    def kill_one(self, dice: random.Random) -> str:
        stack, name = dice.choice(self.stacks), next(self._victims)
        eventually(lambda: stack.supervisor.alive(name), timeout=60)
        stack.kill(name)
        return name.partition("-")[0]

    def settle(self) -> None:
        eventually(lambda: self.open() == 0, timeout=240, interval=0.5, message=lambda: str(self.rows(STATES)))

    def called(self) -> list[tuple[str, set[int], int]]:
        """What the callbacks of the runs told once all have ended, as `mixed` has it."""
        eventually(lambda: not self.rows("select 1 from notice where ended_at is null"), timeout=120, interval=0.5)
        planned = dict(
            self.rows(
                "select r.run_id, b.message::int from dag_run r join dag_version v on v.id = r.version_id"
                " join bundle_version b on b.id = v.bundle_version_id"
            )
        )
        told = map(json.loads, self.told.read_text().splitlines())
        return [(run_id, set(marks), planned[run_id]) for run_id, marks in told]

    def mixed(self) -> list[tuple[str, set[int], int]]:
        """The runs whose tasks executed other code than that of the bundle version of the run: run, marks, mark of its version."""
        found = self.rows(
            "select r.run_id, b.message::int as mark, json_agg(x.value) as values from dag_run r"
            " join dag_version v on v.id = r.version_id join bundle_version b on b.id = v.bundle_version_id"
            " join task_instance t on t.dag_run_id = r.id join xcom x on x.task_instance_id = t.id and x.key = 'return_value'"
            " group by 1, 2"
        )
        marks = [(row.run_id, set(itertools.chain.from_iterable(row.values)), row.mark) for row in found]
        return [(run_id, seen, mark) for run_id, seen, mark in marks if seen != {mark}]


STATES = "select t.state, t.reason, count(*) from task_instance t group by 1, 2"


def drive(load: Load, deploys: int, *, kills: bool) -> Counter[str]:
    """Deploy so often under load, and wait for the end of all runs."""
    dice, killed = random.Random(SEED), Counter[str]()
    load.deploy(1)
    eventually(lambda: load.rows("select 1 from dag where dag_id = 'marked' and is_active"), timeout=90)
    for mark in range(2, deploys + 2):
        began = time.monotonic()
        load.fill(OPEN_RUNS)
        load.deploy(mark)
        if kills and mark % KILL_EVERY == 0:
            killed[load.kill_one(dice)] += 1
        # The pace of the deploys, not a wait for anything.
        time.sleep(max(0.0, PAUSE_S - (time.monotonic() - began)))
    load.settle()
    return killed


@pytest.mark.long
def test_each_run_executes_one_version_while_code_is_deployed_and_processes_are_killed(
    stack_factory: StackFactory, settings: Settings, tmp_path: Path
) -> None:
    load = Load(stack_factory, settings, tmp_path)

    killed = drive(load, DEPLOYS, kills=True)

    ended = dict(load.rows("select state, count(*) from dag_run group by 1"))
    executed = load.rows("select count(distinct version_id) from dag_run")[0][0]
    print(
        json.dumps({"seed": SEED, "deploys": DEPLOYS, "runs": ended, "versions_executed": executed, "killed": killed}),
        file=sys.stderr,
    )
    assert load.mixed() == []
    called = load.called()
    assert [call for call in called if call[1] != {call[2]}] == []
    assert len({run_id for run_id, _, _ in called}) == ended["success"]
    assert ended.keys() == {"success"}, load.rows(STATES)
    assert load.rows("select count(*) from xcom where key = 'return_value'")[0][0] == TASKS * ended["success"]
    assert executed > 1
    assert killed.total() == DEPLOYS // KILL_EVERY
    eventually(
        lambda: load.rows(f"select 1 from bundle b join bundle_version v on v.id = b.version_id where v.message = '{DEPLOYS + 1}'")
    )
    load.engine.dispose()


NEWEST = Mutant(
    "the newest code", "mixed",
    [Change("scheduler/store/dags/versions.py", "jsonb_build_object('bundle_version', bundle_version_id)",
            "jsonb_build_object('bundle_version', (select max(id) from bundle_version))")],
)  # fmt: skip


@pytest.mark.long
def test_a_worker_that_loads_the_newest_code_is_found_out(stack_factory: StackFactory, settings: Settings, tmp_path: Path) -> None:
    mutated = mutants.write(NEWEST, tmp_path / "mutant")
    load = Load(stack_factory, settings, tmp_path, env={"PYTHONPATH": str(mutated)})

    # A process that met each version while it was the newest executes the right code, so it may take more than a few deploys.
    for _ in range(5):
        drive(load, 5, kills=False)
        if load.mixed():
            break

    assert load.mixed() != []
    load.engine.dispose()
