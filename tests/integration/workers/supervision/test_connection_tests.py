"""Tests of connections that a worker makes for the web UI."""

from typing import Any

from support.waiting import eventually

from scheduler.messaging import connection_tests
from scheduler.messaging.connection_tests import Answer
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

from .. import conftest


def answers(bench: conftest.Bench, *conn_ids: str) -> list[Answer]:
    """The answers of the workers of the queue "default" to tests of these connections."""
    brokers = bench.scenario.brokers
    asked = [connection_tests.ask(brokers, conn_id, "default") for conn_id in conn_ids]

    def given() -> list[Answer]:
        found = [connection_tests.find(brokers, test.token) for test in asked]
        return [test.answer for test, _ in filter(None, found) if test.answer]

    eventually(lambda: len(given()) == len(asked), timeout=30)
    return given()


def stored(bench: conftest.Bench, conn_id: str, **values: Any) -> None:
    made = connections.from_values(conn_id, {"conn_type": "redis", **values})
    transact(bench.scenario.engine, connections.add, [made], Cipher.of(bench.settings, make=True))


def test_a_worker_tests_what_its_tasks_would_use(bench: conftest.Bench) -> None:
    stored(bench, "closed", host="127.0.0.1", port=1, password="hunter2")
    stored(bench, "own", host="127.0.0.1", port=2)
    bench.worker(PACELINE_CONN_OWN=bench.settings.broker_url.replace("unix://", "redis://"), PACELINE_CONN_UNKNOWN="odd://")

    closed, unknown, missing = answers(bench, "closed", "unknown", "nothing")

    assert not closed.ok and closed.message.startswith("Connection closed fails at 127.0.0.1:1: ")
    assert "hunter2" not in closed.message
    assert closed.worker.startswith("w0@")
    assert not unknown.ok and "it has no host with a port" in unknown.message
    assert not missing.ok and missing.message.startswith("There is no connection 'nothing'")
    (own,) = answers(bench, "own")
    assert "127.0.0.1:2" not in own.message, "the environment of the worker comes first"


def test_members_of_other_programs_do_not_stop_a_worker(bench: conftest.Bench) -> None:
    broker = bench.scenario.broker
    broker.zadd(connection_tests.ASKED.format("default"), {"\xff not a token": 0, "a" * 32: 0})
    for text in (b"", b"\xff", b"null", b"[1]", b'{"conn_id": 1}', b"[" * 100_000, b'{"conn_id": "a", "queue": "q", "answer": 5}'):
        broker.set(connection_tests.TEST.format("b" * 32), text)
        assert connection_tests.find(bench.scenario.brokers, "b" * 32) is None
    broker.set(connection_tests.ASKED.format("other"), "a string")
    bench.worker(queues="other,default")

    assert [answer.ok for answer in answers(bench, "nothing")] == [False]
    assert broker.type(connection_tests.ASKED.format("other")) == b"none"


def test_redis_forgets_a_test(bench: conftest.Bench) -> None:
    broker = bench.scenario.broker
    test = connection_tests.ask(bench.scenario.brokers, "warehouse", "default")
    key = connection_tests.TEST.format(test.token)

    assert connection_tests.find(bench.scenario.brokers, test.token) == (test, False)
    assert 0 < broker.pttl(connection_tests.ASKED.format("default")) <= connection_tests.ANSWER_S * 1000
    broker.pexpire(key, (connection_tests.KEPT_S - connection_tests.ANSWER_S) * 1000)
    assert connection_tests.find(bench.scenario.brokers, test.token) == (test, True)
    broker.delete(key)
    assert connection_tests.take(bench.scenario.brokers, ["default"]) is None
    connection_tests.answer(bench.scenario.brokers, test, Answer(ok=True, message="late", worker="w"))
    assert not broker.exists(key)
