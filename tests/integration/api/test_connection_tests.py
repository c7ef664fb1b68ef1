"""Tests of connections: asked of a queue with a live worker, and answered in one sentence."""

from support.scenario import Scenario

from scheduler.messaging import connection_tests
from scheduler.messaging.connection_tests import Answer

from .conftest import Web

PATH = "/api/v2/connectionTests"


def worker(scenario: Scenario, *queues: str) -> None:
    scenario.sql(
        "insert into process (id, kind, name, host, pid, queues, concurrency, heartbeat_at)"
        " values (%s, 'worker', 'w', 'h', 1, %s, 2, clock_timestamp())",
        f"w#{'-'.join(queues)}", list(queues),
    )  # fmt: skip


def test_without_a_live_worker_nothing_is_asked(web: Web, scenario: Scenario) -> None:
    scenario.sql("delete from process")
    with web.http(web.account("ada", "admin")) as http:
        nobody = http.post(PATH, json={"connection_id": "warehouse"})
        worker(scenario, "spark")
        other = http.post(PATH, json={"connection_id": "warehouse", "queue": "default"})

    assert (nobody.status_code, nobody.json()["detail"]) == (
        409, "No worker is alive that could test the connection. Start one with `paceline worker`.",
    )  # fmt: skip
    assert (other.status_code, other.json()["detail"]) == (
        409, "No live worker takes tasks of the queue 'default'. Start one, or choose another queue.",
    )  # fmt: skip


def test_a_test_is_pending_then_answered_or_late(web: Web, scenario: Scenario) -> None:
    worker(scenario, "another", "default")
    with web.http(web.account("ada", "admin")) as http:
        asked = http.post(PATH, json={"connection_id": "warehouse"}).raise_for_status().json()
        url = f"{PATH}/{asked['token']}"
        assert (asked["state"], asked["queue"], http.get(url).json()) == ("pending", "default", asked)
        test = connection_tests.take(scenario.brokers, ["default"])
        assert test is not None and test.conn_id == "warehouse"
        connection_tests.answer(scenario.brokers, test, Answer(ok=True, message="It works.", worker="w@h"))
        assert http.get(url).json() == asked | {"state": "success", "message": "It works.", "worker": "w@h"}

        late = http.post(PATH, json={"connection_id": "warehouse", "queue": "another"}).raise_for_status().json()
        scenario.broker.pexpire(connection_tests.TEST.format(late["token"]), 1000)
        answer = http.get(f"{PATH}/{late['token']}").json()
        assert (answer["state"], answer["message"]) == (
            "failed", "No worker of the queue another answered within 20 s: see whether one is alive on the page Queues.",
        )  # fmt: skip
        assert http.get(f"{PATH}/{'0' * 32}").status_code == 404
    assert scenario.rows("select event, account from audit where event like '%%test%%'") == [
        ("ask_connection_test", "ada"), ("ask_connection_test", "ada"),
    ]  # fmt: skip


def test_only_who_may_edit_connections_may_test_them(web: Web, scenario: Scenario) -> None:
    worker(scenario, "default")
    with web.http(web.account("olga", "operator")) as http:
        assert http.post(PATH, json={"connection_id": "warehouse"}).status_code == 403
        assert http.get(f"{PATH}/{'0' * 32}").status_code == 403
    assert scenario.broker.keys("paceline:connection-test*") == []
