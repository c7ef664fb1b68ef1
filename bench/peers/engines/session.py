"""An engine that runs on the servers of a Stack: its program with all its processes, and what a shape on it took."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path

from bench.measure import calibrate
from bench.peers import servers
from bench.peers.engines.catalog import Engine
from bench.peers.engines.programs import protocol
from bench.stack import Stack, StackError
from scheduler.embedded.supervisor import Command, Supervisor

DATABASE = "engine"
ROOT = Path(__file__).parents[3]
#: Seconds until an engine listens, and seconds that a run may take.
START_S, LIMIT_S = 120.0, 300.0
#: Seconds between two checks whether the program listens.
CHECK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a shape on one system. `cpu_s` is that of all processes: workers, servers, client."""

    steps: int
    seconds: float
    cpu_s: float
    calibration_ms: float


@dataclass(slots=True)
class Session:
    """A running engine. Use it from `running`."""

    engine: Engine
    stack: Stack
    processes: Supervisor
    connection: Connection

    def run(self, name: str, sizes: Sequence[int], steps: int) -> Trial:
        """Run a shape, and wait for its end. StackError if the engine ran another number of steps."""
        calibration_ms = calibrate()
        before = self._cpu_seconds()
        self.connection.send((name, tuple(sizes)))
        seconds, done = self._answer(name)
        used = self._cpu_seconds() - before
        if done != steps:
            raise StackError(f"{self.engine.name} ran {done} steps of {name} instead of {steps}")
        return Trial(steps=done, seconds=seconds, cpu_s=used, calibration_ms=calibration_ms)

    def _answer(self, name: str) -> tuple[float, int]:
        try:
            if self.connection.poll(LIMIT_S):
                answer: tuple[float, int] = self.connection.recv()
                return answer
        except (EOFError, ConnectionError):
            raise StackError(f"{self.engine.name} has ended in {name}:\n{self.processes.log_tail(self.engine.name)}") from None
        raise StackError(f"{LIMIT_S:.0f} s were too short for {name} on {self.engine.name}")

    def _cpu_seconds(self) -> float:
        """CPU seconds so far of the engine's processes and of both servers. Paceline's processes do not run."""
        return servers.cpu_seconds(self.processes) + self.stack.cpu_seconds()["total"]


@contextlib.contextmanager
def running(stack: Stack, engine: Engine) -> Iterator[Session]:
    """Run an installed engine on the stack's servers, with empty databases, during the block."""
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="engine-", dir=stack.folder)))
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        environment |= engine.environment() | {
            protocol.SOCKET: str(folder / "socket"),
            protocol.DATABASE_URL: undo.enter_context(servers.database(stack, DATABASE)),
            protocol.REDIS_SOCKET: servers.redis_socket(stack),
            protocol.FOLDER: str(folder),
        }
        for number in protocol.REDIS_NUMBERS:
            undo.enter_context(servers.redis_number(stack, number))
        processes = undo.enter_context(Supervisor(folder / "logs", say=stack.messages.append))
        argv = (str(engine.folder / "bin" / "python"), "-m", engine.module)
        processes.start(Command(name=engine.name, argv=argv, environment=environment, folder=ROOT, grace_sec=5.0))
        connection = undo.enter_context(_connected(stack, processes, engine, folder / "socket"))
        yield Session(engine, stack, processes, connection)


def _connected(stack: Stack, processes: Supervisor, engine: Engine, socket: Path) -> Connection:
    """The connection to the program, when it listens."""
    found: list[Connection] = []

    def connects() -> bool:
        if not processes.alive(engine.name):
            raise StackError(f"{engine.name} has ended:\n{processes.log_tail(engine.name)}")
        # The socket is there a moment before the program listens on it.
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            found.append(Client(str(socket), "AF_UNIX"))
        return bool(found)

    try:
        stack.wait(connects, START_S, f"{engine.name} to start", CHECK_S)
    except StackError as error:
        raise StackError(f"{error}\n{processes.log_tail(engine.name)}") from None
    return found[0]
