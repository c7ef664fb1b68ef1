"""One order of locks, so no deadlock ever: rows in ID order, also beside busy schedulers and workers."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from psycopg2.errors import LockNotAvailable
from support.repair import repair
from support.run_actions import actor_of, clear_, schedule_and_work
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.exceptions import PacelineError
from paceline.states import TaskState
from scheduler.actions.installation import clean
from scheduler.deciding.following import JoinStates, Plan
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.actions import backfills, delete
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.dags import versions
from scheduler.store.db.database import transact
from scheduler.store.moves.fire import Fired, fire
from scheduler.store.runs import integrity
from scheduler.store.runs.selection import Runs
from scheduler.store.upkeep import invariants
from scheduler.store.worker import deferrals
from scheduler.store.worker.claims import Claim, Deferral, Ending, Refused, Reported
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import Follower

DURATION_S = 4.0
START = datetime(2026, 3, 1, tzinfo=UTC)
HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
DAGS = ("one", "two")


def interfere(scenario: Scenario, over: threading.Event, done: list[int]) -> None:
    """Make and cancel backfills, trigger, clear, delete, prune and repair, in any order. Adds what was not refused."""
    dice = random.Random(7)
    tools = invariants.Tools(scenario.engine, scenario.settings, scenario.brokers, grace_s=0.5)
    while not over.is_set():
        dag_id = dice.choice(DAGS)
        with contextlib.suppress(PacelineError):
            action = dice.randrange(7)
            match action:
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
                    for _ in clean(actor_of(scenario), datetime.now(UTC) - timedelta(seconds=0.5)):
                        pass
                case _:
                    repair(tools, invariants.find(tools))
            done.append(action)


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
    accepted: list[Claim] = []
    done: list[int] = []

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(schedule_and_work, scenario, over, accepted) for scenario in engines]
        busy += [pool.submit(interfere, scenario, over, done) for scenario in (person, housekeeper)]
        until = time.monotonic() + DURATION_S
        # Longer on a busy machine, until enough has met.
        while time.monotonic() < until or (min(len(accepted), len(done)) <= 10 and time.monotonic() < until + 60):
            over.wait(0.1)
        over.set()
        for one in busy:
            one.result(timeout=60)
        assert len(accepted) > 10
        assert len(done) > 10

    person.run_to_end(turns=100)
    assert person.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


SUCCESS = Ending(TaskState.SUCCESS)
BLOCKED = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


class Other:
    """Another session, which takes rows one by one in id order, as every transaction does."""

    def __init__(self, scenario: Scenario) -> None:
        self._connection = psycopg2.connect(scenario.settings.database_url)

    def lock(self, table: str, key: str, value: int) -> None:
        """LockNotAvailable if another session has it."""
        with self._connection.cursor() as cursor:
            cursor.execute(f"select 1 from {table} where {key} = %s for no key update nowait", (value,))

    def leave(self) -> None:
        self._connection.rollback()
        self._connection.close()


def ids(scenario: Scenario) -> dict[str, int]:
    return dict(scenario.rows("select task_id || case when map_index > 0 then map_index::text else '' end, id from task_instance"))


def claims(scenario: Scenario) -> dict[str, Claim]:
    scenario.turn()
    found = [claim for message in scenario.messages() if (claim := scenario.claim(message)) is not None]
    return {claim.task_id: claim for claim in found}


def added_above(scenario: Scenario) -> tuple[Claim, int, int]:
    """`new` was added above `old` while the run was open: reporting it moves `old`, whose id is lower."""
    run = scenario.triggered(dag("d", {"first": (), "old": ("first",)}, disable_bundle_versioning=True), run_id="r")
    first = claims(scenario)["first"]
    scenario.add(dag("d", {"first": (), "new": (), "old": ("new",)}, disable_bundle_versioning=True))
    known = versions.Versions()
    with scenario.engine.begin() as connection:
        integrity.follow_newest(connection, run, known, default_queue="default")
    new = claims(scenario)["new"]
    assert scenario.follower.report(first, SUCCESS).is_stored
    numbers = ids(scenario)
    assert numbers["old"] < numbers["new"]
    return new, numbers["old"], numbers["new"]


def settled_beside_a_join(scenario: Scenario) -> tuple[Claim, int, int]:
    """`a` settles `alone` and may decide `join`, which has the higher id."""
    edges = {"a": (), "z": (), "alone": ("a",), "join": ("a", "z")}
    scenario.triggered(dag("d", edges), run_id="r")
    found = claims(scenario)
    numbers = ids(scenario)
    assert numbers["alone"] < numbers["join"]
    return found["a"], numbers["alone"], numbers["join"]


@pytest.mark.parametrize("make", [added_above, settled_beside_a_join])
def test_a_report_waits_for_a_lower_row_before_it_locks_a_higher_row(
    scenario: Scenario, make: Callable[[Scenario], tuple[Claim, int, int]]
) -> None:
    claim, lower, higher = make(scenario)
    other = Other(scenario)
    other.lock("task_instance", "id", lower)
    with ThreadPoolExecutor(1) as pool:
        try:
            reported: Future[Reported | Refused] = pool.submit(scenario.follower.report, claim, SUCCESS)
            eventually(lambda: scenario.rows(BLOCKED) == [(1,)])
            other.lock("task_instance", "id", higher)
        finally:
            other.leave()
        assert reported.result(timeout=20).is_stored

    assert scenario.rows("select 1 from task_instance where id = %s and state is null", lower) == []
    assert deadlocks(scenario) == 0


def deadlocks(scenario: Scenario) -> Any:
    return scenario.rows("select deadlocks from pg_stat_database where datname = current_database()")[0][0]


def test_a_mapped_task_that_ends_settles_downstream_tasks_without_another_round_trip(scenario: Scenario) -> None:
    """Its instances have higher ids than the join; the report itself takes them in order."""
    mapped = {"m": {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}}
    scenario.triggered(dag("d", {"m": (), "after": ("m",)}, options=mapped, rules={"after": "one_success"}), run_id="r")
    locked: list[Plan] = []

    class Counting(HotPath):
        def locked(self, claim: Claim, plan: Plan, waiting: Collection[int] = ()) -> AbstractContextManager[JoinStates]:
            locked.append(plan)
            return super().locked(claim, plan, waiting)

    settings = scenario.settings
    with closing(Counting(settings, scenario.worker_id)) as hot:
        scenario.follower = Follower(hot, Publisher(settings), Wakeups(settings), enabled=True)
        scenario.run_to_end()

    assert locked == []
    assert set(scenario.states().values()) == {"success"}


def test_deferrals_are_taken_in_order(scenario: Scenario) -> None:
    """By a clear and by a waiter, in any order of their arguments."""
    names = [f"t{number}" for number in range(3)]
    scenario.triggered(dag("d", dict.fromkeys(names, ())), run_id="r")
    waiting = Ending(TaskState.DEFERRED, resume={}, deferral=Deferral(classpath="a.B", kwargs={}))
    found = claims(scenario)
    for claim in reversed(found.values()):
        assert scenario.follower.report(claim, waiting).is_stored
    low, *_, high = sorted(claim.id for claim in found.values())
    fired = [Fired(ti_id=claim.id, dispatch_id=claim.dispatch_id, outcome={}) for claim in found.values()]
    known = [(claim.id, claim.dispatch_id) for claim in found.values()]
    ways: list[Callable[[], object]] = [
        lambda: clear_(scenario),
        lambda: transact(scenario.engine, fire, fired),
        lambda: transact(scenario.engine, deferrals.still_awaited, "w", known),
    ]
    for way in ways:
        if way is ways[2]:
            scenario.sql("update task_instance set state = 'skipped', ended_at = clock_timestamp()")
        other = Other(scenario)
        other.lock("deferral", "task_instance_id", low)
        with ThreadPoolExecutor(1) as pool:
            try:
                done = pool.submit(way)
                eventually(lambda: scenario.rows(BLOCKED) == [(1,)])
                other.lock("deferral", "task_instance_id", high)
            except LockNotAvailable:
                pytest.fail("the higher deferral was taken before the lower one")
            finally:
                other.leave()
            done.result(timeout=20)
        scenario.sql("delete from deferral")
        restore(scenario, found)
    assert deadlocks(scenario) == 0


def restore(scenario: Scenario, found: dict[str, Claim]) -> None:
    """They wait again, as if nothing had been."""
    for claim in found.values():
        scenario.sql(
            "update task_instance set state = 'deferred', dispatch_id = %s, try_number = 1, started_at = clock_timestamp(),"
            " ended_at = null, reason = null, worker = %s, queued_at = clock_timestamp(), scheduled_at = clock_timestamp(),"
            " resume = '{}' where id = %s",
            claim.dispatch_id,
            scenario.worker_id,
            claim.id,
        )
    for claim in reversed(found.values()):
        scenario.sql(
            "insert into deferral (task_instance_id, dispatch_id, classpath, kwargs) values (%s, %s, 'a.B', '{}')",
            claim.id,
            claim.dispatch_id,
        )
