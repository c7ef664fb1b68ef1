"""`paceline scheduler`, `worker`, `waiter`, `web` and `flower` start processes; `paceline spark` prepares a worker machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import click

from paceline.authoring.arguments import is_reserved_queue
from scheduler.cli import lazy, options, output
from scheduler.process import hardening, role
from workers.flower import access

if TYPE_CHECKING:
    from scheduler.process.health import Health, Page
    from scheduler.process.role import ServiceManager
    from scheduler.settings import Settings


@click.command()
def scheduler() -> None:
    """Start a scheduler. Any number can run at once. SIGTERM or Ctrl-C shuts it down gracefully.

    If the database or the broker is not reachable yet, the scheduler logs that and waits.
    """
    settings = options.settings()
    from scheduler.services import loop

    observe(settings)
    click.get_current_context().exit(loop.run(settings))


@click.command()
@click.option("-q", "--queues", metavar="A,B", help="Queues to consume. Default: the default queue.")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, 1024),
    help="Number of pool processes. Default: 1 for the heavy Spark queue, else worker.concurrency.",
)
@click.option("--name", help="Name of this worker, unique among running workers. Default: derived from the host name.")
def worker(queues: str | None, concurrency: int | None, name: str | None) -> None:
    """Start a worker. On SIGTERM or Ctrl-C, its tasks have worker.grace_sec to finish."""
    settings = options.settings()
    names = _queues(settings.core.default_queue if queues is None else queues)
    from workers.celery_worker import app

    observe(settings)
    code = app.run(settings, queues=names, concurrency=concurrency or default_concurrency(settings, names), name=name)
    click.get_current_context().exit(code)


@click.command()
@click.option("--name", help="Name of this waiter. Default: derived from the host name.")
def waiter(name: str | None) -> None:
    """Start a waiter, which awaits the triggers of deferred tasks. Any number can run at once.

    On SIGTERM or Ctrl-C, the waiter releases its triggers, and another waiter takes them over immediately.
    """
    settings = options.settings()
    from workers.waiter import waiter as process

    observe(settings)
    click.get_current_context().exit(process.run(settings, name=name))


@click.command()
def web() -> None:
    """Start a web process, which serves the web UI and the REST API. Any number can run at once.

    The first start creates the account admin and prints its password once. On SIGTERM or Ctrl-C, open requests end first.
    """
    # Before the imports below, which take a second, and in which its user's programs could read the environment.
    hardening.close()
    from scheduler.api import serve

    settings = options.settings()
    options.refuse_taken_port("web", settings.web.address, settings.web.port)
    click.get_current_context().exit(serve.run(settings, say=output.say))


@click.group(cls=lazy.NounGroup)
def spark() -> None:
    """Prepare this machine for Spark tasks."""


@spark.command()
def archive() -> None:
    """Create the class archive of Spark, which lets JVMs start in 3 s instead of 5. An existing archive is kept.

    The archive takes half a minute to create and 200 MB of disk. All Spark workers of this Python environment use it. Run this
    command again after an upgrade of Java or PySpark; until then, JVMs start without the archive.
    """
    from workers.spark import java as archives

    settings = options.settings()
    if not archives.archive_path(settings).is_file():
        from workers.spark.sessions import archiving

        click.echo("Archiving Spark's classes, so that its JVMs start sooner; this takes half a minute.", err=True)
        archiving.make(settings)
    click.echo(f"Spark's classes are archived in {archives.archive_path(settings)}.")


def default_concurrency(settings: Settings, queues: Collection[str]) -> int:
    """Return worker.concurrency, or 1 for heavy Spark tasks if it is not set: each of them uses most of a machine."""
    if settings.core.heavy_spark_queue in queues and "concurrency" not in settings.worker.model_fields_set:
        return 1
    return settings.worker.concurrency


def _queues(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise click.BadParameter(f"{text!r} holds an empty name; write the queues as a,b.", param_hint="'-q'")
    if reserved := [name for name in names if is_reserved_queue(name)]:
        raise click.BadParameter(f"{reserved[0]!r} is a key that Paceline or Celery keeps in Redis.", param_hint="'-q'")
    return list(dict.fromkeys(names))


#: The name of a task is dag.task (the shadow of its message), and its args are the run.
TASK_COLUMNS = "name,args,state,worker,received,started,runtime,uuid"


@click.command()
def flower() -> None:
    """Start Flower, the web page that shows Celery workers and tasks.

    Flower listens on flower.address and flower.port. It accepts requests for IP addresses, localhost and flower.allowed_hosts, and
    enables worker events while it runs. FLOWER_BASIC_AUTH (user:password) and the other FLOWER_ variables apply. The Flower API is
    available only if FLOWER_BASIC_AUTH or FLOWER_UNAUTHENTICATED_API is set.
    """
    settings = options.settings()
    address, port = settings.flower.address, settings.flower.port
    options.refuse_taken_port("flower", address, port)
    # Before the packages of Celery run in this process, which holds the password of the broker.
    hardening.close()
    from scheduler.messaging import publisher
    from scheduler.process.role import ServiceManager

    app = publisher.celery_app(settings)
    access.refuse_revoke()
    # Tornado adds no handler of its own if the root logger has one.
    output.sayer(settings, "flower")(f"Flower listens on http://{address}:{port}.")
    arguments = {
        "address": address,
        "port": port,
        "tasks_columns": TASK_COLUMNS,
        "enable_events": True,
        "purge_offline_workers": 600,
    }
    # In Flower, the environment overrides options: an exported FLOWER_PORT must not override Paceline's settings.
    for name in arguments:
        os.environ.pop(f"FLOWER_{name}".upper(), None)
    from workers.flower import queues

    queues.install(settings)
    names = [name.strip().lower() for name in settings.flower.allowed_hosts.split(",") if name.strip()]
    access.guard([*names, address.lower()])
    _report_to(ServiceManager.take())
    app.start(["--quiet", "flower", *(f"--{name}={value}" for name, value in arguments.items())])


def _report_to(service_manager: ServiceManager) -> None:
    """Let the event loop that serves requests report to the service manager."""
    from tornado.ioloop import IOLoop, PeriodicCallback

    IOLoop.current().add_callback(service_manager.ready)
    if service_manager.interval_s:
        PeriodicCallback(service_manager.alive, service_manager.interval_s * 1000).start()


def observe(settings: Settings) -> None:
    """Turn on the configured metrics, tracing and lineage for this process. Without a setting, nothing of telemetry is imported."""
    if not (settings.metrics.prometheus or settings.metrics.statsd or settings.tracing.otlp_endpoint or settings.lineage.url):
        return

    def start(health: Health, ending: contextlib.ExitStack) -> Mapping[str, Page]:
        from scheduler.telemetry import parts

        return parts.start(settings, health, ending)

    role.extensions.append(start)
