"""`paceline connections`: manages connections to other systems. Passwords and extras are stored encrypted."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import secrets_masker
from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.cli import lazy, options, output

if TYPE_CHECKING:
    from scheduler.actions.stored import Existing


@click.group(cls=lazy.NounGroup)
def connections() -> None:
    """List, get, add, set, test, import and export connections to other systems."""


@connections.command("list")
@options.as_table
def list_() -> None:
    """List all connections, without passwords and extras."""
    from scheduler.store.secrets import connections as store

    columns = ["conn_id", "conn_type", "host", "port", "schema", "login", "has_password", "has_extra", "description"]
    output.listing(options.transact(store.connections), columns, empty="No connections.")


@connections.command()
@click.argument("conn_id")
@click.option("--show", is_flag=True, help="Show the password and the extra.")
@options.as_json
def get(conn_id: str, show: bool) -> None:
    """Show a connection."""
    from scheduler.store.secrets import connections as store

    connection = options.transact(store.connection, conn_id, options.cipher())
    values = connection.as_dict()
    if not show:
        values |= {
            "password": secrets_masker.hidden(connection.password, secret=True),
            "extra": secrets_masker.hidden(connection.extra_dejson, secret=True),
        }
    if output.json_wanted():
        output.print_json(values | {"uri": connection.get_uri() if show else None})
    else:
        output.facts(values | {"extra": json.dumps(values["extra"], ensure_ascii=False)})


#: The fields of a connection, which `_given` puts together.
fields_of_one = options.together(
    click.argument("conn_id"),
    click.option("--conn-uri", help="type://login:password@host:port/schema?key=value, or - to read it from standard input."),
    click.option(
        "--conn-json", help="A JSON object with conn_type and any of the fields below, or - to read it from standard input."
    ),
    click.option("--conn-type", help="Connection type, such as postgres."),
    click.option("--conn-description", help="Description."),
    click.option("--conn-host", help="Host name or address."),
    click.option("--conn-login", help="User name."),
    click.option("--conn-password", help="Password, or - to read it from standard input, which keeps it out of process listings."),
    click.option("--conn-schema", help="Schema or database."),
    click.option("--conn-port", type=click.IntRange(0, 65535), help="Port."),
    click.option("--conn-extra", type=options.JSON_OBJECT, help="Extra fields, as a JSON object."),
)


@connections.command()
@fields_of_one
@click.option("--overwrite", is_flag=True, help="Replace an existing connection.")
def add(conn_id: str, *, overwrite: bool, **given: Any) -> None:
    """Add a connection, given as a URI, as JSON, or field by field."""
    _store(_given(conn_id, **given), existing="overwrite" if overwrite else "fail")


@connections.command("set")
@fields_of_one
def set_(conn_id: str, **given: Any) -> None:
    """Create or replace a connection, given as a URI, as JSON, or field by field."""
    _store(_given(conn_id, **given), existing="overwrite")


@connections.command()
@click.argument("conn_id")
@options.as_json
def test(conn_id: str) -> None:
    """Try a connection from this machine: log in if the client of its type is known, else open its host and port.

    The process of the command tries it, as in Airflow, so the command works without a worker. Workers may be in another
    network or have other drivers: run it on the machine of a worker to know what its tasks can reach. Like a task, it reads
    PACELINE_CONN_<ID> before the database. Exit 0 if it succeeds, 1 if it fails.
    """
    from scheduler.store.secrets import connections as store
    from workers.process.secrets_backend import EnvironmentBackend
    from workers.supervision.connection_tests import attempt

    connection = EnvironmentBackend(os.environ).connection(conn_id)
    if connection is None:
        connection = options.transact(store.connection, conn_id, options.cipher())
    result = attempt(connection)
    output.result({"conn_id": conn_id, "ok": result.ok, "message": result.message}, output.visible(result.message))
    click.get_current_context().exit(0 if result.ok else 1)


def _given(conn_id: str, *, conn_uri: str | None, conn_json: str | None, **fields: Any) -> Connection:
    given = {name: value for name, value in fields.items() if value is not None}
    if sum([conn_uri is not None, conn_json is not None, bool(given)]) != 1:
        raise click.UsageError("Give one of --conn-uri, --conn-json, or --conn-type with the other fields.")
    if conn_uri is not None:
        return Connection.from_uri(conn_id, options.typed(conn_uri))
    if conn_json is not None:
        return Connection.from_json(conn_id, options.typed(conn_json))
    if "conn_type" not in given:
        raise click.UsageError("--conn-type is missing.")
    if "conn_password" in given:
        given["conn_password"] = options.typed(given["conn_password"])
    return Connection.from_json(
        conn_id, {name.removeprefix("conn_") if name != "conn_type" else name: value for name, value in given.items()}
    )


def _store(connection: Connection, *, existing: "Existing") -> None:
    from scheduler.actions import stored

    stored.store(options.actor(), stored.New(connections=[connection]), existing=existing)
    click.echo(f"Connection {connection.conn_id} is stored.")


@connections.command()
@click.argument("conn_id")
@options.yes
def delete(conn_id: str, *, yes: bool) -> None:
    """Delete a connection."""
    from scheduler.actions import stored

    options.confirm(f"Delete connection {conn_id}?", yes)
    stored.delete(options.actor(), "connection", conn_id)
    click.echo(f"Connection {conn_id} is deleted.")


@connections.command("export")
@options.file
def export(file: Path) -> None:
    """Write all connections, unencrypted, to a JSON file that only you can read. Use - for standard output."""
    from scheduler.store.secrets import connections as store

    cipher = options.cipher()
    exported = [options.transact(store.connection, row["conn_id"], cipher).as_dict() for row in options.transact(store.connections)]
    values = {connection.pop("conn_id"): connection for connection in exported}
    options.write_private(file, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    output.say(f"Exported {output.count(len(values), 'connection')}.")


@connections.command("import")
@options.file
@click.option("--existing", type=click.Choice(["fail", "skip", "overwrite"]), default="fail", show_default=True)
def import_(file: Path, existing: "Existing") -> None:
    """Import connections from a file: JSON or YAML with {"id": "URI"} or {"id": {"conn_type": ..., ...}}, or .env with id=URI.

    All are stored, or none. `airflow connections export` writes such files.
    """
    from scheduler.actions import stored

    written = stored.store(options.actor(), stored.New(connections=read(file)), existing=existing)
    click.echo(f"Stored {output.count(len(written.connections), 'connection')}.")


def read(file: Path) -> list[Connection]:
    """The connections of such a file. PacelineError, without secrets, if one is not valid."""
    return [_imported(conn_id, given) for conn_id, given in options.read_export(file).items()]


def _imported(conn_id: str, given: Any) -> Connection:
    if isinstance(given, str):
        return Connection.parse(conn_id, given)
    if isinstance(given, dict):
        return Connection.from_json(conn_id, given)
    raise PacelineError(f"Connection {conn_id!r} must be a URI or a JSON object.")
