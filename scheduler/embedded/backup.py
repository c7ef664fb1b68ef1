"""Backups of the database, by the programs pg_dump and pg_restore of PostgreSQL."""

import os
import shutil
import subprocess
from pathlib import Path

from psycopg2.extensions import make_dsn, parse_dsn

from scheduler.embedded import servers
from scheduler.exceptions import PacelineError
from scheduler.settings import Settings

#: Roles and rights belong to a server, and `paceline db migrate` creates them. Unlogged tables hold only what a crash may lose.
PARTS = ("--no-owner", "--no-privileges")
WITHOUT = "--no-unlogged-table-data"


def dump(settings: Settings, file: Path) -> None:
    """Write all tables, as of one moment, to `file`, which only this user can read. Nothing has to stop.

    An existing file is replaced when the new one is complete. PacelineError with the message of pg_dump if it fails.
    """
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)
        _run("pg_dump", settings, "--format=custom", WITHOUT, *PARTS, f"--file={unfinished}")
        unfinished.rename(file)
    except OSError as error:
        raise PacelineError(f"{file} cannot be written: {error.strerror}.") from None
    finally:
        unfinished.unlink(missing_ok=True)


def load(settings: Settings, file: Path) -> None:
    """Create all tables of `file` in a database without them, in one transaction."""
    _run("pg_restore", settings, "--single-transaction", "--exit-on-error", *PARTS, str(file))


def _run(name: str, settings: Settings, *arguments: str) -> None:
    environment = dict(os.environ)
    if password := parse_dsn(settings.owner_database_url).get("password"):
        environment["PGPASSWORD"] = password  # a command line would show it to every user of the machine
    command = [_program(name, settings), f"--dbname={_dsn(settings)}", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise PacelineError(f"{name} failed: {lines[0].removeprefix(f'{name}: ').removeprefix('error: ')}")


def _dsn(settings: Settings) -> str:
    parts = parse_dsn(settings.owner_database_url)
    return str(make_dsn(**{key: value for key, value in parts.items() if key != "password"}))


def _program(name: str, settings: Settings) -> str:
    """The program of the embedded server; for another server that of this machine, which is probably as new as the server."""
    if settings.database.url is not None and (installed := shutil.which(name)):
        return installed
    try:
        return str(servers.programs_of(settings.home / "postgres") / name)
    except servers.EmbeddedError:
        raise PacelineError(f"There is no {name} on this machine: install the client programs of PostgreSQL.") from None
