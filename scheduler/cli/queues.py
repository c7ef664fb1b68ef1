"""`paceline queues` and `notices`: list what waits, which is tasks in queues, and callbacks and emails."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import click

from scheduler.cli import lazy, options, output

COLUMNS = ["queue", "waiting_in_postgresql", "waiting_in_redis", "running", "oldest", "workers"]
NOTICES = ["kind", "dag_id", "run_id", "task_id", "map_index", "try_number", "created_at", "attempts", "error"]


@click.group(cls=lazy.NounGroup)
def queues() -> None:
    """List queues and their waiting tasks."""


@click.group(cls=lazy.NounGroup)
def notices() -> None:
    """List pending and failed callbacks and emails."""


@queues.command("list")
@options.as_table
def list_() -> None:
    """List queues with their waiting tasks and workers.

    The command lists every queue that has waiting tasks or a live worker, with the counts waiting in PostgreSQL and in Redis.
    """
    from scheduler.store.read import operations

    settings = options.settings()
    stored = options.transact(operations.queues, silent_after_s=settings.worker.heartbeat_timeout)
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


@notices.command("list")
@click.option("--dag", "dag_id", metavar="DAG", help="Only for this DAG.")
@click.option("--failed", is_flag=True, help="List failed notices instead of pending ones.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number, newest first.")
@options.as_table
def list_notices(dag_id: str | None, *, failed: bool, limit: int) -> None:
    """List pending callbacks and emails or, with --failed, those that ended with an error."""
    from scheduler.store.upkeep import notices as store

    rows = options.transact(store.notices, dag_id=dag_id, failed=failed, limit=limit)
    output.listing(rows, NOTICES, empty="No callback or email failed." if failed else "No callback or email is pending.")


def _in_redis(names: list[str]) -> dict[str, int]:
    """Return the number of messages by queue. If Redis does not answer, print a message and return nothing."""
    from scheduler.messaging import publisher
    from scheduler.messaging.brokers import BROKER_ERRORS, Brokers, translate

    try:
        with contextlib.closing(Brokers(options.settings())) as brokers:
            found = publisher.lengths(brokers, names)
            for problem in brokers.problems():
                output.say(f"{problem} Its messages are not counted.")
            return found
    except BROKER_ERRORS as error:
        output.say(str(translate(error)))
        return {}


def _age(since: Any) -> str | None:
    if since is None:
        return None
    seconds = max(0, int((datetime.now(UTC) - since).total_seconds()))
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


@click.group(cls=lazy.NounGroup)
def workers() -> None:
    """List and drain workers."""


@workers.command("list")
@click.option("--all", "all_", is_flag=True, help="Include stopped workers.")
@options.as_table
def list_workers(all_: bool) -> None:
    """List workers with their queues and heartbeats."""
    from scheduler.store.read import operations

    timeout_s = options.settings().worker.heartbeat_timeout
    rows = options.transact(operations.processes, kind="worker", silent_after_s=timeout_s, stopped=all_)
    columns = ["name", "state", "queues", "concurrency", "running", "host", "pid", "started_at", "heartbeat_at"]
    output.listing(rows, columns, empty="No worker runs: start one with `paceline worker`.")


@workers.command()
@click.argument("name")
def drain(name: str) -> None:
    """Ask worker NAME, or the worker with this ID, to take no more tasks and to end when its running tasks have ended.

    Its supervisor, if it has one, may start it again.
    """
    from scheduler.actions import installation

    for worker_id in installation.drain(options.actor(), name):
        click.echo(f"{worker_id} drains: it takes no more tasks.")
