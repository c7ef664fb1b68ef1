"""`paceline workers`: lists workers."""

import click

from scheduler.cli import options, output
from scheduler.cli.late import overview


@click.group()
def workers() -> None:
    """List workers."""


@workers.command("list")
@click.option("--all", "all_", is_flag=True, help="Include stopped workers.")
@options.as_json
def list_(all_: bool) -> None:
    """List workers with their queues and heartbeats."""
    timeout_s = options.settings().worker.heartbeat_timeout
    rows = options.transact(overview.processes, kind="worker", silent_after_s=timeout_s, stopped=all_)
    columns = ["name", "state", "queues", "concurrency", "running", "host", "pid", "started_at", "heartbeat_at"]
    output.listing(rows, columns, empty="No worker runs: start one with `paceline worker`.")
