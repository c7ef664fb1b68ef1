"""Passing slots on: a worker gives the slots of an ended task to the first in line of its pool, if no count is needed."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.serialized.dag import SerializedDag
from scheduler.services.queue import Queue
from scheduler.store.worker.claims import Claim, Ending
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import Follower

S = TaskState
SUCCESS = Ending(S.SUCCESS)
SLOTS = 2


def wide(dag_id: str = "w", width: int = 6, **options: Any) -> SerializedDag:
    """Tasks that wait for nothing but the slots of the pool `p`."""
    task = {"pool": "p"} | options.pop("task", {})
    return dag(dag_id, {f"t{number:04}": [] for number in range(width)}, task=task, **options)


def start(scenario: Scenario, plan: SerializedDag, slots: int = SLOTS) -> list[Claim]:
    """Trigger it and claim the tasks that the queue service chooses."""
    scenario.pool("p", slots)
    scenario.add(plan)
    scenario.trigger(plan.dag_id)
    scenario.turn()
    return claims(scenario)


def claims(scenario: Scenario) -> list[Claim]:
    """Claim the task instances with a message."""
    return [claim for claim in map(scenario.claim, scenario.messages()) if claim is not None]


def waits(scenario: Scenario, task_id: str, dag_id: str = "w") -> bool:
    rows = scenario.rows(
        "select t.state from task_instance t join dag_run r on r.id = t.dag_run_id where r.dag_id = %s and t.task_id = %s",
        dag_id,
        task_id,
    )
    return rows == [("scheduled",)]


def test_a_wide_run_is_queued_by_its_worker_once_it_is_under_way(scenario: Scenario) -> None:
    scenario.pool("p", SLOTS)
    scenario.add(wide(width=50))
    run = scenario.trigger("w")
    scenario.turn()

    while scenario.work():
        pass

    assert set(scenario.states(run).values()) == {"success"}
    queued_by = [row[0] for row in scenario.rows("select queued_by from task_instance order by id")]
    assert queued_by == [scenario.schedulers[0].scheduler_id] * SLOTS + [scenario.worker_id] * (50 - SLOTS)
    assert scenario.rows("select distinct try_number from task_instance") == [(1,)]


def test_a_pool_made_smaller_gives_its_slots_back(scenario: Scenario) -> None:
    held = start(scenario, wide(width=20), slots=4)
    scenario.sql("update pool set slots = 2 where name = 'p'")
    scenario.turn()  # finds more slots taken than there are

    for claim in held[:2]:
        scenario.follower.report(claim, SUCCESS)
        scenario.turn()
    assert claims(scenario) == []
    scenario.follower.report(held[2], SUCCESS)
    scenario.turn()  # within its slots again, one of which is free
    (queued,) = claims(scenario)
    scenario.follower.report(queued, SUCCESS)

    assert scenario.rows("select queued_by from task_instance where state = 'queued'") == [(scenario.worker_id,)]


def test_a_task_of_another_pool_that_waits_for_a_place_in_the_queue_gets_it(make_scenario: Callable[..., Scenario]) -> None:
    """One slot out, one in would keep the queue full for as long as the wide run lasts."""
    scenario = make_scenario(scheduler={"prefetch_window": 1})
    scenario.sql("update process set concurrency = 3 where kind = 'worker'")
    held = start(scenario, wide(width=40), slots=8)
    assert len(held) == 4
    scenario.pool("q", 8)
    run = scenario.start(dag("other", {"a": []}, task={"pool": "q", "priority_weight": 100}))
    assert scenario.states(run) == {"a": "scheduled"}

    scenario.follower.report(held[0], SUCCESS)
    scenario.turn()

    assert scenario.states(run) == {"a": "queued"}
    scenario.turn()
    # While no other task waits for a place, slots are passed on again.
    scenario.follower.report(held[1], SUCCESS)
    assert scenario.rows("select count(*) from task_instance where queued_by = %s", scenario.worker_id) == [(1,)]


def test_children_that_end_together_pass_slots_to_different_tasks_and_keep_the_limits(scenario: Scenario) -> None:
    children, width = 4, 200
    held = start(scenario, wide(width=width, max_active_tasks=children), slots=children)
    hots = [HotPath(scenario.settings, scenario.worker_id) for _ in range(children)]
    followers = [Follower(hot, Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True) for hot in hots]
    stop, most, ended = threading.Event(), [0], []

    def watch() -> None:
        while not stop.is_set():
            count = "select count(*) from task_instance where state in ('queued', 'running')"
            most.append(scenario.rows(count)[0][0])

    def child(number: int) -> None:
        hot = hots[number]
        mine: Claim | None = held[number]
        while mine is not None:
            assert followers[number].report(mine, SUCCESS).is_stored
            ended.append(mine.id)
            found = hot.read("select id, dispatch_id::text from task_instance where state = 'queued' order by id limit 8", ())
            mine = next((claim for claim in (hot.claim(*one) for one in found) if claim is not None), None)

    watcher = threading.Thread(target=watch)
    threads = [threading.Thread(target=child, args=(number,)) for number in range(children)]
    for thread in [watcher, *threads]:
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    watcher.join(10)

    assert max(most) <= children
    assert len(ended) == len(set(ended))
    # A child that found nothing to claim has stopped; the slots that its last report passed on are still there, and none is lost.
    scenario.run_to_end()
    assert scenario.rows("select distinct state, try_number from task_instance") == [("success", 1)]
    by_worker = scenario.rows("select count(*) from task_instance where queued_by = %s", scenario.worker_id)[0][0]
    assert by_worker > width / 2
    for hot in hots:
        hot.close()
    assert scenario.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]


@pytest.mark.parametrize(("place", "taken"), [(0, "t0002"), (1, "t0009"), (2, "t0008"), (7, "t0003"), (8, "t0002")])
def test_the_processes_of_a_worker_prefer_different_tasks_of_equal_rank(scenario: Scenario, place: int, taken: str) -> None:
    claim = start(scenario, wide(width=20))[0]
    hot = HotPath(scenario.settings, scenario.worker_id, place)

    Follower(hot, Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True).report(claim, SUCCESS)

    hot.close()
    assert [task for task, state in scenario.states().items() if state == "queued"] == [taken]


def test_a_locked_task_instance_is_skipped_without_waiting(scenario: Scenario) -> None:
    claim = start(scenario, wide())[0]
    with scenario.engine.begin() as somebody:
        somebody.exec_driver_sql("select from task_instance where task_id = 't0002' for no key update")

        scenario.follower.report(claim, SUCCESS)

        assert scenario.states()["t0003"] == "queued"
    assert waits(scenario, "t0002")


def pass_that_loses(scenario: Scenario, lose: Callable[[Connection, int], None]) -> Any:
    """The result of a pass of the queue service while a worker did this to the first task instance that the pass had chosen."""
    service = scenario.schedulers[0].service(Queue)
    passes: list[Any] = []
    thread = threading.Thread(target=lambda: passes.append(service.queue()))
    with scenario.engine.begin() as worker:
        first = worker.exec_driver_sql(
            "select id from task_instance where state = 'scheduled' order by id limit 1 for no key update"
        )
        chosen = first.scalar_one()
        thread.start()
        while not scenario.rows("select 1 from pg_locks where not granted"):
            assert thread.is_alive()
        lose(worker, chosen)
    thread.join(20)
    assert not thread.is_alive()
    return passes[0]


def take(worker: Connection, ti_id: int) -> None:
    worker.exec_driver_sql(
        "update task_instance set state = 'queued', queued_at = now(), queued_by = 'w', dispatch_id = gen_random_uuid()"
        " where id = %s",
        (ti_id,),
    )


def test_a_pass_that_lost_a_task_to_a_worker_chooses_again(scenario: Scenario) -> None:
    """That worker may have made other tasks ready without a wakeup, because the task it took was ahead of them."""
    scenario.pool("p", 8)
    scenario.add(wide(width=2))
    scenario.trigger("w")
    scenario.sql("update dag_run set state = 'running', started_at = now()")
    scenario.sql("update task_instance set state = 'scheduled', scheduled_at = now()")

    found = pass_that_loses(scenario, take)

    assert len(found.messages) == 1
    assert found.lost


def test_a_pass_that_lost_its_only_choice_does_not_choose_a_task_that_a_worker_takes_meanwhile(scenario: Scenario) -> None:
    start(scenario, wide(width=6), slots=2)
    ended, _, _, held, free, _ = [row[0] for row in scenario.rows("select id from task_instance order by id")]
    scenario.sql("update pool set slots = 3 where name = 'p'")
    with scenario.engine.begin() as other_worker:
        other_worker.exec_driver_sql("select from task_instance where id = %s for no key update", (held,))

        def pass_on(worker: Connection, ti_id: int) -> None:
            worker.exec_driver_sql("update task_instance set state = 'success', ended_at = now() where id = %s", (ended,))
            take(worker, ti_id)

        found = pass_that_loses(scenario, pass_on)

    assert [message.ti_id for message in found.messages] == [free]
