"""Runs the user code of bundles that have packages of their own: in a process with the Python of the environment of the bundle.

The pool process claims, reports and continues in place as always. It sends the claim to the other process, and gets the outcome.
"""

import contextlib
import multiprocessing.connection
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from paceline.exceptions import PacelineError, TaskStopped, TaskTimeout
from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.environments import Environments
from scheduler.process import hardening
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim
from workers.process import secrets_backend
from workers.task.outcome import Outcome

#: The program, see celery_worker/environment_process.py. It has the number of a descriptor as its argument.
PROGRAM = "workers.celery_worker.environment_process"
#: The processes that a pool process keeps, each for another environment.
MOST = 2
#: Seconds until an interruption is sent again, which a process may have missed before its user code began.
AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a process."""

    settings: Settings
    #: The number of the pool process in its worker.
    place: int
    #: The environment of the pool process, and the variables and connections that its worker has taken from it.
    environment: dict[str, str]
    stored: dict[str, str]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try to run, and where its log is. `worker_id` is that of the worker which has claimed it."""

    claim: Claim
    path: str
    worker_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a try. `unfit` says why the process must run no other one."""

    outcome: Outcome
    unfit: str | None


@dataclass(slots=True)
class Elsewhere:
    """The processes of one pool process, by the Python of their environment. They end with it."""

    settings: Settings
    place: int
    cache: BundleCache
    environments: Environments
    #: The Python for each bundle version, and the processes by Python, those that ran longest ago first.
    _pythons: dict[int, str] = field(default_factory=dict)
    _processes: "OrderedDict[str, OtherProcess]" = field(default_factory=OrderedDict)

    def process(self, dag: SerializedDag) -> "OtherProcess | None":
        """The process for the code of a DAG, started if it does not run. None if its bundle version requires nothing.

        The environment is installed first if it is not there. RequirementsError if that fails; errors as for BundleCache.path.
        """
        version = dag.bundle_version
        if version is None:
            return None
        if version not in self._pythons:
            self._pythons[version] = self.environments.python(self.cache.path(version))
        python = self._pythons[version]
        if python == sys.executable:
            return None
        self.cache.release(version)  # the other process loads it
        process = self._processes.pop(python, None)
        if process is None or process.is_over:
            process = OtherProcess(python, Start(self.settings, self.place, dict(os.environ), dict(secrets_backend.taken())))
        self._processes[python] = process
        while len(self._processes) > MOST:
            oldest, ended = self._processes.popitem(last=False)
            ended.end()
            self._pythons = {number: known for number, known in self._pythons.items() if known != oldest}
            self.environments.release(oldest)
        return process


class OtherProcess:
    """A process that runs one try after the other."""

    def __init__(self, python: str, start: Start) -> None:
        self._connection, theirs = multiprocessing.connection.Pipe()
        with theirs:
            number = theirs.fileno()
            command = [python, "-P", "-m", PROGRAM, str(number), str(os.getpid())]
            # Its environment can be read until it hides it, so the rest comes with the first message.
            environment = hardening.clean(os.environ.items())
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number], env=environment)
        try:
            self._connection.send(start)
            self._connection.recv()
        except (EOFError, ConnectionError):
            reason = f"The Python {python} of the environment of the bundle cannot run Paceline: exit code {self._process.wait()}"
            raise PacelineError(f"{reason}; the log has its error.") from None
        except BaseException:
            self.end()
            raise

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or must run no more tries, and was ended therefore."""
        return self._process.poll() is not None

    def run(self, claim: Claim, path: str, worker_id: str) -> Outcome:
        """Run a try, whose log is at `path`. An interruption of this process interrupts it, and its outcome is returned as always.

        If the other process dies, this one dies the same way, and its worker handles that.
        """
        self._connection.send(Attempt(claim, path, worker_id))
        ended: Ended | None = None
        interrupt: Callable[[], Any] | None = None
        while ended is None:
            try:
                if self._connection.poll(None if interrupt is None else AGAIN_S):
                    with _uninterrupted():
                        ended = self._received()
                elif interrupt is not None:
                    interrupt()
            except (TaskTimeout, TaskStopped) as error:
                interrupt = self._interruption(error)
                interrupt()
        if ended.unfit is not None:
            self.end()
        return ended.outcome

    def _interruption(self, error: TaskTimeout | TaskStopped) -> Callable[[], Any]:
        """Interrupts the try as this one is interrupted."""
        if isinstance(error, TaskTimeout):
            return lambda: self._process.send_signal(signal.SIGALRM)
        self._connection.send(str(error))
        return lambda: self._process.send_signal(signal.SIGTERM)

    def _received(self) -> Ended:
        try:
            ended: Ended = self._connection.recv()
        except (EOFError, ConnectionError):
            _die_like(self._process.wait())
        return ended

    def end(self) -> None:
        """Kill the process. It runs no try."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay the signals of timeouts and stops, so that a message is read as a whole."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _die_like(code: int) -> NoReturn:
    """End this process by the same signal, or with the same exit code, as the one in which the user code ran."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in {signal.SIGKILL, signal.SIGSTOP} else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(abs(code))
