"""A paused DAG, or a task that waits for a limit of its own, does not stop other DAGs from passing their slots on."""

import threading
import uuid
from math import inf

import pytest
from sqlalchemy import event
from support.run_actions import clear_
from support.scenario import Scenario, chain, dag, wide

from paceline.states import TaskState
from scheduler.services import queue
from scheduler.services.queue import Queue
from scheduler.store.dags import dags
from scheduler.store.db.database import transact
from scheduler.store.queueing import capacity
from scheduler.store.worker.claims import Ending, NextInPlace

PARKED = "select count(*) from task_instance where state = 'scheduled' and rank < 0"


def pause(scenario: Scenario) -> None:
    assert transact(scenario.engine, dags.pause, "p")


def unpause(scenario: Scenario) -> None:
    assert transact(scenario.engine, dags.unpause, "p")


def waiting_while_paused(scenario: Scenario, width: int = 3) -> int:
    """A run of the paused DAG `p` with one task queued and the others waiting for the pool `narrow`, behind all others of it."""
    scenario.pool("narrow", 1)
    run = scenario.start(wide("p", width, task={"pool": "narrow"}), run_id="p")
    pause(scenario)
    scenario.turn()
    assert scenario.rows(PARKED) == [(width - 1,)]
    return run


def test_a_chain_in_the_pool_of_a_paused_dag_follows(scenario: Scenario) -> None:
    waiting_while_paused(scenario)
    scenario.work()
    run = scenario.triggered(chain("c", 20, task={"pool": "narrow"}), run_id="c")

    for _ in range(10):
        scenario.turn()
        while scenario.work():
            pass

    by = [
        row[0].split("#")[0] for row in scenario.rows("select queued_by from task_instance where dag_run_id = %s order by id", run)
    ]
    assert by == ["s0"] + ["w"] * 19


WAITS_FOR_ITS_OWN = {
    "a paused DAG": {},
    "max_active_tasks": {"max_active_tasks": 1},
    "max_active_tis_per_dag": {"task": {"max_active_tis_per_dag": 1}, "max_active_tasks": 9},
    "max_active_tis_per_dagrun": {"task": {"max_active_tis_per_dagrun": 1}, "max_active_tasks": 9},
    "a queue without workers": {"task": {"queue": "nobody"}},
}


@pytest.mark.parametrize("reason", WAITS_FOR_ITS_OWN)
def test_a_task_that_waits_for_its_own_does_not_forbid_other_pools_to_pass_slots_on(scenario: Scenario, reason: str) -> None:
    options = {**WAITS_FOR_ITS_OWN[reason]}
    task = {"pool": "wide", "expand": {"kind": "product", "inputs": [{"literal": 60}]}, **options.pop("task", {})}
    scenario.pool("narrow", 1)
    scenario.pool("wide", 80)
    scenario.add(dag("p", {"a": []}, task=task, **options))
    scenario.add(wide("w", 4, task={"pool": "narrow"}))
    scenario.trigger("p", run_id="p")
    if reason == "a paused DAG":
        scenario.sql("update pool set slots = 1 where name = 'wide'")
        scenario.turn()
        pause(scenario)
        scenario.work()
    scenario.trigger("w", run_id="w")

    for _ in range(2):
        scenario.turn()

    assert scenario.rows("select 1 from task_instance where state = 'scheduled' and pool = 'wide' limit 1") == [(1,)]
    assert scenario.rows("select passes_slots_on from pool where name = 'narrow'") == [(True,)]


def test_a_process_continues_in_place_beside_a_paused_dag(scenario: Scenario) -> None:
    waiting_while_paused(scenario)
    scenario.work()
    scenario.start(chain("c", 2, task={"pool": "narrow"}), run_id="c")
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None

    answer = scenario.follower.report(claim, Ending(TaskState.SUCCESS), NextInPlace(str(uuid.uuid4())))

    assert answer.is_stored and answer.continues is not None


def test_a_pass_reads_no_task_instance_of_a_paused_dag(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "READ_PARKED_S", inf)  # it looks for tasks behind a limit of their own
    waiting_while_paused(scenario, 40)
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(scenario.engine, "before_cursor_execute", note)
    scenario.schedulers[0].service(Queue).queue()
    event.remove(scenario.engine, "before_cursor_execute", note)

    assert len(statements) == 1, "no pool has a task instance in its line, so none is locked"
    assert scenario.rows(f"select {capacity.PENDING}") == [(False,)]


LIMITS = ["max_active_tis_per_dag", "max_active_tis_per_dagrun"]


def waiting_for_its_limit(scenario: Scenario, limit: str) -> int:
    """A run of `p` with one of six instances running, and the others behind a limit of their task, in the pool `narrow`."""
    scenario.pool("narrow", 2)
    options = {"pool": "narrow", "expand": {"kind": "product", "inputs": [{"literal": 6}]}, limit: 1}
    run = scenario.triggered(dag("p", {"a": []}, task={**options, "priority_weight": 9}), run_id="p")
    for _ in range(2):
        scenario.turn()
    return run


@pytest.mark.parametrize("limit", LIMITS)
def test_a_chain_in_the_pool_of_a_task_behind_its_own_limit_follows(scenario: Scenario, limit: str) -> None:
    first = waiting_for_its_limit(scenario, limit)
    (held,) = scenario.messages()
    claim = scenario.claim(held)
    run = scenario.start(chain("c", 20, task={"pool": "narrow"}), run_id="c")

    while scenario.work():
        pass

    by = [
        row[0].split("#")[0] for row in scenario.rows("select queued_by from task_instance where dag_run_id = %s order by id", run)
    ]
    assert by == ["s0"] + ["w"] * 19
    assert claim is not None and scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
    scenario.run_to_end()
    assert scenario.run_state(first) == scenario.run_state(run) == "success"
    assert scenario.rows("select count(*) from task_instance where rank < 0") == [(0,)]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_free_limit_of_a_task_wins_over_a_chain_of_lower_rank_in_a_full_pool(scenario: Scenario, limit: str) -> None:
    waiting_for_its_limit(scenario, limit)
    (held,) = scenario.messages()
    claim = scenario.claim(held)
    scenario.start(wide("c", 9, task={"pool": "narrow"}), run_id="c")
    (other,) = scenario.messages()
    # The limit becomes free in a way that tells nobody, and all slots go to others meanwhile.
    scenario.sql("update task_instance set state = 'success', ended_at = now() where id = %s", held[0])
    scenario.sql("update pool set slots = 1 where name = 'narrow'")
    assert scenario.rows(PARKED) == [(5,)]

    for service in (each.service(Queue) for each in scenario.schedulers):
        service._parked_read_at -= queue.READ_PARKED_S
    scenario.turn()

    assert claim is not None and scenario.rows(PARKED) == [(4,)]
    assert scenario.rows("select passes_slots_on from pool where name = 'narrow'") == [(True,)]
    claim = scenario.claim(other)
    assert claim is not None and scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
    scenario.turn()
    assert scenario.rows("select task_id from task_instance where state = 'queued'") == [("a",)]


def test_an_unpaused_dag_gets_back_all_that_waited(scenario: Scenario) -> None:
    run = waiting_while_paused(scenario)

    unpause(scenario)

    assert scenario.rows(PARKED) == [(0,)]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_nothing_is_parked_by_a_pass_that_overlaps_the_end_of_the_pause(scenario: Scenario) -> None:
    scenario.pool("narrow", 1)
    run = scenario.start(wide("p", 3, task={"pool": "narrow"}), run_id="p")
    pause(scenario)
    with scenario.engine.begin() as connection:
        capacity.park(connection, ["p"])
        thread = threading.Thread(target=unpause, args=(scenario,))
        thread.start()
        while not scenario.rows("select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"):
            assert thread.is_alive(), "unpausing waits for the pass"
    thread.join(30)

    assert scenario.rows(PARKED) == [(0,)]
    transact(scenario.engine, capacity.park, ["p"])
    assert scenario.rows(PARKED) == [(0,)], "the DAG is not paused any more"
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_what_is_cleared_while_its_dag_is_paused_runs_afterwards(scenario: Scenario) -> None:
    waiting_while_paused(scenario)
    run = scenario.rows("select id from dag_run")[0][0]
    scenario.work()

    scenario.sql("update task_instance set state = 'skipped', ended_at = now() where state = 'scheduled'")
    clear_(scenario, dag_id="p", run_id="p")
    unpause(scenario)

    assert scenario.rows("select count(*) from task_instance where rank < 0") == [(0,)]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"
