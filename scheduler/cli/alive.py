"""`paceline alive`: what the health checks of containers ask."""

import socket

import click

from scheduler.cli import options
from scheduler.exceptions import PacelineError
from scheduler.store import overview


class NotAliveError(PacelineError):
    """No process of this kind gives signs of life on this host."""


@click.command()
@click.argument("kind", type=click.Choice(["scheduler", "worker", "waiter"]))
def alive(kind: str) -> None:
    """Exit 0 if a scheduler, worker or waiter of this host gives signs of life, else 1."""
    settings = options.settings()
    silent_after_s = {
        "scheduler": settings.scheduler.scheduler_health_check_threshold,
        "worker": settings.worker.heartbeat_timeout,
        "waiter": settings.waiter.heartbeat_timeout,
    }[kind]
    host = socket.gethostname()
    rows = overview.processes(options.engine(check_schema=False), kind=kind, silent_after_s=silent_after_s)
    if not any(row["host"] == host and row["state"] == "alive" for row in rows):
        raise NotAliveError(f"No {kind} gives signs of life on {host}: see its log, or start one with `paceline {kind}`.")
