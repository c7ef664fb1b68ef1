"""`paceline variables`: manages variables: texts and JSON values for tasks, stored encrypted."""

import json
from pathlib import Path
from typing import Any

import click

from paceline import secrets_masker
from paceline.exceptions import PacelineError
from scheduler.cli import lazy, options, output


@click.group(cls=lazy.NounGroup)
def variables() -> None:
    """List, get, set, import and export variables."""


@variables.command("list")
@options.as_table
def list_() -> None:
    """List all variables, without values."""
    from scheduler.store.secrets import variables as store

    output.listing(options.transact(store.variables), ["key", "description", "updated_at"], empty="No variables.")


@variables.command()
@click.argument("key")
@click.option("--show", is_flag=True, help="Show values that are masked because their key looks sensitive.")
@options.as_json
def get(key: str, show: bool) -> None:
    """Print the value of a variable."""
    from scheduler.store.secrets import variables as store

    row = options.transact(store.variable, key, options.cipher())
    value = row["value"] if show else secrets_masker.shown(key, row["value"])
    output.result({**row, "value": value}, value)


@variables.command("set")
@click.argument("key")
@click.argument("value")
@click.option("--description", help="Description.")
def set_(key: str, value: str, description: str | None) -> None:
    """Create or change a variable. Use - as the value to read it from standard input, which keeps it out of process listings."""
    from scheduler.actions import stored

    stored.store(options.actor(), stored.New(variables=[(key, options.typed(value), description)]))
    click.echo(f"Variable {key} is set.")


@variables.command()
@click.argument("key")
@options.yes
def delete(key: str, *, yes: bool) -> None:
    """Delete a variable."""
    from scheduler.actions import stored

    options.confirm(f"Delete variable {key}?", yes)
    stored.delete(options.actor(), "variable", key)
    click.echo(f"Variable {key} is deleted.")


@variables.command("export")
@options.file
def export(file: Path) -> None:
    """Write all variables, unencrypted, to a JSON file that only you can read. Use - for standard output."""
    from scheduler.store.secrets import variables as store

    cipher = options.cipher()
    rows = [options.transact(store.variable, row["key"], cipher) for row in options.transact(store.variables)]
    values = {row["key"]: {"value": row["value"], "description": row["description"]} for row in rows}
    options.write_private(file, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    output.say(f"Exported {output.count(len(values), 'variable')}.")


@variables.command("import")
@options.file
@click.option("--skip-existing", is_flag=True, help="Keep the values of existing variables.")
def import_(file: Path, skip_existing: bool) -> None:
    """Import variables from a JSON file: {"key": "text"}, {"key": any JSON} or an export. All are stored, or none."""
    from scheduler.actions import stored

    written = stored.store(options.actor(), stored.New(variables=read(file)), existing="skip" if skip_existing else "overwrite")
    click.echo(f"Set {output.count(len(written.variables), 'variable')}.")


def read(file: Path) -> list[tuple[str, str, str | None]]:
    """The variables of such a file: key, value and description. PacelineError if one is not valid."""
    return [_entry(key, given) for key, given in options.read_export(file).items()]


def _entry(key: str, given: Any) -> tuple[str, str, str | None]:
    """Return the key, value and description of an entry. A value that is not a text becomes JSON, as in Airflow."""
    description = None
    if isinstance(given, dict) and "value" in given and set(given) <= {"value", "description"}:
        given, description = given["value"], given.get("description")
    if description is not None and not isinstance(description, str):
        raise PacelineError(f"The description of variable {key!r} must be a text.")
    return key, given if isinstance(given, str) else json.dumps(given, ensure_ascii=False), description
