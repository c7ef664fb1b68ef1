"""The root command group: it imports commands on first use, and turns every error into a message and an exit code."""

import difflib
import importlib
import sys
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from paceline.exceptions import PacelineError

INTERRUPTED = 130
#: A limit from here on only says how PostgreSQL stores the number.
LARGEST = 2**31 - 1


class NounGroup(click.Group):
    """A group whose error about an unknown command suggests a similar one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"`{ctx.command_path} --help` lists the commands."
            ctx.fail(f"There is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


class LazyGroup(NounGroup):
    """A group with the names and help lines of its commands, which are imported on first use.

    The click command `name` is in the module `modules[name]` of `scheduler.cli`, or else in that of its own name. A dash in the
    name of a command is an underscore there. A command that was added with `add_command` is not imported. `aliases` are other
    names of commands, which `--help` does not list.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]],
        modules: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules or {}
        self._sections = sections
        self._help_lines = {name: line for commands in sections.values() for name, line in commands.items()}
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help_lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self._aliases.get(cmd_name, cmd_name)
        if cmd_name not in self._help_lines or cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"scheduler.cli.{self._modules.get(name, name)}"), name)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Without this, each completion would import all commands for their help lines.
        commands = [CompletionItem(name, help=line) for name, line in self._help_lines.items() if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._help_lines))
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", line) for name, line in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            raise _number_error(error) or error from None
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            raise
        except Exception as error:
            _end(error, debug=bool(ctx.params.get("debug")))


def _number_error(error: click.BadParameter) -> click.UsageError | None:
    """The error for a value that is no number or out of range, which says what the parameter takes; None for any other error."""
    if error.param is None:
        return None
    kind = error.param.type
    if not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return None
    number = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    if low is not None:
        number += f" from {low:,} to {high:,}" if high is not None and high < LARGEST else f" of at least {low:,}"
    given = error.message.partition(" is not ")[0].strip("'")
    hint = error.param.get_error_hint(error.ctx)
    name = max(hint.split(" / "), key=len).strip("'")  # the long name of an option
    return click.UsageError(f"{name} must be {number}, not {given!r}.", error.ctx)


def _end(error: Exception, *, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    known = as_paceline_error(error)
    hint = "" if debug else " `paceline --debug ...` shows where."
    text = str(error).strip().splitlines() or ["no message"]
    shown = click.ClickException(str(known) if known is not None else f"Unexpected {type(error).__name__}: {text[0]}.{hint}")
    shown.exit_code = 1 if known is None else known.exit_code  # type: ignore[misc]
    raise shown


def as_paceline_error(error: Exception) -> PacelineError | None:
    """Convert an error of the database or broker into a PacelineError. None for other errors."""
    if isinstance(error, PacelineError):
        return error
    if isinstance(error, ModuleNotFoundError):
        from scheduler.process import extras

        return extras.as_paceline_error(error, "This command")
    if isinstance(error, RecursionError):
        return PacelineError("A stored value is nested too deeply to be shown.")
    # A library that is not imported cannot have raised the error, and importing it here would slow down every error.
    libraries = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    if "sqlalchemy" in libraries or "psycopg2" in libraries:
        return _of_database(error)
    if libraries & {"redis", "kombu"}:
        return _of_broker(error)
    return None


def _of_database(error: Exception) -> PacelineError | None:
    import psycopg2
    from sqlalchemy.exc import DBAPIError

    from paceline.exceptions import UnreachableError
    from scheduler.store.db import database, sqlstates

    if isinstance(error, DBAPIError):
        code = getattr(error.orig, "pgcode", None)
        if sqlstates.is_passing(error.orig) or (code or "")[:2] in {"28", "3D"} or code == sqlstates.NO_RIGHT:
            return database.translate(error)
    if isinstance(error, psycopg2.OperationalError):
        return UnreachableError(
            f"PostgreSQL does not answer: {_first_line(error)}.", fix="Start it, or correct PACELINE_DATABASE_URL."
        )
    if isinstance(error, DBAPIError) and isinstance(error.orig, psycopg2.ProgrammingError) and "dsn" in str(error.orig):
        return UnreachableError(f"PACELINE_DATABASE_URL cannot be read: {_first_line(error.orig)}.", fix="Correct it.")
    return None


def _of_broker(error: Exception) -> PacelineError | None:
    import redis
    from kombu.exceptions import OperationalError

    from scheduler.messaging import brokers

    cause = error.__cause__ if isinstance(error, OperationalError) and error.__cause__ else error
    if isinstance(error, redis.RedisError | OperationalError):
        return brokers.translate(cause)
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
