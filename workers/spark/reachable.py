"""Checks that a server listens at the address of a Spark master, because a JVM would take minutes to report that none does."""

import socket
import time
from urllib.parse import urlsplit

from tenacity import stop_before_delay

from paceline.exceptions import FailTask, PacelineError
from scheduler.process import retries

PAUSE_S = 0.5
LARGEST_PORT = 65_535
#: The URL schemes of masters with an address, or with several of which one is active.
SCHEMES = ("spark://", "sc://")


class MasterUnreachableError(PacelineError):
    """No server listens at the address of the Spark master of a task."""


def check_master(master: str, *, timeout_s: float, correct: str) -> None:
    """Check a master with an address; others are not checked. `correct` names the source of the address.

    MasterUnreachableError if no server listens there within `timeout_s`; FailTask if the address is not valid.
    """
    if not master.startswith(SCHEMES):
        return
    deadline = time.monotonic() + timeout_s
    addresses = [_address(master, part) for part in urlsplit(master).netloc.split(",")]

    def connect() -> None:
        refusal: str | None = None
        for address in addresses:
            refusal = _refusal(*address, max(0.1, (deadline - time.monotonic()) / len(addresses)))
            if refusal is None:
                return
        raise MasterUnreachableError(
            f"The Spark master {master} did not answer within {timeout_s:g} s ({refusal}): start it, or correct {correct}."
        )

    retries.repeated(lambda error: isinstance(error, MasterUnreachableError), pause_s=PAUSE_S, stop=stop_before_delay(timeout_s))(
        connect
    )


def _address(master: str, part: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    # getaddrinfo reduces a larger port modulo 65536, where another server may listen.
    if not host or not port.isdigit() or int(port) > LARGEST_PORT:
        raise FailTask(f"The Spark master {master} needs a host and a port, as in spark://host:7077.")
    return host.strip("[]"), int(port)


def _refusal(host: str, port: int, timeout_s: float) -> str | None:
    """Why a connection fails; None if it succeeds."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return None
    except (OSError, OverflowError) as error:
        return f"nothing answers at {host}:{port}: {error}"
