"""The `paceline` command: one module a noun, imported only when its noun is used."""

from collections.abc import Sequence

import click

from scheduler.cli.lazy import LazyGroup

#: Every noun with the line `paceline --help` shows; `scheduler.cli.<noun>` holds the click command of the same name.
COMMANDS = {
    "demo": "Run the flights pipeline on a throw-away stack and show its result.",
    "standalone": "Start everything on this machine; Ctrl-C stops it.",
    "scheduler": "Start a scheduler.",
    "worker": "Start a worker.",
    "waiter": "Start a waiter, which awaits the triggers of deferred tasks.",
    "flower": "Start Flower, the page that shows Celery's workers and tasks.",
    "db": "Make and check the database schema.",
    "dags": "List, show, pause, test, trigger, clear and delete DAGs.",
    "runs": "List, show, watch, clear, mark and delete DAG runs.",
    "tasks": "List, clear and mark task instances, and read their logs.",
    "backfill": "Make, list, show, pause, resume and cancel backfills.",
    "assets": "List assets, and say that one was updated.",
    "notices": "List callbacks and mails that wait or failed.",
    "pools": "List, set and delete pools.",
    "variables": "List, get and set variables.",
    "connections": "List, get and add connections to other systems.",
    "workers": "List the workers.",
    "queues": "List the queues, and what waits for each.",
    "spark": "Prepare this machine for Spark tasks.",
    "config": "Show and check the settings.",
    "doctor": "Say what is reachable, which versions run, and what to fix.",
    "version": "Print the version.",
    "alive": "Exit 0 if the scheduler, worker or waiter on this machine is well.",
}


@click.group(cls=LazyGroup, commands_by_module=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a stack trace when something goes wrong.")
@click.version_option(package_name="paceline", message="%(prog)s %(version)s")
@click.pass_context
def paceline(context: click.Context, debug: bool) -> None:
    """Paceline schedules DAGs of tasks: decided in PostgreSQL, run by Celery, mostly PySpark.

    Exit codes: 0 done, 1 what was asked for failed, 2 wrong usage, 3 no such DAG, run, task or pool, 4 database or broker
    unreachable, 5 timed out waiting.
    """
    context.obj = {"debug": debug}


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script; ends the process with the exit code."""
    paceline.main(args=arguments, prog_name="paceline")
