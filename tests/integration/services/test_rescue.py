"""Rescue: lost messages, lost workers, an emptied broker."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from support.scenario import Scenario, chain, dag

from paceline.states import TaskState
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher, broker_lists
from scheduler.services import rescue
from scheduler.services.promote import Promote
from scheduler.services.rescue import Rescue
from scheduler.store.worker.claims import Ending

QUICK = {"task_queued_timeout": 0.001}
#: PostgreSQL of the test session has just started: do not wait for workers to assert their claims.
SETTLED = {"heartbeat_timeout": 0.5}


def fresh(make_scenario: Callable[..., Scenario]) -> Scenario:
    return make_scenario(scheduler=QUICK, worker=SETTLED)


def beat(scenario: Scenario) -> None:
    scenario.sql("update process set heartbeat_at = clock_timestamp()")


def settle(scenario: Scenario) -> None:
    """PostgreSQL has not crashed for long."""
    scenario.sql("update crash_free set since = since - interval '1 hour'")


def test_a_deleted_redis_list_loses_no_work_and_no_try(make_scenario: Callable[..., Scenario]) -> None:
    scenario = fresh(make_scenario)
    scenario.add(chain("c", 1))
    for number in range(50):
        scenario.trigger("c", run_id=f"r{number}")
    for _ in range(5):
        beat(scenario)
        scenario.turn()
    before = scenario.rows("select id, dispatch_id, try_number from task_instance where state = 'queued' order by id")
    scenario.broker.flushdb()

    settle(scenario)
    beat(scenario)
    scenario.turn()

    assert len(before) >= 16
    assert sorted(m[0] for m in scenario.messages()) == [row[0] for row in before]
    assert before == scenario.rows("select id, dispatch_id, try_number from task_instance where state = 'queued' order by id")


def test_a_message_that_is_in_the_broker_is_not_sent_again(make_scenario: Callable[..., Scenario]) -> None:
    scenario = fresh(make_scenario)
    scenario.triggered(chain("c", 1))
    for _ in range(4):
        beat(scenario)
        scenario.turn()

    assert len(scenario.messages()) == 1


def test_two_schedulers_that_find_the_same_messages_lost_send_each_once(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2, scheduler=QUICK, worker=SETTLED)
    scenario.add(chain("c", 1))
    for number in range(10):
        scenario.trigger("c", run_id=f"r{number}")
    scenario.turn()
    queued = sorted(ti_id for ti_id, _ in scenario.messages())
    second = scenario.schedulers[1].service(Rescue)
    found: list[list[Message]] = []

    class LatePublisher(Publisher):
        def publish(self, messages: Sequence[Message]) -> None:
            found.append(second._send_lost())
            super().publish(messages)

    first = Rescue(scenario.engine, scenario.settings, LatePublisher(scenario.settings), scenario.brokers)
    settle(scenario)
    first._send_lost()

    assert found == [[]]
    assert sorted(ti_id for ti_id, _ in scenario.messages()) == queued
    assert len(second._send_lost()) == len(queued) == 10, "the turn was given back"


def test_a_lost_message_is_found_behind_any_number_of_older_waiting_messages(
    make_scenario: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "BATCH", 5)
    scenario = fresh(make_scenario)
    scenario.start(dag("wide", {f"t{number:02}": [] for number in range(23)}))
    settle(scenario)
    (waiting,) = [key for key in broker_lists("default") if scenario.broker.llen(key)]
    ids = sorted(json.loads(body)["headers"]["id"] for body in scenario.broker.lpop(waiting, 2))

    sent = scenario.schedulers[0].service(Rescue).rescue(datetime.now(UTC)).sent_again

    assert sorted(one.dispatch_id for one in sent) == ids
    assert len(scenario.messages()) == 23


def test_queued_without_a_message_is_published(make_scenario: Callable[..., Scenario]) -> None:
    """Killed between commit and publish."""
    scenario = fresh(make_scenario)
    scenario.start(chain("c", 1))
    scenario.messages()
    scenario.sql("update task_instance set dispatched_at = null")

    beat(scenario)
    scenario.turn()

    assert scenario.work() == 1
    assert scenario.rows("select state, try_number from task_instance") == [("success", 1)]


def test_tasks_of_a_lost_worker_are_retried_immediately_or_fail(make_scenario: Callable[..., Scenario]) -> None:
    scenario = fresh(make_scenario)
    scenario.add(chain("again", 1, task={"retries": 1, "retry_delay_s": 300.0}))
    scenario.add(chain("never", 1))
    scenario.trigger("again")
    never = scenario.trigger("never")
    scenario.turn()
    claims = [scenario.claim(message) for message in scenario.messages()]
    scenario.sql("update process set heartbeat_at = clock_timestamp() - interval '1 hour' where kind = 'worker'")

    scenario.turn()
    scenario.turn()

    assert scenario.rows("select max_tries, state from task_instance order by max_tries") == [(0, "failed"), (1, "queued")]
    assert "sent no heartbeat" in scenario.rows("select reason from task_instance where max_tries = 0")[0][0]
    assert scenario.run_state(never) == "failed"
    assert all(claim and not scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored for claim in claims)
    assert scenario.rows("select try_number, state from task_try") == [(1, "failed")]


def test_a_lost_scheduler_leaves_nothing_behind(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2)
    run = scenario.triggered(chain("c", 3))
    scenario.schedulers[0].run_once()

    survivor = scenario.schedulers[1]
    scenario.schedulers[:] = [survivor]
    scenario.run_to_end()

    assert scenario.run_state(run) == "success"


def test_a_process_that_was_declared_lost_registers_again(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    first = scenario.schedulers[0].scheduler_id
    scenario.sql("update process set stopped_at = now() where id = %s", first)

    scenario.turn()

    assert scenario.schedulers[0].scheduler_id != first


def test_a_run_that_another_scheduler_holds_is_examined_again_and_an_ended_run_is_not(scenario: Scenario) -> None:
    scenario.add(chain("c", 1))
    held, ended = scenario.trigger("c", run_id="held"), scenario.trigger("c", run_id="ended")
    scenario.turn()
    scenario.sql("update dag_run set state = 'success', ended_at = now() where id = %s", ended)
    scheduler = scenario.schedulers[0]
    with scenario.engine.begin() as elsewhere:
        elsewhere.exec_driver_sql("select 1 from dag_run where id = %s for update", (held,))
        scheduler.wake([f"run:{held}", f"run:{ended}"])
        scheduler.run_once()

        assert set(scheduler.service(Promote).hints) == {held}

    scenario.turn()
    assert scheduler.service(Promote).hints == {}
