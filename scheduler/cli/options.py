"""Shared parts of the commands: settings and engine on demand, and types and options that check arguments."""

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from zoneinfo import ZoneInfo

import click

from paceline.exceptions import ConflictError, UnreachableError
from scheduler.cli import output

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from scheduler.actions.actor import Actor
    from scheduler.messaging import wakeups
    from scheduler.messaging.message import Message
    from scheduler.settings import Settings
    from scheduler.store.secrets.cipher import Cipher

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
#: The number of runs among which a run ID is completed, newest first.
NEWEST_RUNS = 100
Completes = Callable[[click.Context, click.Parameter, str], list[str]]


def together(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator that applies several."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _stored(names: Callable[[dict[str, Any]], list[str]]) -> Completes:
    """A completion by names from the database. `names` gets the arguments before. Nothing is offered if it cannot be read."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception), context.scope(cleanup=False):
            return [name for name in names(context.params) if name.startswith(incomplete)]
        return []

    return complete


def _dag_ids(_: dict[str, Any]) -> list[str]:
    from scheduler.store.read import reads

    return [row["dag_id"] for row in transact(reads.dags)]


def _run_ids(given: dict[str, Any]) -> list[str]:
    from scheduler.store.read import reads

    return [row["run_id"] for row in transact(reads.runs, dag_id=given["dag_id"], limit=NEWEST_RUNS)]


def _task_ids(given: dict[str, Any]) -> list[str]:
    from scheduler.store.read import reads

    return [task["task_id"] for task in transact(reads.dag, given["dag_id"])["tasks"]]


def _pool_names(_: dict[str, Any]) -> list[str]:
    from scheduler.store.queueing import pools

    return [row["name"] for row in transact(pools.pools)]


complete_dags, complete_runs, complete_tasks, complete_pools = map(_stored, (_dag_ids, _run_ids, _task_ids, _pool_names))


dag = click.argument("dag_id", metavar="DAG", shell_complete=complete_dags)
run = together(dag, click.argument("run_id", metavar="RUN", shell_complete=complete_runs))
task = together(run, click.argument("task_id", metavar="TASK", shell_complete=complete_tasks))
map_index = click.option(
    "--map-index", type=click.IntRange(min=-1), default=-1, show_default=True, help="Map index of a mapped task instance."
)
history = click.option("--history", is_flag=True, help="Also print each earlier step, with the reason why it took so long.")
#: Adds --json, which `output.json_wanted` reads.
as_json = click.option("--json", is_flag=True, expose_value=False, callback=output.want_json, help="Print JSON.")
#: --json, and --wide for `output.table`.
as_table = together(
    as_json,
    click.option(
        "--wide", is_flag=True, expose_value=False, callback=output.want_wide, help="Show all columns, however wide the table."
    ),
)
#: The file of an export or import; - is standard output or input.
file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")

#: Seconds for which a command waits for a server that accepts no writes, as during a failover.
PATIENCE_S = 10.0
#: Seconds between two looks at a database for which a command waits.
WAIT_POLL_S = 1.0
wait_s = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    metavar="SECONDS",
    help="Try again for so long before exit 4.",
)


def settings() -> "Settings":
    """Return the settings of this command. They are read once."""
    from scheduler.settings import Settings

    root = click.get_current_context().find_root()
    loaded = root.meta.get("paceline.settings")
    if not isinstance(loaded, Settings):
        loaded = root.meta["paceline.settings"] = Settings.load()
    return loaded


def engine(*, check_schema: bool = True, as_owner: bool = False, wait_s: float = 0.0) -> "Engine":
    """Return the engine of this command, which is closed with it. Once, check that the database answers with the right schema.

    With `wait_s`, this is tried for so many seconds, even if the role is rejected: `paceline db migrate` may create it meanwhile.
    """
    from tenacity import stop_after_delay

    from scheduler.process import retries
    from scheduler.store.db import database, migrate

    root = click.get_current_context().find_root()
    key = f"paceline.engine.{check_schema}.{as_owner}"
    if key not in root.meta:
        chosen = settings().as_owner() if as_owner else settings()
        new_engine = database.create(chosen, pool_size=1, application="paceline cli", patience_s=PATIENCE_S)
        root.call_on_close(new_engine.dispose)

        def check() -> None:
            database.check(new_engine)
            if check_schema:
                migrate.check(new_engine)

        retries.repeated(
            lambda error: isinstance(error, UnreachableError),
            pause_s=min(WAIT_POLL_S, wait_s),
            failed=lambda error, number: output.say(f"{error} Waiting for it.") if number == 1 else None,
            stop=stop_after_delay(wait_s),
        )(check)
        root.meta[key] = new_engine
    found: Engine = root.meta[key]
    return found


def transact(work: "Callable[Concatenate[Connection, P], R]", /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a store function in a transaction of this command's engine."""
    from scheduler.store.db import database

    return database.transact(engine(), work, *args, **kwargs)


def cipher(*, make: bool = False) -> "Cipher":
    """Return the cipher of variables and connections; with `make`, create a missing key."""
    from scheduler.store.secrets.cipher import Cipher

    engine()  # the error about an unreachable database comes first
    return Cipher.of(settings(), make=make)


def confirm(question: str, agreed: bool, *, show: Callable[[], None] | None = None) -> None:
    """Ask before a change that cannot be undone, after `show` has printed what it is. No question if `agreed` (--yes).

    UsageError without a terminal: a script must say --yes.
    """
    if agreed:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can answer without a terminal: add --yes.")
    if show is not None:
        show()
    if not click.confirm(question, err=True):
        output.say("Nothing was changed.")
        click.get_current_context().exit(1)


def actor() -> "Actor":
    """The user of this command, as the one who acts."""
    from scheduler.actions.actor import Actor
    from scheduler.messaging import wakeups
    from scheduler.messaging.publisher import Publisher
    from scheduler.store.db import database

    def announce(action: "wakeups.Action", runs: Collection[int] = ()) -> None:
        with contextlib.closing(wakeups.Wakeups(settings(), timeout_s=wakeups.SEND_S)) as sender:
            sender.announce(action, runs)

    def publish(messages: "Sequence[Message]") -> None:
        with contextlib.closing(Publisher(settings(), timeout_s=wakeups.SEND_S)) as publisher:
            publisher.try_publish(messages)

    name = f"cli:{database.user()}"
    return Actor(settings=settings(), engine=engine(), announce=announce, publish=publish, name=name, made_by="cli")


def refuse_taken_port(section: str, address: str, port: int) -> None:
    """Raise ConflictError if the port is in use, to avoid a traceback later. Another process may still take it in between."""
    try:
        addresses = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with contextlib.closing(socket.socket(addresses[0][0], socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(addresses[0][4])
    except OSError as error:
        key = f"PACELINE_{section.upper()}"
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(f"Port {port} of {address} is taken: set {key}_PORT to another.") from None
        why = error.strerror
        raise ConflictError(f"{section.capitalize()} cannot listen on {address}:{port} ({why}): set {key}_ADDRESS.") from None


def standard_input() -> str:
    """Return standard input without the final newline."""
    return sys.stdin.read().removesuffix("\n")


def typed(value: str) -> str:
    """Return an argument, or the content of standard input for `-`."""
    return standard_input() if value == "-" else value


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file, or from standard input for `-`.

    UsageError if it is invalid. The message does not quote the content, which may be secret.
    """
    try:
        value = json.loads(standard_input() if str(file) == "-" else file.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise click.UsageError(f"{file} is not JSON.") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"{file} must hold a JSON object.")
    return value


def read_export(file: Path) -> dict[str, Any]:
    """Read a file of names with values: YAML or lines of `name=value` by its ending .yaml, .yml or .env, else a JSON object.

    UsageError if it is invalid. The message does not quote the content, which may be secret.
    """
    if file.suffix not in {".yaml", ".yml", ".env"}:
        return read_object(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise click.UsageError(f"{file} cannot be read: {getattr(error, 'strerror', 'it is not UTF-8')}.") from None
    if file.suffix == ".env":
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if not all("=" in line for line in lines):
            raise click.UsageError(f"{file} must hold lines of the form name=value.")
        return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    try:
        import yaml
    except ModuleNotFoundError:
        raise click.UsageError(f"{file} is YAML: install PyYAML with `pip install 'paceline[airflow]'`, or export JSON.") from None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise click.UsageError(f"{file} is not YAML.") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"{file} must hold names with values.")
    return {str(name): given for name, given in value.items()}


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, or to standard output for `-`."""
    if str(file) == "-":
        click.echo(text, nl=False)
        return
    try:
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}.") from None


class Parsed(click.ParamType[Any]):
    """The type of an option whose values `parse` converts. A ValueError has the error message."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _json_object(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_short(text)} is not JSON: {error}; write an object such as '{{\"day\": 1}}'.") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"{_short(text)} is JSON, but not an object such as '{{\"day\": 1}}'.")
    if "\\u0000" in json.dumps(parsed):
        raise ValueError("NUL characters cannot be stored; leave them out.")
    return parsed


def _moment(text: str) -> datetime:
    """A time. Without a UTC offset, it is in core.default_timezone, like schedules."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO 8601 time such as 2025-01-31T06:00:00+00:00.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(settings().core.default_timezone))


def _named_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} must be NAME=VALUE, such as day=1.")
    return name, value


def _run_id(text: str) -> str:
    """A run ID. It becomes the name of a folder, so its characters are limited."""
    from scheduler.store.runs.manual_runs import RUN_ID

    if not RUN_ID.fullmatch(text):
        raise ValueError(f"{text!r} may hold letters, digits, blanks and _.~:+- only, 1 to 250 of them.")
    return text


JSON_OBJECT = Parsed("json", _json_object)
MOMENT = Parsed("timestamp", _moment)
RUN_ID = Parsed("run id", _run_id)
logical_date = click.option(
    "--logical-date", "--date", "logical_date", type=MOMENT, help="Logical date, such as 2025-01-31T00:00:00+00:00. Default: now."
)
#: --conf and -p, which `with_params` puts together.
conf = together(
    click.option("--conf", type=JSON_OBJECT, help="A JSON object, available to tasks as `dag_run.conf`."),
    click.option(
        "-p", "--param", "given", type=Parsed("name=value", _named_value), multiple=True, metavar="NAME=VALUE",
        help="The value of a param, converted to its type. Can be repeated.",
    ),
)  # fmt: skip


def with_params(conf: dict[str, Any] | None, given: Sequence[tuple[str, str]], spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The conf with the values of -p, converted to the types of the params `spec`."""
    from paceline.authoring import params

    return {**(conf or {}), **{name: params.typed(spec, name, text) for name, text in given}} if given else conf


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else value[:57] + "...")
