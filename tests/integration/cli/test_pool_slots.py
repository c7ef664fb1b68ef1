"""The used and free slots of a pool: every page, command and service must count them as the queue service does."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.rest import Rest
from support.scenario import Scenario, dag

from paceline.states import TaskState as S
from scheduler.deciding.select import PrefetchWindow
from scheduler.services.queue import free_capacity
from scheduler.store.db.database import transact
from scheduler.store.queueing import capacity
from scheduler.store.worker.claims import Deferral, Ending
from scheduler.telemetry.event_metrics import read_gauges

from .conftest import Cli

TASKS = ("big", "runs", "queued", "waits", "waits_too")
DEFERS = Ending(S.DEFERRED, resume={"method": "go"}, deferral=Deferral(classpath="x.Y", kwargs={}))


@pytest.fixture(params=[True, False], ids=["counted", "not counted"])
def counts_deferred(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def scenario(make_scenario: Callable[..., Scenario], counts_deferred: bool) -> Scenario:
    """A pool of 4 slots: a deferred task needs 2, one task is running, one is queued, and two wait."""
    scenario = make_scenario(follow=False)
    scenario.pool("p", 4)
    scenario.sql("update pool set include_deferred = %s where name = 'p'", counts_deferred)
    # A heavier task ranks first.
    own = {name: {"pool_slots": 2 if name == "big" else 1, "priority_weight": 9 - at} for at, name in enumerate(TASKS)}
    scenario.start(dag("d", {name: [] for name in TASKS}, task={"pool": "p"}, options=own), run_id="r")
    claims = {claim.task_id: claim for message in scenario.messages()[:2] if (claim := scenario.claim(message)) is not None}
    assert scenario.follower.report(claims["big"], DEFERS).is_stored
    assert scenario.states() == {
        "big": "deferred", "runs": "running", "queued": "queued", "waits": "scheduled", "waits_too": "scheduled",
    }  # fmt: skip
    return scenario


def of_queue_service(scenario: Scenario) -> int:
    """The free slots of the pool in a pass of the queue service."""

    def read(connection: Any) -> int:
        pools = capacity.lock_waiting_pools(connection).held
        counts = capacity.count(connection, [], alive_s=60.0)
        return free_capacity(pools, counts, scenario.settings, PrefetchWindow(4)).pools["p"]

    return transact(scenario.engine, read)


def test_all_count_the_slots_of_deferred_tasks_if_the_pool_does(
    cli: Cli, rest: Rest, scenario: Scenario, counts_deferred: bool
) -> None:
    used = 4 if counts_deferred else 2
    with scenario.engine.connect() as connection:
        gauges = {(metric.name, *labels): value for metric, labels, value in read_gauges(connection, scenario.settings)}
    (listed,) = [row for row in cli.json("pools", "list") if row["name"] == "p"]
    shown, line = rest.get("/pools/p"), rest.get("/poolLines/p")
    load = cli.json("autoscale", "--queue", "default")

    assert of_queue_service(scenario) == 4 - used
    assert {
        "pools list": (listed["used_slots"], listed["free_slots"]),
        "GET /pools": (shown["occupied_slots"], shown["open_slots"]),
        "GET /poolLines": (line["used"], line["slots"] - line["used"]),
        "gauges": (gauges["pool.used_slots", "p"], gauges["pool.open_slots", "p"]),
        # Tasks that can start have a slot: the queued one, and as many waiting ones as there are free slots.
        "autoscale": (line["slots"] - (load["startable"] - 1), load["startable"] - 1),
    } == dict.fromkeys(("pools list", "GET /pools", "GET /poolLines", "gauges", "autoscale"), (used, 4 - used))
    assert Counter(ti["state"] for ti in line["holders"]) == {"running": 1, "queued": 1} | (
        {"deferred": 1} if counts_deferred else {}
    )
    assert gauges["pool.deferred_slots", "p"] == shown["deferred_slots"] == 2


def test_waiting_slots_are_those_that_the_waiting_tasks_need(cli: Cli, rest: Rest, scenario: Scenario) -> None:
    scenario.sql("update task_instance set pool_slots = 3 where task_id = 'waits'")

    with scenario.engine.connect() as connection:
        gauges = {(metric.name, *labels): value for metric, labels, value in read_gauges(connection, scenario.settings)}
    (listed,) = [row for row in cli.json("pools", "list") if row["name"] == "p"]

    assert rest.get("/pools/p")["scheduled_slots"] == gauges["pool.scheduled_slots", "p"] == 4
    assert listed["waiting"] == rest.get("/poolLines/p")["waiting_count"] == 2


def test_all_name_a_pool_that_deferred_tasks_fill(cli: Cli, rest: Rest, scenario: Scenario, counts_deferred: bool) -> None:
    full = "Pool 'p' is full: 4 of 4 slots are in use"
    (home,) = [row["reason"] for row in rest.get("/home")["waiting"] if row["pool"] == "p" and row["state"] == "scheduled"]
    (why,) = cli.json("tasks", "why", "d", "r", "waits")["waiting_for"]

    assert [why.startswith(full), home.startswith(full)] == [counts_deferred] * 2
    scenario.turn()
    assert scenario.states()["waits"] == ("scheduled" if counts_deferred else "queued")


def test_a_pool_that_only_deferred_tasks_fill_cannot_be_deleted(cli: Cli, scenario: Scenario, counts_deferred: bool) -> None:
    scenario.sql("delete from task_instance where state is distinct from 'deferred'")

    done = cli("pools", "delete", "p", "--yes")

    assert (done.exit_code, "in use by 1 task instances" in done.output) == ((1, True) if counts_deferred else (0, False))
