"""`paceline flower`: runs Flower in this process, so that no password is on a command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from scheduler.cli import options, output
from workers.flower import access

if TYPE_CHECKING:
    from scheduler.process.service_manager import ServiceManager

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
    from scheduler.process import hardening

    # Before the packages of Celery run in this process, which holds the password of the broker.
    hardening.close()
    from scheduler.messaging import publisher
    from scheduler.process.service_manager import ServiceManager
    from workers.flower.control import refuse_revoke

    app = publisher.celery_app(settings)
    refuse_revoke()
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
