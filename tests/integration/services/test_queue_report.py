"""The report of queues in Redis for Flower: schedulers write it once for all of them."""

from datetime import UTC, datetime

from support.scenario import Scenario, chain

from scheduler.messaging import publisher
from scheduler.services import queue_report
from workers.flower.queues import read_report

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def reporter(scenario: Scenario) -> queue_report.QueueReport:
    return queue_report.QueueReport(scenario.engine, scenario.settings, scenario.broker)


def test_one_scheduler_writes_for_all(scenario: Scenario) -> None:
    scenario.start(chain("d", 1, task={"queue": "q"}))
    scenario.broker.delete(queue_report.KEY, queue_report.LOCK_KEY)

    assert [reporter(scenario).write(NOW), reporter(scenario).write(NOW)] == [True, False]

    found = read_report(scenario.broker)
    assert found is not None and found["at"] == NOW.isoformat()
    rows = {row["queue"]: row for row in found["queues"]}
    assert (rows["q"]["queued"], rows["q"]["workers"], rows["default"]["worker_names"]) == (1, 0, ["w"])
    assert publisher.lengths(scenario.broker, ["q", "none"]) == {"q": 1, "none": 0}
