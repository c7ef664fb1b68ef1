"""Messages and remote control commands of Celery: hostile ones are refused, and good ones are answered."""

import base64
import json
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery.app.control import Control
from support import hostile
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.messaging import publisher
from scheduler.messaging.brokers import Brokers, client
from scheduler.messaging.publisher import Publisher, broker_lists, celery_app, dispatch_ids_in_broker
from scheduler.services.rescue import Rescue
from scheduler.store.worker import claims
from workers.celery_worker import message_filter, remote_control

ONE_TASK = """
    with DAG("d", schedule=None):
        PythonOperator(task_id="t", python_callable=lambda: print("ran"))
"""


def test_a_worker_refuses_hostile_messages_and_continues(bench: Any, tmp_path: Path) -> None:
    broker: Any = client(bench.settings.broker_url)
    bomb = tmp_path / "unpickled"
    items = hostile.items(str(bomb))
    bench.dag(ONE_TASK)
    run = bench.scenario.trigger("d", run_id="r1")
    for item in items.values():
        broker.lpush("default", item)
    worker = bench.worker()

    eventually(lambda: worker.output.count("refused a message") == len(items), timeout=60, message=lambda: bench.output)
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success"}
    assert worker.process.poll() is None
    assert not bomb.exists()
    assert "Traceback" not in worker.output
    assert not any(line for line in worker.output.splitlines() if len(line) > 300), "a line repeats what the message holds"
    children = {line for line in worker.output.splitlines() if re.search("was lost|died|exited", line)}
    assert children == set()
    assert [key for key in broker.keys("default*") if broker.llen(key)] == []


def test_a_good_message_for_nothing_is_dropped_by_the_claim(bench: Any) -> None:
    broker: Any = client(bench.settings.broker_url)
    worker = bench.worker()

    broker.lpush("default", hostile.raw(hostile.message(2**63 - 1)))

    eventually(lambda: "dropped dispatch" in worker.output, timeout=20, message=lambda: bench.output)


@pytest.mark.parametrize("name", sorted(hostile.items("x")))
def test_each_is_refused_before_celery_sees_it(name: str) -> None:
    try:
        message = json.loads(hostile.items("x")[name])
    except (ValueError, RecursionError):
        return  # Channel drops it
    complaint = message_filter.envelope_fault(message) or message_filter.dispatch_fault(message)
    assert complaint and len(complaint) < 120


def test_lines_about_refused_messages_are_few(caplog: pytest.LogCaptureFixture) -> None:
    moment = 1000.0
    refusals = message_filter.Refusals(lambda: moment)
    with caplog.at_level("ERROR", logger="paceline.worker"):
        for _ in range(1000):
            refusals.log("refused a message: %s", "x")
        assert len(caplog.records) == message_filter.MAX_LINES == 100

        moment += 61
        refusals.log("refused a message: %s", "x")

    assert [record.getMessage() for record in caplog.records[100:]] == ["refused 900 more messages", "refused a message: x"]


def test_messages_of_the_publisher_are_accepted(scenario: Scenario) -> None:
    scenario.start(chain("c", 1), run_id="r" * 250)

    found = [json.loads(item) for key in broker_lists("default") for item in scenario.broker.lrange(key, 0, -1)]

    assert [message_filter.envelope_fault(one) or message_filter.dispatch_fault(one) for one in found] == [None]


def test_a_message_of_the_release_before_has_no_version_and_is_taken() -> None:
    message = hostile.message()

    assert "message_version" not in message["headers"]
    assert (message_filter.envelope_fault(message) or message_filter.dispatch_fault(message)) is None


def test_a_task_instance_whose_message_is_of_a_newer_release_waits_for_a_readable_message(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.dag(ONE_TASK)
    run = bench.scenario.trigger("d", run_id="r1")
    worker = bench.worker()
    monkeypatch.setattr(publisher, "VERSION", 2)
    bench.scenario.turn()

    eventually(lambda: "upgrade this worker" in worker.output, timeout=20, message=lambda: bench.output)
    assert bench.scenario.states(run) == {"t": "queued"}
    monkeypatch.undo()  # as if the next one met a worker of that release
    settings = bench.settings
    rescue = Rescue(bench.scenario.engine, settings, Publisher(settings), Brokers(settings))
    eventually(lambda: rescue.rescue(datetime.now(UTC)).sent_again, timeout=60)
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success"}
    assert bench.column("t", "try_number") == 1


def settled(scenario: Scenario) -> bool:
    """Right after a start of PostgreSQL rescue leaves everything to the workers."""
    with scenario.engine.connect() as connection:
        return claims.crash_settled(connection, seconds=scenario.settings.worker.heartbeat_timeout)


def test_rescue_ignores_entries_that_are_no_messages(scenario: Scenario) -> None:
    scenario.start(chain("c", 1), run_id="r")
    eventually(lambda: settled(scenario), timeout=60)
    lost = scenario.messages()
    for item in hostile.items("x").values():
        scenario.broker.lpush("default", item)
    scenario.sql("update task_instance set queued_at = queued_at - interval '1 hour', dispatched_at = null")
    scenario.sql("update crash_free set since = since - interval '2 hours'")

    rescue = Rescue(scenario.engine, scenario.settings, Publisher(scenario.settings), scenario.brokers)
    rescued = rescue.rescue(datetime.now(UTC))

    assert [(one.ti_id, one.dispatch_id) for one in rescued.sent_again] == lost
    assert lost[0][1] in dispatch_ids_in_broker(scenario.broker, {"default"})


QUESTIONS = ("ping", "stats", "active", "reserved", "scheduled", "revoked", "registered", "active_queues", "conf", "clock")
ORDERS: dict[str, dict[str, Any]] = {
    "pool_grow": {"n": 1},
    "pool_shrink": {"n": 1},
    "autoscale": {"max": 5, "min": 1},
    "pool_restart": {"modules": None, "reload": False},
    "revoke": {"task_id": "x", "terminate": True, "signal": "SIGKILL"},
    "terminate": {"task_id": "x", "signal": "SIGKILL"},
    "revoke_by_stamped_headers": {"headers": {"a": ["b"]}},
    "rate_limit": {"task_name": "paceline.run", "rate_limit": "1/h"},
    "time_limit": {"task_name": "paceline.run", "hard": 0.001, "soft": 0.001},
    "add_consumer": {"queue": "other"},
    "cancel_consumer": {"queue": "default"},
    "election": {"id": "x", "topic": "t", "action": None},
    "hello": {"from_node": "x", "revoked": {"a": 1.0}},
    "report": {},
    "objgraph": {},
    "memsample": {},
    "memdump": {},
    "nonsense": {},
}


def asked(worker: Any, control: Control, command: str, **arguments: Any) -> Any:
    """The worker's answer."""
    found: list[Any] = []
    eventually(
        lambda: found.extend(control.broadcast(command, arguments=arguments, reply=True, timeout=2, limit=1)) or found,
        message=lambda: f"no answer to {command}: {worker.output[-3000:]}",
    )
    ((_, answer),) = found[0].items()
    return answer


def garbage() -> list[bytes]:
    """Hostile requests in the workers' mailboxes."""

    def request(**parts: Any) -> bytes:
        body = {"method": "ping", "arguments": {}, "destination": None, "pattern": None, "matcher": None} | parts
        return hostile.raw(hostile.message(body=base64.b64encode(json.dumps(body).encode()).decode(), headers={"clock": 1}))

    reply = {"exchange": "reply.celery.pidbox", "routing_key": str(uuid.uuid4())}
    return [
        b"", b"{", b"null", b"[]", b"1", bytes(range(256)), b"[" * 100_000, b"9" * 5000, *hostile.items("x").values(),
        request(method=1), request(method=None), request(method="x" * 1000), request(arguments=[1]), request(arguments="x"),
        request(destination="x"), request(destination=[1]), request(pattern="(a+)+$", matcher="pcre"), request(matcher="x"),
        request(reply_to=1), request(reply_to={}), request(reply_to=reply | {"exchange": "celeryev"}, ticket="x"),
        request(reply_to=reply | {"routing_key": "*"}), request(reply_to=reply, ticket=str(uuid.uuid4())),
        request(ticket=[1]), request(evil=1), request(arguments={"evil": 1}), request(method="stats", arguments={"x": 1}),
        request(method="query_task", arguments={"ids": 1}), request(method="query_task", arguments={"ids": [[1]]}),
        request(method="registered", arguments={"taskinfoitems": ["app"]}), request(method="conf", arguments={"with_defaults": 1}),
        request(method="__class__"), request(method="shutdown", arguments={"msg": ["x"]}),
        hostile.raw(hostile.message(body="%%%")), hostile.raw(hostile.message(body="A" * 1_000_000)),
        hostile.raw(hostile.message(headers={"clock": "x"})), hostile.raw(hostile.message(headers={"clock": 10**4000})),
    ]  # fmt: skip


@pytest.fixture
def worker(bench: Any) -> Any:
    return bench.worker(concurrency=1)


def test_a_worker_answers_inspections_refuses_commands_survives_garbage_and_shuts_down_cleanly(bench: Any, worker: Any) -> None:
    broker: Any = client(bench.settings.broker_url)
    app = celery_app(bench.settings)
    channel = f"/{broker.connection_pool.connection_kwargs.get('db', 0)}.celery.pidbox"
    asked(worker, app.control, "ping")
    for item in garbage():
        assert broker.publish(channel, item) == 1
    # Bindings that are none, and a key of another type in place of a list.
    broker.sadd("_kombu.binding.reply.celery.pidbox", b"x", b"\xff", "a\x06\x16b")
    broker.set("default", "x")

    for name in QUESTIONS:
        assert "error" not in asked(worker, app.control, name), name
    password = bench.settings.broker_url.rpartition("@")[0].rpartition(":")[2]
    conf = json.dumps(asked(worker, app.control, "conf"))
    assert not password or password not in conf
    for name, arguments in ORDERS.items():
        answer = asked(worker, app.control, name, **arguments)
        assert answer == {"error": remote_control.refusal(name)}, name

    bench.run(ONE_TASK)
    assert bench.scenario.states() == {"t": "success"}
    assert asked(worker, app.control, "stats")["pool"]["max-concurrency"] == 1
    assert [queue["name"] for queue in asked(worker, app.control, "active_queues")] == ["default"]
    assert "Traceback" not in worker.output
    assert not any(line for line in worker.output.splitlines() if len(line) > 400), "a line repeats what the message holds"

    assert "takes no more tasks" in asked(worker, app.control, "shutdown")["ok"]
    assert worker.wait() == 0


def test_it_executes_commands_of_flower_and_answers_about_one_task(worker: Any, bench: Any) -> None:
    app = celery_app(bench.settings)
    for name in ("disable_events", "enable_events"):
        assert "ok" in asked(worker, app.control, name), name
    assert asked(worker, app.control, "heartbeat") is None
    assert asked(worker, app.control, "query_task", ids=[str(uuid.uuid4())]) == {}


def test_a_malformed_request_or_a_foreign_reply_address_is_refused_before_celery_sees_it() -> None:
    taken = []
    for item in garbage():
        try:
            message = json.loads(item)
        except (ValueError, RecursionError):
            continue  # Channel drops it
        if (message_filter.envelope_fault(message) or remote_control.fault(message)) is None:
            taken.append(json.loads(base64.b64decode(message["body"])))

    # Those whose answer is a refusal or goes to a mailbox.
    assert [(one["method"], "reply_to" in one) for one in taken] == [("ping", True), ("__class__", False)]


def test_a_task_that_celery_should_revoke_runs(bench: Any, worker: Any) -> None:
    app = celery_app(bench.settings)
    bench.dag(ONE_TASK)
    run = bench.scenario.trigger("d", run_id="r1")
    dispatch_ids: list[str] = []

    def queued() -> list[str]:
        bench.scenario.turn()
        rows = bench.scenario.rows("select dispatch_id::text from task_instance where dispatch_id is not null")
        dispatch_ids.extend(one for (one,) in rows)
        return dispatch_ids

    eventually(queued)
    for dispatch_id in dispatch_ids:
        assert "paceline tasks mark" in asked(worker, app.control, "revoke", task_id=dispatch_id, terminate=True)["error"]

    bench.wait(run)
    assert bench.scenario.states(run) == {"t": "success"}


def test_active_shows_the_task_that_runs_in_place(bench: Any) -> None:
    go = bench.folder / "go"
    worker = bench.worker(concurrency=1, PACELINE_WORKER_IN_PLACE_SECONDS="60")
    app = celery_app(bench.settings)
    bench.dag(f"""
        import os, time
        with DAG("d", schedule=None):
            @task
            def second():
                while not os.path.exists({str(go)!r}):
                    time.sleep(0.05)

            task(task_id="first")(lambda: None)() >> second()
    """)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, second="running")
    eventually(lambda: bench.log_path("second").exists())
    ((ti_id, dispatch_id),) = bench.scenario.rows("select id, dispatch_id::text from task_instance where task_id = 'second'")

    (shown,) = asked(worker, app.control, "active")
    (shown_safely,) = asked(worker, app.control, "active", safe=True)
    go.touch()

    assert (shown["id"], shown["name"], shown["args"]) == (dispatch_id, "d.second", [ti_id, dispatch_id])
    assert shown_safely["args"] == "r1"
    bench.wait(run)
    eventually(lambda: asked(worker, app.control, "active") == [])


def test_every_refusal_names_the_alternative(bench: Any) -> None:
    words = [remote_control.refusal(name) for name in remote_control.REFUSED]
    assert all(len(word) < 300 and word.endswith(".") for word in words)
