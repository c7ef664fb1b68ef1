"""The watchdog detects a deaf worker, and leaves others alone."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery.worker import state as celery_state

from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher
from scheduler.settings import Settings
from workers.supervision.heartbeat import Watchdog


@pytest.fixture
def watchdog(settings: Settings) -> Iterator[Watchdog]:
    watchdog = Watchdog(settings, ("default",), concurrency=1)
    yield watchdog
    watchdog._redis.close()


def publish(settings: Settings) -> None:
    message = Message(ti_id=1, dispatch_id="a", queue="default", dag_id="d", run_id="r", task_id="t", priority_weight=1000)
    publisher = Publisher(settings)
    publisher.publish([message])
    publisher.close()


def test_a_worker_with_free_slots_that_takes_no_waiting_message_is_deaf(settings: Settings, watchdog: Watchdog) -> None:
    publish(settings)

    assert [watchdog.must_restart(now) for now in (0.0, 29.0, 30.0)] == [False, False, True]


def test_an_empty_queue_is_no_deafness(watchdog: Watchdog) -> None:
    assert [watchdog.must_restart(now) for now in (0.0, 29.0, 60.0)] == [False, False, False]


def test_a_worker_that_took_a_message_meanwhile_is_not_deaf(
    settings: Settings, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(settings)
    watchdog.must_restart(0.0)

    monkeypatch.setattr(celery_state, "all_total_count", [1])

    assert [watchdog.must_restart(now) for now in (29.0, 58.0, 59.0)] == [False, False, True]


def test_a_busy_worker_is_not_deaf(settings: Settings, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(settings)
    busy: Any = {object()}
    monkeypatch.setattr(celery_state, "reserved_requests", busy)

    assert [watchdog.must_restart(now) for now in (0.0, 60.0)] == [False, False]
