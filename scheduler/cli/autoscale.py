"""`paceline autoscale`: computes how many workers queues need."""

from __future__ import annotations

import functools
import json
import threading
import time
from dataclasses import asdict
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import options, output
from scheduler.process import hardening, health

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Engine

    from scheduler.deciding.worker_count import Autoscaler

    #: Returns the workload of the queues, with the number of workers.
    Decide = Callable[[], dict[str, Any]]

PATH = "/workers"


@click.command()
@click.option(
    "--queue", "queues", metavar="QUEUE", multiple=True, required=True, help="Queue of the workers. Repeat it for several."
)
@click.option("--min", "minimum", type=click.IntRange(min=0), default=0, show_default=True, help="Minimum number of workers.")
@click.option("--max", "maximum", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number of workers.")
@click.option(
    "-c", "--concurrency", type=click.IntRange(min=1), help="Tasks that one worker runs at once. Default: worker.concurrency."
)
@click.option(
    "--drain-time",
    type=click.FloatRange(min=1),
    default=300,
    show_default=True,
    help="Seconds in which workers should finish a backlog.",
)
@click.option(
    "--service-time",
    type=click.FloatRange(min=0, min_open=True),
    default=10,
    show_default=True,
    help="Seconds that a task takes, used until a task of the queues has ended.",
)
@click.option(
    "--cooldown",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="Seconds for which the number must be lower before it falls.",
)
@click.option("--watch", is_flag=True, help="Print the number whenever it changes, until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=5, show_default=True, help="With --watch, seconds between decisions."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Serve GET /workers on this port until Ctrl-C, as JSON, for KEDA.")
@click.option("--address", default="127.0.0.1", show_default=True, help="With --port, the address to listen on.")
@options.as_json
def autoscale(
    *, queues: tuple[str, ...], minimum: int, maximum: int, concurrency: int | None, drain_time: float, service_time: float,
    cooldown: float, watch: bool, interval: float, port: int | None, address: str,
) -> None:  # fmt: skip
    """Print the number of workers that queues need, computed from their backlog, its age, and the duration of their tasks.

    The command starts and stops no worker. The number is at least that of the workers that the running tasks need, and 0 if
    nothing waits or runs. Tasks that wait for a slot of a pool do not count.
    """
    from scheduler.deciding.worker_count import Autoscaler, Limits

    if maximum < minimum:
        raise click.UsageError(f"--max {maximum} is less than --min {minimum}.")
    settings = options.settings()
    limits = Limits(
        minimum=minimum,
        maximum=maximum,
        concurrency=concurrency or settings.worker.concurrency,
        drain_s=drain_time,
        default_service_s=service_time,
    )
    if watch or port is not None:
        hardening.close()
        say = output.sayer(settings, "autoscaler")
    decide = functools.partial(decision, Autoscaler(limits, cooldown_s=cooldown), options.engine(), queues)
    if port is not None:
        options.refuse_taken_port("autoscale", address, port)
        with server(decide, address, port) as serving:
            say(f"GET http://{address}:{port}{PATH} returns the number of workers.")
            serving.serve_forever()
    elif watch:
        _watch(decide, interval, say)
    else:
        decided = decide()
        output.result(decided, str(decided["workers"]))


def decision(autoscaler: Autoscaler, engine: Engine, queues: Sequence[str]) -> dict[str, Any]:
    """The workload of these queues, with the number of workers."""
    from scheduler.store.db.database import transact
    from scheduler.store.read import operations

    load = transact(engine, operations.of_queues, queues, window_s=autoscaler.limits.drain_s)
    return {"queues": [*queues], "workers": autoscaler.decide(load), **asdict(load)}


def _watch(decide: Decide, interval_s: float, say: Callable[[str], None]) -> None:
    """Print the number whenever it changes. An error is printed, and the next attempt follows."""
    last = None
    while True:
        try:
            decided = decide()
        except Exception as error:
            say(f"No decision: {_reason(error)}")
        else:
            if decided["workers"] != last:
                last = decided["workers"]
                click.echo(json.dumps(decided) if output.json_wanted() else str(last))
        time.sleep(interval_s)


def server(decide: Decide, address: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the number of workers. It needs no login: the number is no secret, and clients change nothing."""
    handler = type("Handler", (_Handler,), {"decide": staticmethod(decide), "lock": threading.Lock()})
    return ThreadingHTTPServer((address, port), handler)


class _Handler(health.Handler):
    decide: Decide
    lock: threading.Lock

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/alive":
            self.answer(200, {"alive": True})
        elif path != PATH:
            self.answer(404, {"error": f"There is only {PATH} here."})
        else:
            try:
                with self.lock:
                    decided = self.decide()
            except Exception as error:
                self.answer(503, {"error": _reason(error)})
            else:
                self.answer(200, decided)


def _reason(error: Exception) -> str:
    from scheduler.cli.lazy import as_paceline_error

    return str(as_paceline_error(error) or type(error).__name__)
