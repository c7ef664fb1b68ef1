"""`paceline workers`: lists and drains workers."""

import click

from scheduler.cli import lazy, options, output


@click.group(cls=lazy.NounGroup)
def workers() -> None:
    """List and drain workers."""


@workers.command("list")
@click.option("--all", "all_", is_flag=True, help="Include stopped workers.")
@options.as_table
def list_(all_: bool) -> None:
    """List workers with their queues and heartbeats."""
    from scheduler.store.read import overview

    timeout_s = options.settings().worker.heartbeat_timeout
    rows = options.transact(overview.processes, kind="worker", silent_after_s=timeout_s, stopped=all_)
    columns = ["name", "state", "queues", "concurrency", "running", "host", "pid", "started_at", "heartbeat_at"]
    output.listing(rows, columns, empty="No worker runs: start one with `paceline worker`.")


@workers.command()
@click.argument("name")
def drain(name: str) -> None:
    """Ask worker NAME, or the worker with this ID, to take no more tasks and to end when its running tasks have ended.

    Its supervisor, if it has one, may start it again.
    """
    from scheduler.store.db.database import user
    from scheduler.store.read import workers as lists

    for worker_id in options.transact(lists.drain, name, f"cli:{user()}"):
        click.echo(f"{worker_id} drains: it takes no more tasks.")
