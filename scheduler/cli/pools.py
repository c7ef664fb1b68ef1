"""`paceline pools`: manages pools, which limit the number of active task instances."""

import json
from pathlib import Path
from typing import Any

import click

from paceline.exceptions import PacelineError
from scheduler.cli import lazy, options, output


@click.group(cls=lazy.NounGroup)
def pools() -> None:
    """List, create, change, delete, import and export pools."""


@pools.command("list")
@options.as_table
def list_() -> None:
    """List all pools with their slots, slots in use and waiting task instances."""
    from scheduler.store.queueing import pools as store

    columns = ["name", "slots", "used_slots", "free_slots", "waiting", "queue", "description"]
    output.listing(options.transact(store.pools), columns, empty="No pools.")


# Without ignore_unknown_options, click would parse -1 (no limit) as an option.
@pools.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name", shell_complete=options.complete_pools)
@click.argument("slots", type=click.IntRange(-1, 2**31 - 1))
@click.option("--description", help="Description.")
@click.option("--include-deferred/--no-include-deferred", default=None, help="Whether deferred task instances keep their slots.")
@click.option("--queue", help="Queue for tasks of the pool that set no queue. '' removes it.")
@options.as_json
def set_(name: str, slots: int, *, description: str | None, include_deferred: bool | None, queue: str | None) -> None:
    """Create or change a pool. -1 slots means no limit."""
    from scheduler.actions import stored
    from scheduler.store.queueing import pools as store

    try:
        store.check(name, slots, queue)
    except PacelineError as error:
        raise click.UsageError(str(error)) from None
    values = {"slots": slots, "description": description, "include_deferred": include_deferred, "queue": queue}
    stored.store(options.actor(), stored.New(pools={name: values}))
    output.result(
        options.transact(store.pool, name), f"Pool {name} has {'no limit' if slots < 0 else output.count(slots, 'slot')}."
    )


@pools.command()
@click.argument("name", shell_complete=options.complete_pools)
@options.yes
def delete(name: str, *, yes: bool) -> None:
    """Delete a pool that no task instance uses."""
    from scheduler.actions import stored

    options.confirm(f"Delete pool {name}?", yes)
    stored.delete(options.actor(), "pool", name)
    click.echo(f"Pool {name} is deleted.")


@pools.command("export")
@options.file
def export(file: Path) -> None:
    """Write all pools to a JSON file, in the form of `airflow pools export`. Use - for standard output."""
    from scheduler.store.queueing import pools as store

    names = ("slots", "description", "include_deferred", "queue")
    values = {row["name"]: {name: row[name] for name in names} for row in options.transact(store.pools)}
    options.write_private(file, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    output.say(f"Exported {output.count(len(values), 'pool')}.")


@pools.command("import")
@options.file
def import_(file: Path) -> None:
    """Import pools from a JSON file: {"name": {"slots": 4, "description": ..., "include_deferred": ...}}.

    Existing pools get the new values. All are stored, or none. `airflow pools export` writes such files.
    """
    from scheduler.actions import stored

    read_pools = read(file)
    stored.store(options.actor(), stored.New(pools=read_pools))
    click.echo(f"Stored {output.count(len(read_pools), 'pool')}.")


def read(file: Path) -> dict[str, dict[str, Any]]:
    """The pools of such a file by name, with the arguments of store.set_pool. PacelineError if one is not valid."""
    return {name: _imported(name, given) for name, given in options.read_export(file).items()}


def _imported(name: str, given: Any) -> dict[str, Any]:
    from scheduler.store.queueing import pools as store

    kinds = {"slots": int, "description": str, "include_deferred": bool, "queue": str}
    if not isinstance(given, dict) or not isinstance(given.get("slots"), int) or isinstance(given["slots"], bool):
        raise PacelineError(f"Pool {name!r} must be a JSON object with slots, a whole number.")
    values = {key: given[key] for key in kinds if given.get(key) is not None}
    if wrong := [key for key, value in values.items() if not isinstance(value, kinds[key]) or "\0" in str(value)]:
        raise PacelineError(f"The field {wrong[0]} of pool {name!r} must be of type {kinds[wrong[0]].__name__}.")
    store.check(name, given["slots"], values.get("queue"))
    return values
