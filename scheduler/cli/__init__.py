"""The `paceline` command. The modules of its commands are imported on first use."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from paceline.exceptions import PacelineError
from scheduler.cli.lazy import LazyGroup

#: The sections of `paceline --help`, each with its commands and their lines.
SECTIONS = {
    "Start": {
        "init": "Create a project with a DAG, tests and settings.",
        "demo": "Run the flights pipeline and show its result.",
        "standalone": "Run everything on this machine until Ctrl-C.",
        "scheduler": "Start a scheduler.",
        "worker": "Start a worker.",
        "waiter": "Start a waiter, for deferred tasks.",
        "web": "Start the web UI and the REST API.",
        "flower": "Start Flower, which shows Celery workers.",
    },
    "DAGs and their runs": {
        "deploy": "Upload a folder of DAG files, or roll back.",
        "plan": "Show what a deploy would change.",
        "bundles": "List deployed versions and their files.",
        "dags": "List, show, test, trigger, pause and delete DAGs.",
        "runs": "List, show, watch, clear and delete DAG runs.",
        "tasks": "List, explain, clear tasks, and print logs.",
        "backfills": "Create, show, pause and cancel backfills.",
        "assets": "List assets and record updates.",
        "tables": "List Iceberg tables, and roll them back.",
    },
    "What DAGs use": {
        "variables": "List, get, set, delete and import variables.",
        "connections": "List, set, test and import connections.",
        "pools": "List, set, delete and import pools.",
        "queues": "List queues and their waiting tasks.",
    },
    "Operate": {
        "doctor": "Find problems and show how to fix them.",
        "alive": "Exit 0 if the process of this machine is healthy.",
        "workers": "List and drain workers.",
        "notices": "List pending and failed callbacks and emails.",
        "autoscale": "Compute how many workers queues need.",
    },
    "Administer": {
        "db": "Migrate, check, clean and back up the database.",
        "users": "Manage web accounts and API tokens.",
        "config": "Show and check the settings.",
        "spark": "Prepare this machine for Spark tasks.",
        "migrate-airflow": "Rewrite a folder of Airflow DAG files.",
        "completion": "Print the completion script of a shell.",
        "version": "Print the version.",
    },
}
#: Each command and its line.
COMMANDS = {name: line for commands in SECTIONS.values() for name, line in commands.items()}
#: The modules of this package that hold several commands. Each other command has the module of its name.
MODULES = {
    **dict.fromkeys(("scheduler", "worker", "waiter", "web", "spark", "flower"), "processes"),
    **dict.fromkeys(("notices", "workers"), "queues"),
    **dict.fromkeys(("alive", "doctor"), "health"),
    "standalone": "demo",
    **dict.fromkeys(("bundles", "plan"), "deploy"),
    "assets": "tables",
}
#: The variable in which a completion script passes the incomplete words; click derives it from the name of the program.
COMPLETION_VARIABLE = "_PACELINE_COMPLETE"
#: Where this distribution is installed.
FOLDER = Path(__file__).resolve().parents[2]
#: Earlier names, which still work.
ALIASES = {"backfill": "backfills"}


class ClashError(PacelineError):
    """The distribution `scheduler` of PyPI has installed files into our package of that name, or we into its."""


def refuse_clash(folder: Path = FOLDER) -> None:
    """Raise ClashError if the distribution `scheduler` is installed in the same folder as Paceline. It takes one listing."""
    for metadata in folder.glob("scheduler-*.*-info"):
        raise ClashError(
            f"The package {metadata.name.rsplit('.', 1)[0]} is installed next to Paceline, and both have a module `scheduler`:"
            " run `pip uninstall scheduler`, then `pip install --force-reinstall --no-deps paceline`."
        )


@click.group(
    cls=LazyGroup, sections=SECTIONS, modules=MODULES, aliases=ALIASES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--debug", is_flag=True, help="Show a traceback on errors.")
@click.version_option(package_name="paceline", message="%(prog)s %(version)s")
def paceline(debug: bool) -> None:
    """Paceline is a distributed scheduler for data pipelines. PostgreSQL holds every decision, and Celery workers run the tasks.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 DAG, run, task or pool not found, 4 database or broker unreachable,
    5 timeout.
    """
    refuse_clash()


@paceline.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Bash and zsh: add `eval "$(paceline completion bash)"` to ~/.bashrc, or with zsh to ~/.zshrc. Fish: save the output as
    ~/.config/fish/completions/paceline.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(paceline, {}, "paceline", COMPLETION_VARIABLE).source())


@paceline.command()
def version() -> None:
    """Print the version."""
    click.echo(importlib.metadata.version("paceline"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script, and end the process with its exit code."""
    paceline.main(args=arguments, prog_name="paceline")
