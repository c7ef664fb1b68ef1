"""A claim whose answer is lost, as after an end of the connection, is repeated by its process and costs no try."""

import threading
from typing import Any

import psycopg2
import pytest
from support.scenario import Scenario, chain, pool_process

from scheduler.store.worker.claims import Claim
from workers.supervision.running_tasks import RunningTasks


def lose_first(scenario: Scenario, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool, meanwhile: Any = lambda: None) -> None:
    """The first claim ends without an answer, before or after it is stored; then `meanwhile` happens."""
    claim, lost = type(scenario.hot).claim, threading.Event()

    def cut(self: Any, *place: Any) -> Claim | None:
        if lost.is_set():
            return claim(self, *place)
        lost.set()
        if is_stored:
            assert claim(self, *place) is not None
        meanwhile()
        raise psycopg2.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(type(scenario.hot), "claim", cut)


def one_message(scenario: Scenario) -> tuple[int, str]:
    scenario.add(chain("c", 1))
    scenario.trigger("c", run_id="r")
    scenario.turn()
    (message,) = scenario.messages()
    return message


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_repeated_claim_of_the_same_process_counts(scenario: Scenario, monkeypatch: pytest.MonkeyPatch, is_stored: bool) -> None:
    message = one_message(scenario)
    lose_first(scenario, monkeypatch, is_stored=is_stored)
    assert pool_process(scenario).run(*message) is not None
    assert scenario.rows("select state, try_number from task_instance") == [("success", 1)]


def test_what_another_process_of_the_worker_claimed_meanwhile_is_not_run_twice(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = one_message(scenario)
    tasks = RunningTasks(2)
    tasks.worker_id = scenario.worker_id
    other = tasks.slot(1)

    def delivered_again() -> None:
        other.take(message[1])
        claim = scenario.hot.claim(*message)
        assert claim is not None
        other.take(message[1], claim.id)

    lose_first(scenario, monkeypatch, is_stored=False, meanwhile=delivered_again)
    assert pool_process(scenario, running=tasks).run(*message) is None
    assert scenario.states() == {"t000": "running"}


def test_a_duplicate_that_another_process_puts_down_does_not_take_the_claim_away(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = one_message(scenario)
    tasks = RunningTasks(2)
    tasks.worker_id = scenario.worker_id
    other = tasks.slot(1)
    down = threading.Timer(0.2, other.put_down)

    def delivered_again() -> None:
        other.take(message[1])
        down.start()

    lose_first(scenario, monkeypatch, is_stored=True, meanwhile=delivered_again)
    assert pool_process(scenario, running=tasks).run(*message) is not None
    down.join()
    assert scenario.states() == {"t000": "success"}


def test_a_claim_that_is_not_repeated_finds_nothing_to_claim_twice(scenario: Scenario) -> None:
    message = one_message(scenario)
    assert scenario.hot.claim(*message) is not None
    assert scenario.hot.claim(*message) is None
