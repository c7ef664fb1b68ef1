"""The common start and shutdown of schedulers, workers and waiters."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.process import fault_points, hardening
from scheduler.process.health import Health
from scheduler.process.health_server import HealthServer, Page
from scheduler.process.pidfile import Pidfile
from scheduler.process.service_manager import ServiceManager, exit_at_once, remember

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
