"""Flower's Broker page and its API of queues: all that waits, as the schedulers report it, and what of it lies in Redis."""

import contextlib
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

from scheduler.messaging.wakeups import client
from scheduler.services import queue_report
from scheduler.settings import Settings

log = logging.getLogger("paceline.flower")

PAGE = Path(__file__).with_name("queues.html")
#: Names of queues that Flower has heard of from workers -> the rows of the page, and when the schedulers wrote what they know.
Read = Callable[[set[str]], tuple[list[dict[str, Any]], datetime | None]]


def install(settings: Settings) -> None:
    """Let ours answer in place of Flower's, which asks Redis alone, for the queues of workers that answered while they started."""

    def read(heard: set[str]) -> tuple[list[dict[str, Any]], datetime | None]:
        with contextlib.closing(client(settings)) as broker:
            return rows(broker, heard)

    ours = {BrokerView: Page, GetQueueLengths: Lengths}
    for at, one in enumerate(urls.handlers):
        spec = one if isinstance(one, url) else url(*one)
        if spec.handler_class in ours:
            urls.handlers[at] = url(spec.regex.pattern, ours[spec.handler_class], {"read": read}, name=spec.name)


def rows(broker: redis.Redis, heard: set[str]) -> tuple[list[dict[str, Any]], datetime | None]:
    """A row a queue: `postgresql` and `redis` are what waits in each, `messages` is both."""
    report = queue_report.read(broker)
    known = {row["queue"]: row for row in report["queues"]} if report else {}
    names = sorted(known.keys() | heard)
    held = queue_report.in_redis(broker, names)
    found = []
    for name in names:
        row = known.get(name, {})
        found.append(
            {
                "name": name,
                "messages": row.get("scheduled", 0) + held[name],
                "postgresql": row.get("scheduled") if report else None,
                "redis": held[name],
                "running": row.get("running") if report else None,
                "oldest_waiting_at": row.get("oldest_waiting_at"),
                "workers": row.get("worker_names", []),
            }
        )
    return found, datetime.fromisoformat(report["at"]) if report else None


class _Reads:
    """What both handlers do."""

    application: Any

    def initialize(self, read: Read) -> None:
        self._read = read

    async def find(self) -> tuple[list[dict[str, Any]], datetime | None]:
        """The rows and their time; Redis is asked in a thread."""
        heard = {
            queue["name"] for one in self.application.workers.values() for queue in one.get("active_queues", []) if "name" in queue
        }
        return await IOLoop.current().run_in_executor(None, self._read, heard)


class Page(_Reads, BrokerView):  # type: ignore[misc]  # Flower has no types
    """/broker"""

    @web.authenticated
    async def get(self) -> None:
        error = None
        queues: list[dict[str, Any]] = []
        at = None
        try:
            queues, at = await self.find()
        except redis.RedisError as failed:
            log.error("Redis does not answer: %s", failed)
            error = "Redis does not answer."
        age_s = None if at is None else max(0, int((datetime.now(UTC) - at).total_seconds()))
        self.render(str(PAGE), broker_url=self.application.broker_uri, queues=queues, age_s=age_s, error=error)


class Lengths(_Reads, GetQueueLengths):  # type: ignore[misc]  # Flower has no types
    """/api/queues/length"""

    @web.authenticated
    async def get(self) -> None:
        queues, at = await self.find()
        self.write({"active_queues": queues, "reported_at": at.isoformat() if at else None})
