"""Backups of the database, by the programs pg_dump and pg_restore of PostgreSQL."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from psycopg2.extensions import make_dsn, parse_dsn

from paceline.exceptions import PacelineError, UsageError
from scheduler.embedded import servers
from scheduler.settings import Settings

#: Roles and rights belong to a server, and `paceline db migrate` creates them. Unlogged tables hold only rows that a crash may
#: lose.
PARTS = ("--no-owner", "--no-privileges")
WITHOUT = "--no-unlogged-table-data"


def dump(settings: Settings, server: int, file: Path) -> None:
    """Write all tables, as of one moment, to `file`, which only this user can read. Nothing has to stop.

    `server` is the major version of the server.
    An existing file is replaced when the new one is complete. UsageError if `file` has no name; PacelineError with the message of
    pg_dump if it fails.
    """
    if not file.name or "\0" in file.name:
        raise UsageError(f"{str(file)!r} is not the name of a file: name one, such as paceline.dump.")
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)
        _run("pg_dump", settings, server, "--format=custom", WITHOUT, *PARTS, f"--file={unfinished}")
        unfinished.rename(file)
    except OSError as error:
        raise PacelineError(f"{file} cannot be written: {error.strerror}.") from None
    finally:
        unfinished.unlink(missing_ok=True)


def load(settings: Settings, server: int, file: Path) -> None:
    """Create all tables of `file` in a database without them, in one transaction."""
    _run("pg_restore", settings, server, "--single-transaction", "--exit-on-error", *PARTS, str(file))


def _run(name: str, settings: Settings, server: int, *arguments: str) -> None:
    environment = dict(os.environ)
    if password := parse_dsn(settings.owner_database_url).get("password"):
        environment["PGPASSWORD"] = password  # a command line would show it to every user of the machine
    command = [_program(name, server), f"--dbname={_dsn(settings)}", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise PacelineError(f"{name} failed: {lines[0].removeprefix(f'{name}: ').removeprefix('error: ')}")


def _dsn(settings: Settings) -> str:
    parts = parse_dsn(settings.owner_database_url)
    return str(make_dsn(**{key: value for key, value in parts.items() if key != "password"}))


def _program(name: str, server: int) -> str:
    """The oldest program, of this machine or of the wheel, that is not older than the server. An older one rejects the server."""
    found: dict[int, str] = {}
    if installed := shutil.which(name):
        found[_major_version(installed)] = installed
    with contextlib.suppress(servers.EmbeddedError):
        found |= {version: str(folder / name) for version, folder in servers.installed_programs().items()}
    if suitable := [version for version in found if version >= server]:
        return found[min(suitable)]
    older = f"{name} of this machine is of version {max(found)}" if found else f"there is no {name} on this machine"
    raise PacelineError(f"The server is PostgreSQL {server}, but {older}: install the client programs of PostgreSQL {server}.")


def _major_version(program: str) -> int:
    """Parse `pg_dump (PostgreSQL) 15.18 (Debian ...)`; 0 for any other text."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(version[1]) if version else 0
