"""Wakeups with a real Redis, and the schedulers that read them."""

import threading
from datetime import UTC, datetime
from itertools import takewhile

import pytest
from support import hostile
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.messaging.publisher import dispatch_ids_in_broker
from scheduler.messaging.wakeups import KEY, LISTENER_KEY, MAX_TOKENS_A_WAKE, QUEUE_KEY, SHARES_S, WORKS_S, Listener, Wakeups
from scheduler.services import queue_report
from scheduler.services.queue import Queue
from scheduler.services.rescue import LOCK_KEY, Rescue
from workers.flower.queues import read_report


def test_a_wakeup_of_the_queue_service_stays_for_a_scheduler_that_listens_to_it(scenario: Scenario) -> None:
    wakeups = Wakeups(scenario.settings)
    wakeups.wait(0.001)
    wakeups.wake("queue", "run:7", "queue")

    assert wakeups.wait(1, queue=False) == {"run:7"}
    assert wakeups.wait(0.01, queue=False) == set()
    assert wakeups.wait(1) == {"queue"}
    assert wakeups.wait(0.01) == set()


def test_of_two_schedulers_one_reads_the_wakeups_while_it_can(scenario: Scenario) -> None:
    first, second = Wakeups(scenario.settings), Wakeups(scenario.settings)
    tokens: set[str] = set()
    listening = threading.Thread(target=lambda: tokens.update(first.wait(4) or ()))
    listening.start()
    eventually(lambda: scenario.broker.pttl(LISTENER_KEY) > 1000)

    assert second.wait(0.001) == second.wait(4) == set()
    second.wake("run:7")
    listening.join(20)

    assert tokens == {"run:7"}
    # It works on this for too long, or has died: the other one listens.
    second.wake("run:8", "queue")
    later: set[str] = set()
    eventually(lambda: later.update(second.wait(1) or ()) or later == {"run:8", "queue"})


@pytest.mark.parametrize(("tokens", "limit_s"), [(1, WORKS_S), (MAX_TOKENS_A_WAKE, SHARES_S)])
def test_a_listener_at_work_is_joined_sooner_if_more_wakeups_than_it_reads_at_once_may_wait(
    scenario: Scenario, tokens: int, limit_s: float
) -> None:
    wakeups = Wakeups(scenario.settings)
    wakeups.wake(*(f"run:{number}" for number in range(1, tokens + 1)))

    # The command, not the key: on a busy machine the key has expired before the test reads it.
    with scenario.broker.monitor() as monitor:
        assert len(wakeups.wait(0.001) or ()) == tokens
        scenario.broker.echo("the wait has ended")
        sent = takewhile(lambda command: not command.startswith("ECHO"), (line["command"] for line in monitor.listen()))
        limits_ms = [command.split()[-1] for command in sent if command.startswith(f"SET {LISTENER_KEY} ") and " PX " in command]
    assert limits_ms[-1] == str(int(limit_s * 1000))


def test_after_a_scheduler_stops_another_scheduler_listens(scenario: Scenario) -> None:
    first, second = Wakeups(scenario.settings), Wakeups(scenario.settings)
    next(iter(first._listeners.values())).listen(4)
    second.wake("run:7")
    assert second.wait(0.001) == set()

    first.close()

    assert second.wait(0.001) == {"run:7"}


def test_two_schedulers_that_both_listen_because_redis_lost_the_lock_do_not_for_long(scenario: Scenario) -> None:
    both = [Listener(scenario.broker) for _ in range(2)]
    for one in both:
        assert one.listen(4) == 0
        scenario.broker.delete(LISTENER_KEY)

    for one in both * 2:
        one.listen(4)

    assert sorted(one.is_other for one in both) == [False, True]
    assert [one.listen(4) == 0 for one in both] == [not one.is_other for one in both]


def test_a_listener_whose_lock_key_was_replaced_listens_again(scenario: Scenario) -> None:
    wakeups = Wakeups(scenario.settings)
    next(iter(wakeups._listeners.values())).listen(4)
    scenario.broker.delete(LISTENER_KEY)
    scenario.broker.zadd(LISTENER_KEY, {"x": 0})
    wakeups.wake("run:7")

    tokens: set[str] = set()
    eventually(lambda: tokens.update(wakeups.wait(0.001) or ()) or tokens == {"run:7"})


@pytest.mark.parametrize("kind", ["string", "zset", "late"])
def test_a_lock_that_no_scheduler_holds_keeps_none_from_listening(scenario: Scenario, kind: str) -> None:
    wakeups = Wakeups(scenario.settings)
    if kind == "zset":
        scenario.broker.zadd(LISTENER_KEY, {"x": 0})
    else:
        scenario.broker.set(LISTENER_KEY, "x", ex=86_400 if kind == "late" else None)
    wakeups.wake("run:7")

    assert wakeups.wait(0.001) == set()
    assert wakeups.wait(0.001) == {"run:7"}


def test_one_wait_reads_both_kinds(scenario: Scenario) -> None:
    wakeups = Wakeups(scenario.settings)
    wakeups.wait(0.001)
    wakeups.wake("plan", "queue")

    assert wakeups.wait(1) == {"plan", "queue"}


def test_a_scheduler_that_filled_the_queues_does_not_listen_until_its_pause_is_over(scenario: Scenario) -> None:
    (scheduler,) = scenario.schedulers
    queue, timer = scheduler.service(Queue), scheduler.timers["queue"]

    before = queue.wakeups_paused_until
    scenario.turn()
    after = queue.wakeups_paused_until

    assert after > before
    timer.due_at = after + 100
    scheduler.wake({"run:7"})
    assert timer.due_at == after + 100
    scheduler.wake({"queue"})
    assert timer.is_due()


def test_a_wait_as_short_as_can_be_ends(scenario: Scenario) -> None:
    # For Redis 6 a millisecond or less is no limit: only the socket's own would end it, as if the broker were away (None).
    wakeups = Wakeups(scenario.settings)

    assert [wakeups.wait(seconds) for seconds in (0.0001, 0.001, 0.0, -1.0)] == [set()] * 4


def test_tokens_that_no_process_of_paceline_sends_are_dropped_and_counted(scenario: Scenario) -> None:
    wakeups = Wakeups(scenario.settings)
    strange = [b"run:\xc2\xb2", b"run:" + b"9" * 5000, b"\xff\xfe", b"run:", b"run:0", b"run:-1", b"run:07",
               b"run:9223372036854775808",
               b"next:1.5", b"run:\xd9\xa1", b"", b"\0", b"queue ", b"QUEUE", b"plan\n", b"x" * 100_000]  # fmt: skip
    scenario.broker.zadd(KEY, dict.fromkeys(strange, 0) | {"run:9223372036854775807": 0, "next:12": 0})

    tokens = wakeups.wait(1)

    assert tokens == {"run:9223372036854775807", "next:12"}
    assert wakeups._warned_at is not None
    scenario.schedulers[0].wake(tokens)
    scenario.turn()


@pytest.mark.parametrize("key", [KEY, QUEUE_KEY])
def test_a_key_of_another_type_is_moved_out_of_the_way(scenario: Scenario, key: str) -> None:
    wakeups = Wakeups(scenario.settings)
    scenario.broker.set(key, "x")
    assert wakeups.wait(1) is None

    assert wakeups.wake("queue", "run:7")
    tokens: set[str] = set()
    eventually(lambda: tokens.update(wakeups.wait(1) or ()) or tokens == {"queue", "run:7"})


def test_a_queue_whose_key_is_no_list_still_gets_its_messages(scenario: Scenario) -> None:
    scenario.add(chain("c", 1))
    scenario.broker.set("default:6", "x")
    scenario.trigger("c", run_id="r")

    scenario.run_to_end()

    assert set(scenario.states().values()) == {"success"}
    assert scenario.broker.get("paceline:aside:default:6") == b"x"
    assert 6 * 86_400 < scenario.broker.ttl("paceline:aside:default:6") <= 7 * 86_400


def test_lost_messages_are_found_although_a_foreign_key_holds_the_turn_forever(scenario: Scenario) -> None:
    scenario.broker.set(LOCK_KEY, "x")
    rescue = scenario.schedulers[0].service(Rescue)

    rescue.rescue(datetime.now(UTC))
    assert scenario.broker.get(LOCK_KEY) is None

    scenario.broker.set(LOCK_KEY, "x", ex=86_400)
    rescue.rescue(datetime.now(UTC))
    assert scenario.broker.get(LOCK_KEY) is None


def test_a_key_of_the_wrong_type_does_not_prevent_reading_the_other_lists(scenario: Scenario) -> None:
    scenario.broker.hset("other", "a", "b")
    scenario.broker.lpush("default:6", hostile.raw(hostile.message()))

    assert dispatch_ids_in_broker(scenario.broker, ["other", "default"]) == {hostile.DISPATCH}


def test_the_report_of_queues_is_written_although_a_foreign_key_holds_its_turn_forever_and_garbage_is_no_report(
    scenario: Scenario,
) -> None:
    report = queue_report.QueueReport(scenario.engine, scenario.settings, scenario.brokers)
    for garbage in (b"", b"{", b"[" * 100_000, b"\xff", b"[]", b'{"queues": 1}'):
        scenario.broker.set(queue_report.KEY, garbage)
        assert read_report(scenario.broker) is None
    scenario.broker.delete(queue_report.KEY)
    scenario.broker.lpush(queue_report.KEY, "x")
    assert read_report(scenario.broker) is None

    scenario.broker.set(queue_report.LOCK_KEY, "x")
    assert not report.write(datetime.now(UTC))
    assert report.write(datetime.now(UTC))
    assert read_report(scenario.broker) is not None
