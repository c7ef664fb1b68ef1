"""Two brokers: which one carries what, and what moves when one of them is down."""

import contextlib
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.servers import RedisServer
from support.several_brokers import kill, queues_of, running_two, with_brokers
from support.waiting import eventually

from paceline.exceptions import CredentialsError, UnreachableError
from scheduler.api import servers
from scheduler.messaging import connection_tests
from scheduler.messaging.brokers import Brokers, check, name_of
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import (
    PUBLISH_ERRORS,
    Publisher,
    celery_app,
    dispatch_ids_in_broker,
    dispatch_ids_in_brokers,
    lengths,
)
from scheduler.messaging.wakeups import Wakeups
from scheduler.settings import Settings
from scheduler.settings.model import effective
from scheduler.settings.sections import Broker
from workers.flower import queues as flower

NAMES = [f"queue-{number}" for number in range(200)]


@pytest.fixture
def two(short_folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    with running_two(short_folder) as servers:
        yield servers


@pytest.fixture
def settings(two: tuple[RedisServer, RedisServer]) -> Settings:
    return with_brokers(Settings(), *two)


def of(*urls: str) -> Brokers:
    return Brokers(Settings(broker=Broker(url=",".join(urls))))


def message(queue: str) -> Message:
    return Message(ti_id=1, dispatch_id=str(uuid.uuid4()), queue=queue, dag_id="d", run_id="r", task_id="t")


def test_queues_spread_evenly_and_only_those_of_a_missing_broker_move() -> None:
    three = of("redis://one", "redis://two", "redis://three")
    before = {name: three.order(name)[0].name for name in NAMES}
    three.all[1].failed(OSError("gone"))
    after = {name: three.order(name)[0].name for name in NAMES}

    assert all(40 < count < 100 for count in Counter(before.values()).values()), Counter(before.values())
    assert all(after[name] == place for name, place in before.items() if place != "two")
    assert {after[name] for name, place in before.items() if place == "two"} == {"one", "three"}


def test_processes_with_other_credentials_agree_on_the_place_of_a_queue() -> None:
    first, second = of("redis://u:1@a:6379/0", "redis://u:1@b:6379/0"), of("redis://v:2@b:6379", "redis://v:2@a:6379")

    assert [first.order(name)[0].name for name in NAMES] == [second.order(name)[0].name for name in NAMES]
    assert name_of("redis+socket://u:secret@/run/r.sock?virtual_host=3&password=x") == "/run/r.sock/3"


def test_a_message_goes_to_the_broker_of_its_queue_and_to_the_other_one_while_that_is_down(
    settings: Settings, two: tuple[RedisServer, RedisServer]
) -> None:
    own = queues_of(settings)
    publisher, brokers = Publisher(settings), Brokers(settings)
    sent = [message(queue) for queue in own]
    publisher.publish(sent)
    assert [dispatch_ids_in_broker(broker.client, own) for broker in brokers.all] == [{each.dispatch_id} for each in sent]
    assert lengths(brokers, own) == dict.fromkeys(own, 1)

    kill(two[0])
    moved = [message(queue) for queue in own]
    began = time.monotonic()
    publisher.publish(moved)
    assert time.monotonic() - began < 10

    assert dispatch_ids_in_brokers(brokers, own) == {sent[1].dispatch_id, *(each.dispatch_id for each in moved)}
    assert lengths(brokers, own) == {own[0]: 1, own[1]: 2}
    assert str(brokers.problems()[0]).startswith(f"The broker {brokers.all[0].name} does not answer")
    kill(two[1])
    with pytest.raises(PUBLISH_ERRORS):
        publisher.publish(moved)

    two[0].embedded.start()
    publisher.publish(moved)  # at once, although it failed a moment ago: no other broker answers
    assert dispatch_ids_in_broker(Brokers(settings).all[0].client, own) == {each.dispatch_id for each in moved}
    assert eventually(lambda: lengths(brokers, own) == dict.fromkeys(own, 1))


def test_a_broker_that_hangs_delays_a_process_by_seconds_once(settings: Settings, two: tuple[RedisServer, RedisServer]) -> None:
    own = queues_of(settings)
    publisher = Publisher(settings)
    pid = two[0].embedded.supervisor.pid("redis")
    os.kill(pid, signal.SIGSTOP)
    try:
        took = []
        for _ in range(5):
            began = time.monotonic()
            publisher.publish([message(own[0])])
            took.append(time.monotonic() - began)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert 1.5 < took[0] < 8, took
    assert sum(took[1:]) < took[0], took


def test_wakeups_arrive_while_the_first_broker_is_down(settings: Settings, two: tuple[RedisServer, RedisServer]) -> None:
    sender, listener = Wakeups(settings), Wakeups(settings)
    assert sender.wake("run:1", "queue")
    assert listener.wait(0.001) == {"run:1", "queue"}

    kill(two[0])

    assert sender.wake("run:2")
    assert eventually(lambda: listener.wait(0.001)) == {"run:2"}
    kill(two[1])
    assert not sender.wake("run:3")
    assert listener.wait(0.001) is None


def test_a_test_of_a_connection_is_found_in_either_broker(settings: Settings, two: tuple[RedisServer, RedisServer]) -> None:
    web, worker = Brokers(settings), Brokers(settings)
    web.all[0].failed(OSError("not seen by others"))
    asked = connection_tests.ask(web, "warehouse", "default")

    assert connection_tests.take(worker, ["default"]) == asked
    connection_tests.answer(worker, asked, connection_tests.Answer(ok=True, message="It works.", worker="w"))
    found = connection_tests.find(worker, asked.token)
    assert found is not None and found[0].answer is not None


def test_web_processes_and_the_page_of_flower_count_what_answers_and_name_what_does_not(
    settings: Settings, two: tuple[RedisServer, RedisServer]
) -> None:
    own, web = queues_of(settings), servers.Broker(settings)
    Publisher(settings).publish([message(queue) for queue in own])
    assert web.check() == [] and web.lengths(own) == dict.fromkeys(own, 1)

    kill(two[0])

    with contextlib.closing(Brokers(settings)) as brokers:
        rows, reported_at = flower.rows(brokers, set(own))
    assert {row["name"]: row["messages"] for row in rows} == {own[0]: 0, own[1]: 1} and reported_at is None
    assert web.lengths(own) == {own[0]: 0, own[1]: 1}
    (problem,) = web.check()
    assert problem.startswith(f"The broker {two[0].embedded.socket} does not answer")
    kill(two[1])
    with pytest.raises(UnreachableError, match="does not answer"):
        web.lengths(own)


def test_celery_connects_to_the_first_broker_that_answers(settings: Settings, two: tuple[RedisServer, RedisServer]) -> None:
    """As Flower does: kombu alone cannot switch from one Unix socket to another."""
    kill(two[0])
    with celery_app(settings).connection() as connection:
        connection.ensure_connection(max_retries=3)

        assert connection.hostname == f"socket://{two[1].embedded.socket}"


def test_a_process_starts_with_one_broker_but_not_with_wrong_credentials_for_another(
    settings: Settings, two: tuple[RedisServer, RedisServer]
) -> None:
    check(settings)
    first, second = settings.broker_urls
    wrong = settings.model_copy(update={"broker": Broker(url=f"{first},{second.replace('://', '://nobody:hidden@')}")})
    with pytest.raises(CredentialsError, match=rf"^The broker {two[1].embedded.socket} rejects the connection") as error:
        check(wrong)
    assert "hidden" not in str(error.value)

    kill(two[0])
    check(settings)
    kill(two[1])
    with pytest.raises(UnreachableError, match=r"^The broker .* does not answer"):
        check(settings)


def test_one_broker_gets_the_commands_that_it_got_before(settings: Settings, two: tuple[RedisServer, RedisServer]) -> None:
    """One command for one message, one for each wakeup, one connection, and no look at the health of anything."""
    single = with_brokers(settings, two[0])
    publisher, wakeups = Publisher(single), Wakeups(single)

    def work() -> None:
        publisher.publish([message("q")])
        publisher.publish([message("q"), message("r")])
        wakeups.wake("run:1")

    work()  # Opens the connections.
    with contextlib.closing(Brokers(single)) as looking:
        client = looking.all[0].client
        before = commands(client.info)
        work()
        after = commands(client.info)
        clients = client.info("clients")["connected_clients"]

    assert {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)} == {
        "lpush": 3, "zadd": 1, "info": 1,
    }  # fmt: skip
    assert clients == 3, "those of the publisher, of the wakeups and of this test"


def commands(info: Callable[[str], object]) -> dict[str, int]:
    found = info("commandstats")
    assert isinstance(found, dict)
    return {name.removeprefix("cmdstat_"): values["calls"] for name, values in found.items()}


@pytest.mark.parametrize(
    "url",
    [
        "redis://a,http://b", "redis://a,rediss://b", "redis://a,redis://a", "redis://a:6379,redis://x:y@a:6379", "redis://a;redis://b",
        "redis://a:port,redis://b", "redis://a,redis://:1/0", "rediss://a?ssl_cert_reqs=none,rediss://b",
    ],
)  # fmt: skip
def test_a_list_with_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        Broker(url=url)


def test_a_list_is_shown_without_its_passwords() -> None:
    settings = Settings(broker=Broker(url="redis://u:p,1@a/0 , redis://u:p2@b"))

    assert settings.broker_urls == ("redis://u:p,1@a/0", "redis://u:p2@b")
    assert effective(settings, "broker.url") == "redis://u:***@a/0,redis://u:***@b"
