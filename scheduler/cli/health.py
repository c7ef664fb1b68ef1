"""What the processes of one role on this machine say of their health."""

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
    """A process of this role is not well, or none runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One process; `sentence` says why it is not well."""

    process: str
    healthy: bool
    sentence: str = ""
    parts: dict[str, dict[str, str]]

    def to_dict(self) -> dict[str, Any]:
        status = "healthy" if self.healthy else "unhealthy"
        return {"process": self.process, "status": status, "message": self.sentence, "parts": self.parts}


def ask(settings: Settings, role: str) -> list[Said]:
    """Every process of this role that this home's folder knows on this machine; else the one at the role's port, if one is set."""
    found = list(_by_socket(settings, role))
    section = getattr(settings, role)
    if not found and section.health_port:
        found = list(_by_port(section.health_address, section.health_port))
    return found


def examine(role: str, *, json_wanted: bool) -> None:
    """End the command: 0 if processes of this role run on this machine and all are well, else 1 with one sentence."""
    found = ask(options.settings(), role)
    healthy = bool(found) and all(one.healthy for one in found)
    if json_wanted:
        output.print_json({"ok": healthy, "role": role, "processes": [one.to_dict() for one in found]})
    if not found:
        raise UnhealthyError(f"No {role} runs on this machine with this home: see its log, or start one with `paceline {role}`.")
    if not healthy:
        raise UnhealthyError(" ".join(f"{one.process}: {one.sentence}" for one in found if not one.healthy))


def _by_socket(settings: Settings, role: str) -> Iterator[Said]:
    for path in pidfile.sockets(settings.run_folder, role):
        try:
            report = health_server.ask(path)
        except TimeoutError:
            yield _silent(path.stem)
        except OSError as error:
            yield Said(process=path.stem, healthy=False, sentence=f"It cannot be asked: {error.strerror}.", parts={})
        else:
            if report is not None:
                yield _said(report)


def _by_port(address: str, port: int) -> Iterator[Said]:
    here = "127.0.0.1" if address in {"0.0.0.0", "::", ""} else address  # noqa: S104 - every address is also this one
    try:
        report = health_server.ask_port(here, port)
    except TimeoutError:
        yield _silent(f"{here}:{port}")
    else:
        if report is not None:
            yield _said(report)


def _silent(process: str) -> Said:
    return Said(process=process, healthy=False, sentence=f"It does not answer within {health_server.ANSWER_S:g} s.", parts={})


def _said(report: dict[str, Any]) -> Said:
    parts = report["parts"]
    wrong = [part["message"] for part in parts.values() if part["status"] == "unhealthy"]
    return Said(process=report["process"], healthy=report["status"] == "healthy", sentence=" ".join(wrong), parts=parts)
