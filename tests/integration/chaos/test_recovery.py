"""Chaos measures the recovery from a scheduler's death by the messages that it had not published, and by nothing else."""

import contextlib
import threading
import time

import pytest
from chaos import recovery
from chaos.recovery import Meter
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.messaging.brokers import client
from scheduler.services.rescue import Rescue


@pytest.fixture
def dead(scenario: Scenario) -> str:
    """The id of a scheduler that died after its messages were sent and before it had noted that."""
    scenario.start(chain("c", 1), run_id="r")
    scenario.sql("update task_instance set dispatched_at = null, queued_at = queued_at - interval '1 hour'")
    scenario.sql("update crash_free set since = since - interval '1 hour'")
    return scenario.rows("select queued_by from task_instance")[0][0]


@pytest.fixture
def meter(scenario: Scenario) -> Meter:
    return Meter(scenario.settings.database_url)


def test_a_message_that_was_sent_but_not_noted_is_not_owed(scenario: Scenario, meter: Meter, dead: str) -> None:
    assert meter.all_sent(dead, time.time() - 60, lambda: contextlib.closing(client(scenario.settings.broker_url))) == 0


def test_a_message_that_was_not_sent_is_waited_for(
    scenario: Scenario, meter: Meter, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "POLL_S", 0.01)
    assert len(scenario.messages()) == 1
    looks: list[int] = []
    found: list[float] = []

    def broker() -> contextlib.closing[object]:
        looks.append(1)
        return contextlib.closing(client(scenario.settings.broker_url))

    waiting = threading.Thread(target=lambda: found.append(meter.all_sent(dead, time.time() - 60, broker)))
    waiting.start()
    eventually(lambda: len(looks) >= 3)
    assert found == []

    scenario.schedulers[0].service(Rescue).rescue(scenario.rows("select clock_timestamp()")[0][0])

    waiting.join(20)
    assert [seconds >= 60 for seconds in found] == [True]
