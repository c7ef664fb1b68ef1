"""Backfills, deletes, pruning and repairs beside busy schedulers and workers: one order of locks, so no deadlock ever."""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from support.repair import repair
from support.run_actions import clear_, schedule_and_work
from support.scenario import Scenario, dag

from paceline.exceptions import PacelineError
from scheduler.services import prune
from scheduler.store.actions import backfills, delete
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs
from scheduler.store.upkeep import invariants

DURATION_S = 4.0
START = datetime(2026, 3, 1, tzinfo=UTC)
HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
DAGS = ("one", "two")


def interfere(scenario: Scenario, over: threading.Event) -> int:
    """Make and cancel backfills, trigger, clear, delete, prune and repair, in any order; how often that was not refused."""
    done, dice = 0, random.Random(7)
    tools = invariants.Tools(scenario.engine, scenario.settings, scenario.broker, grace_s=0.5)
    while not over.is_set():
        dag_id = dice.choice(DAGS)
        with contextlib.suppress(PacelineError):
            match dice.randrange(7):
                case 0:
                    last = START + timedelta(hours=dice.randrange(1, 12))
                    transact(
                        scenario.engine,
                        backfills.create,
                        BackfillRequest(dag_id=dag_id, first=START, last=last, reprocess="completed"),
                    )
                case 1:
                    for row in transact(scenario.engine, backfills.backfills, dag_id=dag_id, limit=1):
                        transact(scenario.engine, backfills.cancel, row["id"])
                case 2:
                    scenario.trigger(dag_id, run_id=f"r{dice.randrange(5)}")
                case 3:
                    clear_(scenario, runs=Runs(dag_id=dag_id))
                case 4:
                    transact(scenario.engine, delete.delete_run, dag_id, f"r{dice.randrange(5)}")
                case 5:
                    for _ in prune.everything(scenario.engine, datetime.now(UTC) - timedelta(seconds=0.5)):
                        pass
                case _:
                    repair(tools, invariants.find(tools))
            done += 1
    return done


def test_backfills_deleting_pruning_and_repairing_never_deadlock(make_scenario: Callable[..., Scenario]) -> None:
    person, housekeeper, *engines = [make_scenario() for _ in range(4)]
    edges = {"first": [], **{f"m{place}": ["first"] for place in range(4)}, "join": [f"m{place}" for place in range(4)]}
    for dag_id in DAGS:
        person.add(dag(dag_id, edges, schedule=HOURLY, task={"notify": ("on_success",)}))
    person.sql(
        "update dag_schedule s set planned_version_id = d.version_id, next_run_after = 'infinity'"
        " from dag d where d.dag_id = s.dag_id"
    )
    over = threading.Event()

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(schedule_and_work, scenario, over) for scenario in engines]
        interfering = [pool.submit(interfere, scenario, over) for scenario in (person, housekeeper)]
        until = time.monotonic() + DURATION_S
        over.wait(until - time.monotonic())
        over.set()
        assert sum(one.result(timeout=60) for one in working) > 10
        assert sum(one.result(timeout=60) for one in interfering) > 10

    person.run_to_end(turns=100)
    assert person.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
