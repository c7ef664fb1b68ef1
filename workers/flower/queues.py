"""Flower's Broker page and queue API: the waiting tasks as the schedulers report them, and the messages in Redis."""

import contextlib
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
from flower import urls
from flower.api.tasks import GetQueueLengths
from flower.views.broker import BrokerView
from tornado import web
from tornado.ioloop import IOLoop
from tornado.web import url

from scheduler.messaging import broker_keys, publisher
from scheduler.messaging.broker_keys import REPORT
from scheduler.messaging.brokers import BROKER_ERRORS, Brokers
from scheduler.settings import Settings

log = logging.getLogger("paceline.flower")

PAGE = Path(__file__).with_name("queues.html")
#: Takes the queue names that Flower received from workers; returns the rows of the page and the time of the schedulers' report.
Read = Callable[[set[str]], tuple[list[dict[str, Any]], datetime | None]]
#: Schemes of links.
WEB = ("http://", "https://")


def install(settings: Settings) -> None:
    """Replace Flower's handlers, which read only Redis, and only for the queues of workers that replied during their start."""

    def read(worker_queues: set[str]) -> tuple[list[dict[str, Any]], datetime | None]:
        with contextlib.closing(Brokers(settings)) as brokers:
            return rows(brokers, worker_queues)

    pages_url = settings.flower.pages_url if settings.flower.pages_url.startswith(WEB) else ""
    ours = {BrokerView: Page, GetQueueLengths: Lengths}
    for index, handler in enumerate(urls.handlers):
        spec = handler if isinstance(handler, url) else url(*handler)
        if spec.handler_class in ours:
            urls.handlers[index] = url(
                spec.regex.pattern, ours[spec.handler_class], {"read": read, "pages_url": pages_url}, name=spec.name
            )


def rows(brokers: Brokers, worker_queues: set[str]) -> tuple[list[dict[str, Any]], datetime | None]:
    """Return one row for each queue: `postgresql` and `redis` count the waiting tasks in each, `messages` is their sum."""
    report = brokers.call(read_report)
    known = {row["queue"]: row for row in report["queues"]} if report else {}
    names = sorted(known.keys() | worker_queues)
    in_redis = publisher.lengths(brokers, names)
    table = []
    for name in names:
        row = known.get(name, {})
        table.append(
            {
                "name": name,
                "messages": row.get("scheduled", 0) + in_redis[name],
                "postgresql": row.get("scheduled") if report else None,
                "redis": in_redis[name],
                "running": row.get("running") if report else None,
                "oldest_waiting_at": row.get("oldest_waiting_at"),
                "workers": row.get("worker_names", []),
            }
        )
    return table, datetime.fromisoformat(report["at"]) if report else None


def read_report(broker: redis.Redis) -> dict[str, Any] | None:
    """The last report of the schedulers; None if Redis has no report, or if this version cannot read it."""
    try:
        text: Any = broker.get(REPORT)
        report = json.loads(text or b"null")
    except redis.ResponseError as error:
        if not broker_keys.is_wrong_type(error):
            raise
        return None
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) and isinstance(report.get("queues"), list) else None


class _Reads:
    """The common part of both handlers."""

    application: Any

    def initialize(self, read: Read, pages_url: str) -> None:
        self._read = read
        self._pages_url = pages_url

    async def find(self) -> tuple[list[dict[str, Any]], datetime | None]:
        """Return the rows and the time of the report. A thread reads Redis."""
        workers = self.application.workers.values()
        worker_queues = {queue["name"] for worker in workers for queue in worker.get("active_queues", []) if "name" in queue}
        return await IOLoop.current().run_in_executor(None, self._read, worker_queues)


class Page(_Reads, BrokerView):  # type: ignore[misc]  # Flower has no types
    """The page /broker."""

    @web.authenticated
    async def get(self) -> None:
        error = None
        queues: list[dict[str, Any]] = []
        at = None
        try:
            queues, at = await self.find()
        except BROKER_ERRORS as exception:
            log.error("Redis does not answer: %s", exception)
            error = "Redis does not answer."
        age_s = None if at is None else max(0, int((datetime.now(UTC) - at).total_seconds()))
        self.render(
            str(PAGE), broker_url=self.application.broker_uri, queues=queues, age_s=age_s, error=error, pages_url=self._pages_url
        )


class Lengths(_Reads, GetQueueLengths):  # type: ignore[misc]  # Flower has no types
    """The endpoint /api/queues/length."""

    @web.authenticated
    async def get(self) -> None:
        queues, at = await self.find()
        self.write({"active_queues": queues, "reported_at": at.isoformat() if at else None})
