"""Reads the health of the processes of a role on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler.cli import options, output
from scheduler.exceptions import PacelineError
from scheduler.process import health_server, pidfile

if TYPE_CHECKING:
    from scheduler.settings import Settings

ROLES = ("scheduler", "worker", "waiter")


class UnhealthyError(PacelineError):
    """A process of this role is unhealthy, or none runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHealth:
    """The health of a process. `message` is why it is unhealthy."""

    process: str
    healthy: bool
    message: str = ""
    parts: dict[str, dict[str, str]]

    def to_dict(self) -> dict[str, Any]:
        status = "healthy" if self.healthy else "unhealthy"
        return {"process": self.process, "status": status, "message": self.message, "parts": self.parts}


def ask(settings: Settings, role: str) -> list[ProcessHealth]:
    """Return the health of all processes of this role with a socket in this home, or else of the one at the role's port."""
    healths = list(_by_socket(settings, role))
    section = getattr(settings, role)
    if not healths and section.health_port:
        healths = list(_by_port(section.health_address, section.health_port))
    return healths


def examine(role: str) -> None:
    """Raise UnhealthyError unless processes of this role run on this machine and all are healthy."""
    healths = ask(options.settings(), role)
    healthy = bool(healths) and all(health.healthy for health in healths)
    if output.json_wanted():
        output.print_json({"ok": healthy, "role": role, "processes": [health.to_dict() for health in healths]})
    if not healths:
        raise UnhealthyError(f"No {role} runs on this machine with this home: see its log, or start one with `paceline {role}`.")
    if not healthy:
        raise UnhealthyError(" ".join(f"{health.process}: {health.message}" for health in healths if not health.healthy))


def _by_socket(settings: Settings, role: str) -> Iterator[ProcessHealth]:
    for path in pidfile.sockets(settings.run_folder, role):
        try:
            report = health_server.ask(path)
        except TimeoutError:
            yield _silent(path.stem)
        except OSError as error:
            yield ProcessHealth(process=path.stem, healthy=False, message=f"It cannot be reached: {error.strerror}.", parts={})
        else:
            if report is not None:
                yield _reported(report)


def _by_port(address: str, port: int) -> Iterator[ProcessHealth]:
    here = "127.0.0.1" if address in {"0.0.0.0", "::", ""} else address  # noqa: S104 - every address includes this one
    try:
        report = health_server.ask_port(here, port)
    except TimeoutError:
        yield _silent(f"{here}:{port}")
    else:
        if report is not None:
            yield _reported(report)


def _silent(process: str) -> ProcessHealth:
    return ProcessHealth(
        process=process, healthy=False, message=f"It does not answer within {health_server.ANSWER_S:g} s.", parts={}
    )


def _reported(report: dict[str, Any]) -> ProcessHealth:
    parts = report["parts"]
    wrong = [part["message"] for part in parts.values() if part["status"] == "unhealthy"]
    return ProcessHealth(process=report["process"], healthy=report["status"] == "healthy", message=" ".join(wrong), parts=parts)
