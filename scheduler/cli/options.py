"""What the commands share: settings and engine on demand, and the types and options that check what a person typed."""

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from scheduler.settings import Settings

as_json = click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")


#: How long a command waits for a server that takes no writes just now, as during a failover.
PATIENCE_S = 10.0


def settings() -> "Settings":
    """The settings of this command, read once."""
    from scheduler.settings import Settings

    root = click.get_current_context().find_root()
    found = root.meta.get("paceline.settings")
    if not isinstance(found, Settings):
        found = root.meta["paceline.settings"] = Settings.load()
    return found


def engine(*, check_schema: bool = True, as_owner: bool = False) -> "Engine":
    """An engine whose database answers and has this version's schema; it closes with the command."""
    from scheduler.store.db import database, migrate

    chosen = settings().as_owner() if as_owner else settings()
    made = database.create(chosen, pool_size=1, application="paceline cli", patience_s=PATIENCE_S)
    click.get_current_context().find_root().call_on_close(made.dispose)
    database.check(made)
    if check_schema:
        migrate.check(made)
    return made


def wake(*tokens: str) -> None:
    """Wake a scheduler; without Redis it notices by itself a second later."""
    from scheduler.messaging.wakeups import Wakeups

    wakeups = Wakeups(settings())
    wakeups.wake(*tokens)
    wakeups.close()


def standard_input() -> str:
    """All of standard input, without a last line's end."""
    return sys.stdin.read().removesuffix("\n")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; - is standard input. UsageError, which quotes nothing of it: it may be secret."""
    try:
        found = json.loads(standard_input() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise click.UsageError(f"{file} is not JSON.") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"{file} must hold a JSON object.")
    return found


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read; - is standard output."""
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}.") from None


class JsonObject(click.ParamType[Any]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, dict):
            return value
        try:
            found = json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            self.fail(f"{_short(value)} is not JSON: {error}; write an object such as '{{\"day\": 1}}'.", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"{_short(value)} is JSON, but not an object such as '{{\"day\": 1}}'.", param, ctx)
        if "\\u0000" in json.dumps(found):
            self.fail("NUL characters cannot be stored; leave them out.", param, ctx)
        return found


class Moment(click.ParamType[Any]):
    """A moment; without an offset from UTC it is meant on the clocks of core.default_timezone, as schedules are."""

    name = "timestamp"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not an ISO 8601 time such as 2025-01-31T06:00:00+00:00.", param, ctx)
        if found.tzinfo is None:
            found = found.replace(tzinfo=ZoneInfo(settings().core.default_timezone))
        return found


class RunId(click.ParamType[Any]):
    """What may stand as a run id: it becomes a folder name."""

    name = "run id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from scheduler.store.runs.runs import RUN_ID

        if not RUN_ID.fullmatch(value):
            self.fail(f"{value!r} may hold letters, digits, blanks and _.~:+- only, 1 to 250 of them.", param, ctx)
        return value


JSON_OBJECT = JsonObject()
MOMENT = Moment()
RUN_ID = RunId()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")
