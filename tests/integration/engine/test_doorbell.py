"""The doorbell with a real Redis: which rings a scheduler hears."""

from support.scenario import Scenario

from scheduler.doorbell import Doorbell


def test_a_ring_of_the_queue_service_stays_for_whoever_listens_to_it(scenario: Scenario) -> None:
    bell = Doorbell(scenario.settings)
    bell.wait(0.001)
    bell.ring("queue", "run:7", "queue")

    assert bell.wait(1, queue=False) == {"run:7"}
    assert bell.wait(0.01, queue=False) == set()
    assert bell.wait(1) == {"queue"}
    assert bell.wait(0.01) == set()


def test_one_wake_brings_both_kinds(scenario: Scenario) -> None:
    bell = Doorbell(scenario.settings)
    bell.wait(0.001)
    bell.ring("plan", "queue")

    assert bell.wait(1) == {"plan", "queue"}


def test_a_scheduler_that_filled_the_queues_does_not_listen_until_its_pause_is_over(scenario: Scenario) -> None:
    turns = scenario.schedulers[0].turns

    before = turns.queue_listens_at
    scenario.turn()
    after = turns.queue_listens_at

    assert after > before
    turns.duties.queue.due_at = after + 100
    turns.wake({"run:7"})
    assert turns.duties.queue.due_at == after + 100
    turns.wake({"queue"})
    assert turns.duties.queue.is_due()


def test_a_wait_as_short_as_can_be_ends(scenario: Scenario) -> None:
    # For Redis 6 a millisecond or less is no limit: only the socket's own would end it, as if the broker were away (None).
    bell = Doorbell(scenario.settings)

    assert [bell.wait(seconds) for seconds in (0.0001, 0.001, 0.0, -1.0)] == [set()] * 4
