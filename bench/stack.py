"""A temporary stack for a measurement: PostgreSQL with fsync on, Redis, schedulers and workers, all as real processes."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg2
from psycopg2.extensions import connection as Connection
from sqlalchemy import Engine

from scheduler.embedded import stack as stacks
from scheduler.embedded.servers import EmbeddedPostgres, EmbeddedRedis
from scheduler.embedded.supervisor import Supervisor
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.settings import Settings
from scheduler.settings.environment import PREFIX
from scheduler.store.dags.versions import Versions
from scheduler.store.db import database, migrate
from scheduler.store.db.database import transact
from scheduler.store.moves.first import Limits
from scheduler.store.runs import manual_runs

CONCURRENCY = 4
START_S = 120.0
#: A stack is calm once its processes use less than so many cores for so many seconds; it gets so many seconds to become calm.
CALM_CORES, CALM_S, SETTLE_S = 0.1, 1.0, 20.0
POLL_S = 0.02
#: A file system in memory on Linux. In a container it is often too small for the logs of a large map, one page each.
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 1_000_000_000  # noqa: S108
#: The kinds of processes with separate CPU and memory; `parser` is every child of a scheduler, `worker_children` of a worker.
ROLES = ("scheduler", "parser", "worker", "worker_children", "postgres", "redis")
CHILDREN = {"scheduler": "parser", "worker": "worker_children"}


class StackError(Exception):
    """The stack failed during a measurement. The message ends with the last output of its processes."""


@dataclass
class Stack:
    """Servers, schema and DAG files, then `schedulers` and `workers`. All are removed with the block.

    `files` are texts of DAG files by name. `environment` holds settings (PACELINE_SCHEDULER_...=...) that differ from the defaults.
    `postgres` are server options; fsync and synchronous_commit stay on unless these options turn them off. With 0 schedulers and
    workers, the database can be filled first. `start` and `stop_processes` can be called repeatedly.
    """

    files: Mapping[str, str]
    schedulers: int = 1
    workers: int = 1
    concurrency: int = CONCURRENCY
    queues: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)
    postgres: Mapping[str, str] = field(default_factory=dict)
    start_s: float = START_S
    messages: list[str] = field(default_factory=list)

    folder: Path = field(init=False)
    settings: Settings = field(init=False)
    servers: Supervisor = field(init=False)
    processes: Supervisor | None = field(init=False, default=None)
    engine: Engine = field(init=False)
    connection: Connection = field(init=False)
    wakeups: Wakeups = field(init=False)
    publisher: Publisher = field(init=False)
    _versions: Versions = field(init=False, default_factory=Versions)
    _own: contextlib.ExitStack = field(init=False)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
            self._start_servers(undo)
            self.write(self.files)
            self.engine = database.create(self.settings, application="paceline bench")
            undo.callback(self.engine.dispose)
            migrate.migrate(self.engine)
            self.connection = self.connect()
            undo.callback(self.connection.close)
            self.wakeups = Wakeups(self.settings)
            undo.callback(self.wakeups.close)
            self.publisher = Publisher(self.settings)
            undo.callback(self.publisher.close)
            undo.callback(self.stop_processes)
            self.start(schedulers=self.schedulers, workers=self.workers)
            self._own = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()

    # Servers and processes

    def _start_servers(self, undo: contextlib.ExitStack) -> None:
        home, dags = self.folder / "home", self.folder / "dags"
        home.mkdir()
        dags.mkdir()
        logs_in_memory(home, undo)
        # An empty file of settings, so that the one in the working directory is not read.
        (self.folder / "settings.toml").touch()
        self.servers = undo.enter_context(Supervisor(self.folder / "logs", say=self.messages.append))
        postgres = EmbeddedPostgres(
            data=self.folder / "data", run_folder=self.folder / "p", supervisor=self.servers, options=self.postgres
        )
        broker = EmbeddedRedis(run_folder=self.folder / "r", supervisor=self.servers, rules=("~*", "&*", "+@all"))
        postgres.start()
        broker.start()
        self.settings = Settings.load(
            {
                "PACELINE_HOME": str(home),
                "PACELINE_DAGS_FOLDER": str(dags),
                "PACELINE_DATABASE_URL": f"postgresql://postgres@/paceline?host={postgres.run_folder}",
                "PACELINE_BROKER_URL": f"redis+socket://{broker.socket}?virtual_host=0",
                "PACELINE_CONFIG": str(self.folder / "settings.toml"),
                **self.environment,
            }
        )

    def start(self, *, schedulers: int = 1, workers: int = 1) -> None:
        """Start processes and wait until they are registered and, with a scheduler, all DAG files are read."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        environment |= stacks.environment_for(self.settings) | {"PACELINE_CONFIG": str(self.folder / "settings.toml")}
        # With it, every process would compile all modules again.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.processes = Supervisor(self.folder / "logs", say=self.messages.append)
        chosen = [(self.queues, self.concurrency)] * workers
        for command in stacks.stack_commands(environment, schedulers=schedulers, workers=chosen):
            self.processes.start(command)
        self.wait(lambda: self._registered() >= schedulers + workers, self.start_s, "the processes to be registered")
        if schedulers:
            self.wait_parsed()
        self._settle()

    def _settle(self) -> None:
        """Wait until the processes have finished what they do after their start, or for SETTLE_S.

        A scheduler reads all files again when it starts, also those that the database knows, so `wait_parsed` sees nothing of that.
        """
        deadline = time.monotonic() + SETTLE_S
        used = self.cpu_seconds()["total"]
        while time.monotonic() < deadline:
            time.sleep(CALM_S)
            before, used = used, self.cpu_seconds()["total"]
            if used - before <= CALM_CORES * CALM_S:
                return

    def stop_processes(self) -> None:
        """Shut down schedulers and workers cleanly. Servers and data remain."""
        if self.processes is not None:
            self.processes.close()
            self.processes = None

    def write(self, files: Mapping[str, str]) -> None:
        """Write DAG files into the folder."""
        for name, text in files.items():
            (self.settings.dags_folder / name).write_text(text, encoding="utf-8")

    def wait_parsed(self) -> None:
        """Wait until each file of the DAGs folder is parsed; StackError if one cannot be imported."""
        wanted = len(list(self.settings.dags_folder.glob("*.py")))
        self.wait(lambda: self._parsed() >= wanted, START_S, f"{wanted} DAG files to be read")

    def _parsed(self) -> int:
        for file, message in self.rows("select file, message from import_error"):
            raise StackError(f"{file}: {message}")
        return int(self.rows("select count(*) from dag_file where parsed_at is not null")[0][0])

    def _registered(self) -> int:
        return int(self.rows("select count(*) from process where stopped_at is null")[0][0])

    # The database

    def connect(self) -> Connection:
        """A new connection to the database in autocommit mode."""
        connection = psycopg2.connect(self.settings.database_url, application_name="paceline bench")
        connection.autocommit = True
        return connection

    def rows(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """The rows that a statement returns."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()

    def trigger(self, dag_ids: Iterable[str]) -> list[int]:
        """Create a manual run of each DAG, one after the other as a web process does, and return the IDs of the runs."""
        run_ids, limits = [], Limits.of(self.settings, "bench")
        for dag_id in dag_ids:
            run = transact(self.engine, manual_runs.trigger, dag_id, versions=self._versions, limits=limits)
            self.publisher.try_publish(run.messages)
            self.wakeups.wake(*run.tokens)
            run_ids.append(run.id)
        return run_ids

    def wait_closed(self, run_ids: Sequence[int], timeout_s: float = 300.0) -> None:
        """Wait until these runs have ended; StackError if one failed or at the timeout."""
        ids = list(run_ids)
        open_ = "select count(*) from dag_run where id = any(%s) and state in ('queued', 'running')"
        self.wait(lambda: self.rows(open_, (ids,))[0][0] == 0, timeout_s, f"{len(ids)} runs to end", 0.05)
        failed = self.rows("select dag_id, run_id from dag_run where id = any(%s) and state <> 'success'", (ids,))
        if failed:
            raise self._error(f"{len(failed)} of {len(ids)} runs failed, the first is {failed[0]}")

    def wait(self, ready: Callable[[], bool], timeout_s: float, what: str, interval_s: float = POLL_S) -> None:
        """Poll until the condition is true; StackError at the timeout."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > deadline:
                raise self._error(f"{timeout_s:.0f} s were too short for {what}")
            time.sleep(interval_s)

    def _error(self, what: str) -> StackError:
        tails = [f"--- {name}\n{supervisor.log_tail(name)}" for supervisor in self._supervisors() for name in supervisor.names()]
        return StackError("\n".join([what, *self.messages, *tails]))

    def _supervisors(self) -> list[Supervisor]:
        return [self.servers] if self.processes is None else [self.servers, self.processes]

    # What it costs

    def pids(self) -> dict[str, list[int]]:
        """The processes of each of ROLES at this moment."""
        found: dict[str, list[int]] = {role: [] for role in ROLES}
        for supervisor in self._supervisors():
            for name in supervisor.names():
                parent = psutil.Process(supervisor.pid(name))
                role = name.partition("-")[0]
                found[role].append(parent.pid)
                found[CHILDREN.get(role, role)] += [child.pid for child in parent.children(recursive=True)]
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds that each of ROLES has used since its start, including ended children; and their `total`."""
        used = dict.fromkeys(ROLES, 0.0)
        for role, pids in self.pids().items():
            for pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = psutil.Process(pid).cpu_times()
                    used[role] += times.user + times.system
                    used[CHILDREN.get(role, role)] += times.children_user + times.children_system
        return used | {"total": sum(used.values())}

    def memory_mb(self) -> dict[str, list[dict[str, float]]]:
        """RSS and PSS of each process of each of ROLES, in MB of 1,000,000 bytes. PSS divides shared pages among processes.

        Paceline's processes are not dumpable, so their PSS is missing where tracing is not permitted, as in most containers.
        """
        found: dict[str, list[dict[str, float]]] = {role: [] for role in ROLES}
        for role, pids in self.pids().items():
            for pid in pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    memory = {"rss": process.memory_info().rss / 1e6}
                    with contextlib.suppress(psutil.AccessDenied):
                        memory["pss"] = process.memory_full_info().pss / 1e6
                    found[role].append(memory)
        return found


def logs_in_memory(home: Path, undo: contextlib.ExitStack) -> None:
    """Keep the logs of tries in memory where there is a file system for it. Settings, data and servers stay on the disk.

    ext4 does not reuse the inode of a deleted file for minutes, and checks each of them whenever a file is created nearby.
    Files that an earlier part or a test run had deleted would make the cost of a log file vary from 0.04 to 1 ms.
    """
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        logs = undo.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=MEMORY, ignore_cleanup_errors=True))
        (home / "logs").symlink_to(logs)
