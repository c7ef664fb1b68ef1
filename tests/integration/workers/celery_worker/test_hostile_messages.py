"""Garbage in the broker's lists: a worker refuses it with a line in its log and continues, and so does rescue."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import hostile
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.messaging import publisher
from scheduler.messaging.publisher import Publisher, broker_lists
from scheduler.messaging.wakeups import client
from scheduler.services.rescue import Rescue, dispatch_ids_in_broker
from scheduler.store.worker import crashes
from workers.celery_worker import message_filter

ONE_TASK = """
    with DAG("d", schedule=None):
        PythonOperator(task_id="t", python_callable=lambda: print("ran"))
"""


def test_a_worker_refuses_hostile_messages_and_continues(bench: Any, tmp_path: Path) -> None:
    broker: Any = client(bench.settings)
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
    broker: Any = client(bench.settings)
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
    rescue = Rescue(bench.scenario.engine, settings, Publisher(settings), client(settings))
    eventually(lambda: rescue.rescue(datetime.now(UTC)).sent_again, timeout=60)
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success"}
    assert bench.column("t", "try_number") == 1


def settled(scenario: Scenario) -> bool:
    """Right after a start of PostgreSQL rescue leaves everything to the workers."""
    with scenario.engine.connect() as connection:
        return crashes.settled(connection, seconds=scenario.settings.worker.heartbeat_timeout)


def test_rescue_ignores_entries_that_are_no_messages(scenario: Scenario) -> None:
    scenario.start(chain("c", 1), run_id="r")
    eventually(lambda: settled(scenario), timeout=60)
    lost = scenario.messages()
    for item in hostile.items("x").values():
        scenario.broker.lpush("default", item)
    scenario.sql("update task_instance set queued_at = queued_at - interval '1 hour', dispatched_at = null")
    scenario.sql("update crash_free set since = since - interval '2 hours'")

    rescue = Rescue(scenario.engine, scenario.settings, Publisher(scenario.settings), scenario.broker)
    rescued = rescue.rescue(datetime.now(UTC))

    assert [(one.ti_id, one.dispatch_id) for one in rescued.sent_again] == lost
    assert lost[0][1] in dispatch_ids_in_broker(scenario.broker, {"default"})
