"""`paceline completion`: prints the script with which a shell completes commands, options, and names from the database."""

import contextlib
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import get_completion_class

from scheduler.cli.late import pools, reads

#: The variable in which the script passes the incomplete words; click derives it from the name of the program.
VARIABLE = "_PACELINE_COMPLETE"

#: The number of runs among which a run ID is completed, newest first.
NEWEST = 100
Completes = Callable[[click.Context, click.Parameter, str], list[str]]


def _stored(names: Callable[[dict[str, Any]], list[str]]) -> Completes:
    """A completion by names from the database. `names` gets the arguments before. Nothing is offered if it cannot be read."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        with contextlib.suppress(Exception), context.scope(cleanup=False):
            return [name for name in names(context.params) if name.startswith(incomplete)]
        return []

    return complete


def _read(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from scheduler.cli import options

    return options.transact(function, *args, **kwargs)


def _dags(_: dict[str, Any]) -> list[str]:
    return [row["dag_id"] for row in _read(reads.dags)]


def _runs(given: dict[str, Any]) -> list[str]:
    return [row["run_id"] for row in _read(reads.runs, dag_id=given["dag_id"], limit=NEWEST)]


def _tasks(given: dict[str, Any]) -> list[str]:
    return [task["task_id"] for task in _read(reads.dag, given["dag_id"])["tasks"]]


def _pools(_: dict[str, Any]) -> list[str]:
    return [row["name"] for row in _read(pools.pools)]


of_dags, of_runs, of_tasks, of_pools = map(_stored, (_dags, _runs, _tasks, _pools))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Bash and zsh: add `eval "$(paceline completion bash)"` to ~/.bashrc, or with zsh to ~/.zshrc. Fish: save the output as
    ~/.config/fish/completions/paceline.fish.
    """
    from scheduler.cli import paceline

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(paceline, {}, "paceline", VARIABLE).source())
