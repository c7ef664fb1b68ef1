"""`paceline pools`: manages pools, which limit the number of active task instances."""

import click

from scheduler.authoring.arguments import is_reserved_queue
from scheduler.cli import options, output
from scheduler.cli.late import pools as store


@click.group()
def pools() -> None:
    """List, create, change and delete pools."""


@pools.command("list")
@options.as_json
def list_() -> None:
    """List all pools with their slots, slots in use and waiting task instances."""
    columns = ["name", "slots", "used_slots", "free_slots", "waiting", "queue", "description"]
    output.listing(options.transact(store.pools), columns, empty="No pools.")


# Without ignore_unknown_options, click would parse -1 (no limit) as an option.
@pools.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("slots", type=click.IntRange(-1, 2**31 - 1))
@click.option("--description", help="Description.")
@click.option("--include-deferred/--no-include-deferred", default=None, help="Whether deferred task instances keep their slots.")
@click.option("--queue", help="Queue for tasks of the pool that set no queue. '' removes it.")
@options.as_json
def set_(name: str, slots: int, *, description: str | None, include_deferred: bool | None, queue: str | None) -> None:
    """Create or change a pool. -1 slots means no limit."""
    if not name.strip() or len(name) > 250 or "\0" in name:
        raise click.UsageError("A pool's name has 1 to 250 characters.")
    if queue is not None and is_reserved_queue(queue):
        raise click.BadParameter(
            f"{queue!r} is a key that Paceline or Celery keeps in Redis; choose another name.", param_hint="'--queue'"
        )
    row = options.transact(store.set_pool, name, slots, description=description, include_deferred=include_deferred, queue=queue)
    options.wake("queue")
    output.result(row, f"Pool {name} has {'no limit' if slots < 0 else f'{slots} slots'}.")


@pools.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete a pool that no task instance uses."""
    options.transact(store.delete_pool, name)
    click.echo(f"Pool {name} is deleted.")
