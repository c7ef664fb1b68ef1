"""`paceline demo`: runs the flights pipeline on a temporary stack and shows its result."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import os
import shutil
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import states
from paceline.exceptions import NotFoundError, PacelineError, WaitTimeoutError
from scheduler.cli import options, output

if TYPE_CHECKING:
    from rich.console import Console
    from sqlalchemy import Engine

    from scheduler.settings import Settings


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Workers for the default queue, in addition to the Spark worker.",
)
def standalone(workers: int) -> None:
    """Run PostgreSQL, Redis, two schedulers, workers, a waiter, a web process and Flower until Ctrl-C or SIGTERM.

    Set PACELINE_DATABASE_URL and PACELINE_BROKER_URL to use other servers instead of the embedded ones. All files are below
    PACELINE_HOME.
    """
    from rich.text import Text

    from scheduler.embedded import stack
    from scheduler.process import hardening
    from scheduler.testing import folder

    hardening.close()
    settings = options.settings()
    screen = output.console()
    with stack.until_signalled(output.say):
        output.say(f"Starting on {settings.home} ...")
        wanted = stack.default_workers(settings, workers=workers)
        with stack.running_stack(settings, say=output.say, workers=wanted, web=True) as running:
            rows = [
                {"process": name, "pid": running.supervisor.pid(name), "log": str(running.supervisor.log(name))}
                for name in running.supervisor.names()
            ]
            output.table(rows, ["process", "pid", "log"], empty="Nothing runs.")
            where = {
                "DAG files": settings.dags_folder,
                "web": running.web_url,
                "web login, once": running.web_link,
                **({"web account": f"admin  {running.web_password}"} if running.web_password else {}),
                "flower": running.flower_url,
                "flower login": (running.flower_login or "set by the environment").replace(":", "  "),
                "home": f"{settings.home}  (PACELINE_HOME={settings.home} paceline dags list)",
            }
            output.facts({name: str(value) for name, value in where.items()})
            if left := stack.wait_for_dags(settings, folder.listed(settings) or []):
                output.say(f"{output.count(left, 'DAG file')} not parsed yet: `paceline dags errors` shows errors later.")
            screen.print(Text("Ready. Ctrl-C ends everything."))
            try:
                threading.Event().wait()
            finally:
                output.say("Ending: workers first, the servers last ...")


DAG_ID = "flights"
#: Seconds in which the DAG file must be parsed.
PARSE_LIMIT_S = 120.0
POLL_S = 0.2
LOG_LINES = 15
DELAY_COLUMNS = ("carrier", "flights", "mean_dep_delay_min", "mean_arr_delay_min", "share_late_15")


class DemoFailedError(PacelineError):
    """The flights pipeline did not succeed."""


@click.command()
@click.option("--keep", is_flag=True, help="Leave the stack running until Ctrl-C.")
def demo(keep: bool) -> None:
    """Run the flights pipeline (departures from New York in 2013) on Spark in a temporary stack, and show the result.

    The stack uses PACELINE_HOME if set, else ~/.paceline/demo, where it starts with an empty database each time. The results stay
    in its data folder.
    """
    from scheduler.embedded import stack
    from scheduler.process import hardening
    from scheduler.settings import Settings
    from scheduler.store.db import database

    hardening.close()
    settings = _demo_settings(Settings.load())
    screen = output.console()
    run: dict[str, Any] | None = None
    with stack.until_signalled(output.say):
        output.say(f"Starting PostgreSQL, Redis, two schedulers, two workers and Flower on {settings.home} ...")
        forget = None if "PACELINE_HOME" in os.environ else _forget
        with stack.running_stack(settings, say=output.say, waiters=0, web=keep, prepare=forget) as running:
            output.say(
                f"All processes are running. Flower: {running.flower_url} (login {running.flower_login})."
                f" Logs: {running.settings.home / 'logs'}"
            )
            engine = database.create(settings, pool_size=1, application="paceline demo")
            try:
                run = _run_flights(engine, settings, screen)
            finally:
                engine.dispose()
            _show_result(settings, run, screen)
            if keep:
                output.say(f"Paceline is at {running.web_url}; this link logs you in once: {running.web_link}")
                if running.web_password:
                    output.say(f"Later, log in as admin with the password {running.web_password}")
                output.say(f"The stack stays up until Ctrl-C; `PACELINE_HOME={settings.home} paceline runs list` lists its runs.")
                threading.Event().wait()
    if run is None:
        raise click.Abort
    if run["state"] != states.RunState.SUCCESS:
        raise DemoFailedError(f"Run {run['run_id']} of {DAG_ID} ended {run['state']}.")


def _demo_settings(settings: Settings) -> Settings:
    """Return the user's settings with embedded servers, a separate home and the folder of the flights DAG."""
    from scheduler.settings import Paths
    from scheduler.settings.sections import Broker, Database

    home = settings.home if "PACELINE_HOME" in os.environ else Path("~/.paceline/demo").expanduser()
    paths = Paths(home=home, dags_folder=_dags_folder(settings))
    worker = settings.worker.model_copy(update={"database_url": None})
    tables = settings.tables
    if not tables.warehouse and importlib.util.find_spec("pyiceberg") is not None:
        # Its tasks on Spark use no tables, so nothing needs to be fetched for them.
        tables = tables.model_copy(update={"warehouse": str(home / "warehouse"), "spark_packages": "none"})
    own = {"paths": paths, "database": Database(), "broker": Broker(), "worker": worker, "tables": tables}
    return settings.model_copy(update=own)


def _dags_folder(settings: Settings) -> Path:
    """Return the configured DAGs folder if it has the flights DAG, or else that of the checkout or the wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (settings.dags_folder, package.parent / "dags", package / "examples"):
        if (folder / f"{DAG_ID}.py").is_file():
            return folder
    raise NotFoundError(
        f"{settings.dags_folder} holds no {DAG_ID}.py: install Paceline from a wheel, or run the demo in a checkout."
    )


def _forget(settings: Settings) -> None:
    """Remove the database, tables and logs of an earlier demo. The files of its results stay."""
    from scheduler.embedded import servers

    servers.end_orphans(settings.home / "postgres")
    for name in ("postgres", "postgres.new", "logs", "warehouse"):
        if (settings.home / name).exists():
            shutil.rmtree(settings.home / name)


def _run_flights(engine: Engine, settings: Settings, screen: Console) -> dict[str, Any]:
    from scheduler.cli import progress
    from scheduler.messaging import wakeups
    from scheduler.store.db import database
    from scheduler.store.runs import manual_runs

    _wait_for_dag(engine)
    run_id = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    created = database.transact(engine, manual_runs.trigger, DAG_ID, run_id=run_id, triggered_by="demo", core=settings.core)
    with contextlib.closing(wakeups.Wakeups(settings)) as sender:
        sender.announce("run triggered", {created.id})
    return progress.watch_run(engine, DAG_ID, run_id, console=screen)


def _wait_for_dag(engine: Engine) -> None:
    """Wait until a scheduler has parsed the DAG file. DemoFailedError if the file has an import error."""
    from scheduler.store.db import database
    from scheduler.store.read import reads

    deadline = time.monotonic() + PARSE_LIMIT_S
    while time.monotonic() < deadline:
        for error in database.transact(engine, reads.import_errors):
            if Path(error["file"]).name == f"{DAG_ID}.py":
                raise DemoFailedError(f"{error['file']} cannot be read: {error['message']}")
        try:
            if database.transact(engine, reads.dag, DAG_ID)["is_active"]:
                return
        except NotFoundError:
            pass
        time.sleep(POLL_S)
    raise WaitTimeoutError(f"No scheduler has read {DAG_ID}.py within {PARSE_LIMIT_S:.0f} s: see its log.")


def _show_result(settings: Settings, run: dict[str, Any], screen: Console) -> None:
    from rich.text import Text

    from scheduler.cli import progress

    if run["state"] != states.RunState.SUCCESS:
        _show_failures(settings, run, screen)
        return
    folder = settings.home / "data" / DAG_ID / run["run_id"]
    with (folder / "carrier_delays.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    screen.print(Text("\nDelays by carrier", style="bold"))
    output.table(rows, [name for name in DELAY_COLUMNS if rows and name in rows[0]], empty="carrier_delays.csv is empty.")
    ran = [task for task in run["tasks"] if task["started_at"] is not None]
    followed = sum(1 for task in ran if not str(task["queued_by"]).startswith("scheduler"))
    screen.print(Text(f"Report: {folder / 'report.html'}"))
    if settings.tables.warehouse:
        screen.print(Text(f"Iceberg tables: {settings.tables.warehouse}/{DAG_ID}"))
    screen.print(
        Text(
            f"{len(ran)} tasks ran in {progress.duration(run['started_at'], run['ended_at'])}; "
            f"{followed} of them were queued by fast-follow, by the worker that ran the task before it."
        )
    )


def _show_failures(settings: Settings, run: dict[str, Any], screen: Console) -> None:
    """Print the failed tasks, each with the end of its newest log."""
    from rich.text import Text

    from scheduler.settings import log_paths

    for task in run["tasks"]:
        if task["state"] != states.TaskState.FAILED:
            continue
        screen.print(Text(f"\n{task['task_id']} failed: {task['reason'] or 'no reason was given'}", style="bold red"))
        names = {key: task[key] for key in ("dag_id", "run_id", "task_id", "map_index", "try_number")}
        path = Path(log_paths.try_path(settings.logs_folder, **names))
        try:
            with path.open(encoding="utf-8", errors="replace") as log:
                screen.print(Text(f"{path}:\n" + "".join(deque(log, LOG_LINES)).rstrip()))
        except OSError as error:
            screen.print(Text(f"{path} cannot be read: {error.strerror}"))
