"""The `paceline` command. Each command has its own module, which is imported on first use."""

from collections.abc import Sequence

import click

from scheduler.cli import clash
from scheduler.cli.lazy import LazyGroup

#: Each command and its line in `paceline --help`. `scheduler.cli.<command>` holds the click command of the same name.
COMMANDS = {
    "init": "Create a project with a DAG, tests, settings and containers.",
    "demo": "Run the flights pipeline on a temporary stack and show the result.",
    "standalone": "Run all components on this machine until Ctrl-C.",
    "scheduler": "Start a scheduler.",
    "worker": "Start a worker.",
    "waiter": "Start a waiter, which awaits the triggers of deferred tasks.",
    "flower": "Start Flower, the web page that shows Celery workers and tasks.",
    "web": "Start a web process, which serves the pages and the REST API.",
    "users": "Create, list and delete web accounts, and manage their passwords and API tokens.",
    "db": "Create, migrate and check the database schema.",
    "dags": "List, show, pause, test, trigger, clear and delete DAGs.",
    "runs": "List, show, explain, watch, clear, mark and delete DAG runs.",
    "tasks": "List, clear and mark task instances, and read their logs.",
    "backfill": "Create, list, show, pause, resume and cancel backfills.",
    "assets": "List assets and record updates.",
    "notices": "List pending and failed callbacks and emails.",
    "pools": "List, create, change, delete, import and export pools.",
    "variables": "List, get, set, import and export variables.",
    "connections": "List, get, add, import and export connections to other systems.",
    "workers": "List and drain workers.",
    "queues": "List queues and their waiting tasks.",
    "autoscale": "Compute how many workers queues need.",
    "spark": "Prepare this machine for Spark tasks.",
    "migrate-airflow": "Rewrite a folder of Airflow DAG files, and import connections, variables and pools.",
    "config": "Show and validate the settings.",
    "doctor": "Check servers, versions and configuration, and show fixes.",
    "completion": "Print the completion script of a shell.",
    "version": "Print the version.",
    "alive": "Exit 0 if the scheduler, worker or waiter on this machine is healthy.",
}


@click.group(cls=LazyGroup, commands_by_module=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback on errors.")
@click.version_option(package_name="paceline", message="%(prog)s %(version)s")
def paceline(debug: bool) -> None:
    """Paceline is a distributed scheduler for data pipelines. PostgreSQL holds every decision, and Celery workers run the tasks.

    Exit codes: 0 success, 1 failure, 2 usage error, 3 DAG, run, task or pool not found, 4 database or broker unreachable,
    5 timeout.
    """
    clash.check()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the console script, and end the process with its exit code."""
    paceline.main(args=arguments, prog_name="paceline")
