"""`paceline alive`, and `paceline doctor --role`: the health of the processes of a role on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from paceline.exceptions import PacelineError
from scheduler.cli import options, output
from scheduler.process import health_server, pidfile

if TYPE_CHECKING:
    from scheduler.settings import Settings

ROLES = ("scheduler", "worker", "waiter")
SILENT = f"It does not answer within {health_server.ANSWER_S:g} s."
#: The health of a process: its name, status, why it is unhealthy, and its parts.
Health = dict[str, Any]


class UnhealthyError(PacelineError):
    """A process of this role is unhealthy, or none runs."""


@click.command()
@click.argument("role", metavar="KIND", type=click.Choice(ROLES))
def alive(role: str) -> None:
    """Exit 0 if the scheduler, worker or waiter on this machine is healthy, else 1. Short form of `paceline doctor --role`."""
    examine(role)


def examine(role: str) -> None:
    """Raise UnhealthyError unless processes of this role run on this machine and all are healthy.

    They are all processes with a socket in this home, or else the one at the port of the role.
    """
    settings = options.settings()
    section = getattr(settings, role)
    healths = list(_by_socket(settings, role))
    if not healths and section.health_port:
        healths = list(_by_port(section.health_address, section.health_port))
    wrong = [health for health in healths if health["status"] != "healthy"]
    if output.json_wanted():
        output.print_json({"ok": bool(healths) and not wrong, "role": role, "processes": healths})
    if not healths:
        raise UnhealthyError(f"No {role} runs on this machine with this home: see its log, or start one with `paceline {role}`.")
    if wrong:
        raise UnhealthyError(" ".join(f"{health['process']}: {health['message']}" for health in wrong))


def _by_socket(settings: Settings, role: str) -> Iterator[Health]:
    for path in pidfile.sockets(settings.run_folder, role):
        try:
            report = health_server.ask(path)
        except TimeoutError:
            yield _unhealthy(path.stem, SILENT)
        except OSError as error:
            yield _unhealthy(path.stem, f"It cannot be reached: {error.strerror}.")
        else:
            yield from _reported(report)


def _by_port(address: str, port: int) -> Iterator[Health]:
    here = "127.0.0.1" if address in {"0.0.0.0", "::", ""} else address  # noqa: S104 - every address includes this one
    try:
        yield from _reported(health_server.ask_port(here, port))
    except TimeoutError:
        yield _unhealthy(f"{here}:{port}", SILENT)


def _unhealthy(process: str, message: str) -> Health:
    return {"process": process, "status": "unhealthy", "message": message, "parts": {}}


def _reported(report: Health | None) -> Iterator[Health]:
    if report is not None:
        wrong = [part["message"] for part in report["parts"].values() if part["status"] == "unhealthy"]
        names = {name: report[name] for name in ("process", "status")}
        yield names | {"message": " ".join(wrong), "parts": report["parts"]}
