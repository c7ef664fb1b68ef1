"""A claim whose answer is lost, as after an end of the connection, is repeated by its process and costs no try."""

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import psycopg2
import pytest
from support.scenario import Scenario, chain, pool_process

from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import HotPath
from workers.supervision.running_tasks import RunningTasks
from workers.task.database_store import DatabaseStore
from workers.task.outcome import Outcome


class LosesFirst(HotPath):
    """The first claim ends without an answer, before or after it is stored; then `meanwhile` happens."""

    def __init__(self, scenario: Scenario, *, is_stored: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(scenario.settings, scenario.worker_id)
        self._is_stored, self._meanwhile, self._attempts = is_stored, meanwhile, 0

    def claim(self, ti_id: int, dispatch_id: str, is_repeated: bool = False) -> Claim | None:
        self._attempts += 1
        if self._attempts > 1:
            return super().claim(ti_id, dispatch_id, is_repeated)
        if self._is_stored:
            assert super().claim(ti_id, dispatch_id) is not None
        self._meanwhile()
        raise psycopg2.OperationalError("server closed the connection unexpectedly")


def run(scenario: Scenario, message: tuple[int, str], hot: LosesFirst, running: RunningTasks | None = None) -> Outcome | None:
    """Run the message in a pool process that loses the answer to its first claim."""
    runner = pool_process(scenario, running=running)
    with closing(hot):
        return replace(runner, store=DatabaseStore(scenario.settings, hot, scenario.follower)).run(*message)


def one_message(scenario: Scenario) -> tuple[int, str]:
    scenario.start(chain("c", 1), run_id="r")
    (message,) = scenario.messages()
    return message


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_repeated_claim_of_the_same_process_counts(scenario: Scenario, is_stored: bool) -> None:
    message = one_message(scenario)
    assert run(scenario, message, LosesFirst(scenario, is_stored=is_stored)) is not None
    assert scenario.rows("select state, try_number from task_instance") == [("success", 1)]


def test_what_another_process_of_the_worker_claimed_meanwhile_is_not_run_twice(scenario: Scenario) -> None:
    message = one_message(scenario)
    tasks = RunningTasks(2)
    tasks.worker_id = scenario.worker_id
    other = tasks.slot(1)

    def delivered_again() -> None:
        other.take(message[1])
        claim = scenario.hot.claim(*message)
        assert claim is not None
        other.take(message[1], claim.id)

    hot = LosesFirst(scenario, is_stored=False, meanwhile=delivered_again)
    assert run(scenario, message, hot, tasks) is None
    assert scenario.states() == {"t000": "running"}


def test_a_duplicate_that_another_process_puts_down_does_not_take_the_claim_away(scenario: Scenario) -> None:
    message = one_message(scenario)
    tasks = RunningTasks(2)
    tasks.worker_id = scenario.worker_id
    other = tasks.slot(1)
    down = threading.Timer(0.2, other.put_down)

    def delivered_again() -> None:
        other.take(message[1])
        down.start()

    hot = LosesFirst(scenario, is_stored=True, meanwhile=delivered_again)
    assert run(scenario, message, hot, tasks) is not None
    down.join()
    assert scenario.states() == {"t000": "success"}


def test_a_claim_that_is_not_repeated_finds_nothing_to_claim_twice(scenario: Scenario) -> None:
    message = one_message(scenario)
    assert scenario.hot.claim(*message) is not None
    assert scenario.hot.claim(*message) is None
