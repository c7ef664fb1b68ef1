"""The common start and shutdown of schedulers, workers and waiters, and their reports to systemd: ready, stopping, not hanging.

The protocol of sd_notify(3) is one datagram for each message. The package sdnotify on PyPI has had no release since 2017.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.process import fault_points, hardening
from scheduler.process.health import Health, HealthServer, Page
from scheduler.process.pidfile import Pidfile

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def exit_at_once() -> None:
    """Make both signals raise SystemExit(0) at any point: for waits during which there is nothing to clean up."""
    for number in NUMBERS:
        signal.signal(number, lambda *_: sys.exit(0))


def remember() -> threading.Event:
    """Make both signals only set the event that is returned.

    Call it before the process creates its pidfile or registers. If a signal ended the process in the middle of that, a pidfile
    or a row in the registry would stay and make the process look alive.
    """
    stop = threading.Event()
    for number in NUMBERS:
        signal.signal(number, lambda *_: stop.set())
    return stop


#: The share of WatchdogSec between two messages. systemd recommends less than half.
WATCHDOG_SHARE = 1 / 3
MICROSECONDS = 1_000_000
#: Seconds for a message. systemd reads them at once.
PATIENCE_S = 1.0


class ServiceManager:
    """The service manager that started this process. Without one, every method does nothing."""

    def __init__(self, address: str = "", watchdog_s: float = 0) -> None:
        self._address = address
        #: Seconds between two calls of `alive`. 0 if the service manager does not expect any.
        self.interval_s = watchdog_s * WATCHDOG_SHARE if address else 0.0

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> "ServiceManager":
        """Return the service manager, and remove its variables, so that no program of a task can report for this process."""
        address, watchdog, pid = (environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        is_mine = watchdog.isdecimal() and pid in {"", str(os.getpid())}
        return cls(address, int(watchdog) / MICROSECONDS if is_mine else 0)

    def ready(self) -> None:
        """Report that the start is complete."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that this process shuts down."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Report that this process does not hang. Without this message for WatchdogSec, systemd restarts it."""
        self._send("WATCHDOG=1")

    def watch(self, hangs: Callable[[], bool]) -> None:
        """Start a thread that calls `alive` while this process does not hang."""
        if self.interval_s:
            threading.Thread(target=self._watch, args=(hangs,), name="watchdog", daemon=True).start()

    def _watch(self, hangs: Callable[[], bool]) -> None:
        pause = threading.Event()
        while True:
            if not hangs():
                self.alive()
            pause.wait(self.interval_s)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(PATIENCE_S)
            sender.sendto(message.encode(), address)


#: An addition of a command to its process, such as metrics. It is called once the process has its health. It may serve pages, by
#: path, and register the steps that end it.
Extension = Callable[[Health, contextlib.ExitStack], Mapping[str, Page]]
extensions: list[Extension] = []


@dataclass(frozen=True, slots=True)
class Role:
    """A running process of one role. When the role ends, `ending` undoes each step of its start in reverse order."""

    pidfile: Pidfile
    #: Set by SIGTERM or SIGINT.
    stop: threading.Event
    ending: contextlib.ExitStack
    service_manager: ServiceManager

    def serve_health(self, health: Health, address: str, port: int) -> None:
        """Serve `GET /health` on the socket beside the pidfile, and on a port if it is not 0, until the role ends.

        The start is complete then, and the service manager is notified.
        """
        pages = {path: page for extend in extensions for path, page in extend(health, self.ending).items()}
        server = HealthServer(health, path=self.pidfile.socket, address=address, port=port, pages=pages)
        self.ending.callback(server.close)
        self.service_manager.watch(health.hangs)
        self.service_manager.ready()


def prepare(database_url: str) -> None:
    """Arm fault points and hide the memory of this process, before it connects. A stop signal ends it at once.

    Raises SettingsError if fault points are set outside of a test.
    """
    fault_points.arm(os.environ, database_url)
    hardening.close()
    exit_at_once()


@contextlib.contextmanager
def running(name: str, run_folder: Path) -> Iterator[Role]:
    """Run as "scheduler", "worker" or "waiter": stop signals are remembered first, then the pidfile is taken.

    INVARIANT: nothing that looks alive (a pidfile, a row in the registry) exists while a signal could still end the process.
    """
    stop = remember()
    service_manager = ServiceManager.take()
    with contextlib.ExitStack() as ending:
        pidfile = Pidfile(run_folder, name).take()
        ending.callback(pidfile.leave)
        ending.callback(service_manager.stopping)
        yield Role(pidfile, stop, ending, service_manager)
