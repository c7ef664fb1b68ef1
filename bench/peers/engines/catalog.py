"""The engines that Paceline is measured beside: their packages, how they run here, and what each of their steps survives."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers import install

PINS = Path(__file__).with_name("pins")
PROGRAMS = "bench.peers.engines.programs"
#: Redis runs without persistence, for these two as for Paceline's messages.
IN_REDIS = "nothing: steps and results are in Redis, which writes nothing to the disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine, with the name under which `--engines` knows it. The first of `packages` gives its version."""

    name: str
    packages: tuple[str, ...]
    #: How many processes run its steps, and how they learn of new ones.
    processes: str
    #: Who writes a step to the disk, and when.
    durable: str
    npm_packages: tuple[str, ...] = ()
    #: Environment variables of its program, with patterns of paths in its environment.
    paths: Mapping[str, str] | None = None
    #: Shapes that it cannot run.
    without: tuple[str, ...] = ()

    @property
    def pins(self) -> Path:
        return PINS / f"{self.name}.txt"

    @property
    def version(self) -> str:
        """The version of its package, or of its server if that is a package of npm."""
        if self.npm_packages:
            return self.npm_packages[0].rpartition("@")[2]
        package = self.packages[0].partition("[")[0]
        found = re.search(rf"^{re.escape(package)}==(\S+)$", self.pins.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
        assert found, f"{self.pins} does not name {package}"
        return found[1]

    @property
    def folder(self) -> Path:
        """The folder of its environment."""
        return install.CACHE / f"{self.name}-{self.version}"

    @property
    def module(self) -> str:
        """The module that runs the shapes on it."""
        return f"{PROGRAMS}.on_{self.name.replace('-', '_')}"

    def is_installed(self) -> bool:
        return install.is_installed(self.folder, self.version, self.pins)

    def install(self, say: Callable[[str], None]) -> None:
        """Install it if it is missing. CalledProcessError if that is not possible here."""
        if not self.is_installed():
            say(f"Installing {self.name} {self.version} into {self.folder}; once")
            install.environment(self.folder, self.version, self.pins, self.packages, self.npm_packages)

    def environment(self) -> dict[str, str]:
        """The environment variables that only its program needs."""
        found = {}
        for variable, pattern in (self.paths or {}).items():
            (path,) = self.folder.glob(pattern)
            found[variable] = str(path)
        return found


ENGINES = (
    Engine(
        name="absurd",
        packages=("absurd-sdk", "absurdctl"),
        processes="4 processes with a task each, which poll every 10 ms (0.25 s by default)",
        durable="PostgreSQL with fsync, a commit for each step",
    ),
    Engine(
        name="restate",
        packages=("restate-sdk", "hypercorn"),
        npm_packages=("@restatedev/restate-server@1.7.12",),
        paths={"BENCH_RESTATE_SERVER": "node_modules/@restatedev/restate-server-*/bin/restate-server"},
        processes="a server of one node, and 4 processes that serve the handlers; nothing polls",
        durable="a journal in the server's RocksDB; its log is synced before a step counts, for all runs that wait at once",
    ),
    Engine(
        name="dbos",
        packages=("dbos",),
        processes="1 process with threads, which runs 4 steps of `wide` at once; nothing polls",
        durable="PostgreSQL with fsync, a commit for each step",
    ),
    Engine(
        name="procrastinate",
        packages=("procrastinate",),
        processes="1 process that runs 4 jobs at once; PostgreSQL notifies it, and it polls every 10 ms (5 s by default)",
        durable="PostgreSQL with fsync, commits for start, successor and end of each job",
    ),
    Engine(
        name="celery-canvas",
        packages=("celery[redis]",),
        processes="4 pool processes; Redis wakes them",
        durable=IN_REDIS,
        # Each message of a chain has the rest of the chain in it.
        without=("chain1000",),
    ),
    Engine(
        name="dramatiq",
        packages=("dramatiq[redis]",),
        processes="4 processes with a thread each, which poll every 10 ms (up to 1 s by default)",
        durable=IN_REDIS,
        without=("chain1000",),
    ),
)
BY_NAME = {engine.name: engine for engine in ENGINES}
