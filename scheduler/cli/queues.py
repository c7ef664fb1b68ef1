"""`paceline queues`: lists queues with their waiting tasks and workers."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import click

from scheduler.cli import lazy, options, output
from scheduler.cli.late import overview, wakeups

COLUMNS = ["queue", "waiting_in_postgresql", "waiting_in_redis", "running", "oldest", "workers"]


@click.group(cls=lazy.NounGroup)
def queues() -> None:
    """List queues and their waiting tasks."""


@queues.command("list")
@options.as_table
def list_() -> None:
    """List queues with their waiting tasks and workers.

    The command lists every queue that has waiting tasks or a live worker, with the counts waiting in PostgreSQL and in Redis.
    """
    settings = options.settings()
    stored = options.transact(overview.queues, silent_after_s=settings.worker.heartbeat_timeout)
    in_redis = _in_redis([row["queue"] for row in stored])
    rows = [
        {
            "queue": row["queue"],
            "waiting_in_postgresql": row["scheduled"],
            "waiting_in_redis": in_redis.get(row["queue"]),
            "running": row["running"],
            "oldest_waiting_at": row["oldest_waiting_at"],
            "workers": row["worker_names"],
            "places": row["concurrency"],
        }
        for row in stored
    ]
    if not output.json_wanted():
        rows = [row | {"oldest": _age(row["oldest_waiting_at"])} for row in rows]
    output.listing(rows, COLUMNS, empty="No task waits and no worker runs: start one with `paceline worker`.")


def _in_redis(names: list[str]) -> dict[str, int]:
    """Return the number of messages by queue. If Redis does not answer, print a message and return nothing."""
    import redis

    from scheduler.messaging import publisher

    try:
        with contextlib.closing(wakeups.client(options.settings())) as broker:
            return publisher.lengths(broker, names)
    except redis.RedisError as error:
        output.say(str(wakeups.translate(error)))
        return {}


def _age(since: Any) -> str | None:
    if since is None:
        return None
    seconds = max(0, int((datetime.now(UTC) - since).total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
