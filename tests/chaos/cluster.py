"""The cluster under test: its own servers and processes, each process with links to the servers that can be cut."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg2
import redis
from support.ledger import Ledger, ask
from support.servers import DURABLE, EVERYTHING, FAST
from support.waiting import eventually

from chaos.corners import Corners
from chaos.dag_files import files
from chaos.history import Harm, History
from chaos.plan import Plan
from chaos.proxy import Link, Proxy
from chaos.shapes import FEW, PROBES
from scheduler.embedded import stack
from scheduler.embedded.servers import EmbeddedPostgres, EmbeddedRedis
from scheduler.embedded.supervisor import Command, Supervisor
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database, migrate, roles
from scheduler.store.db.database import transact
from scheduler.store.queueing import pools

SCHEDULERS, WORKERS, CONCURRENCY = 3, 3, 5
PLACES_OF_FEW = 2
POSTGRES = DURABLE | {"log_lock_waits": "on", "log_line_prefix": "%m [%p] %a %x "}
#: Files change once, when they are written, so these schedulers on few cores need not read them again. The prefetch window is
#: small, so that messages of the queue with few places do not use up `parallelism`.
ENVIRONMENT = {
    "PACELINE_SCHEDULER_MIN_FILE_PROCESS_INTERVAL": "600",
    "PACELINE_SCHEDULER_PREFETCH_WINDOW": "4",
    "PACELINE_WORKER_GRACE_SEC": "8",
}
#: Deaths are noticed sooner, so that a short run sees many of them.
QUICK = {
    "PACELINE_WORKER_HEARTBEAT_SEC": "0.5",
    "PACELINE_WORKER_HEARTBEAT_TIMEOUT": "3",
    "PACELINE_WAITER_HEARTBEAT_SEC": "0.5",
    "PACELINE_WAITER_HEARTBEAT_TIMEOUT": "3",
    "PACELINE_SCHEDULER_SCHEDULER_HEARTBEAT_SEC": "0.5",
    "PACELINE_SCHEDULER_SCHEDULER_HEALTH_CHECK_THRESHOLD": "4",
    "PACELINE_SCHEDULER_ORPHANED_TASKS_CHECK_INTERVAL": "0.5",
    "PACELINE_SCHEDULER_TASK_QUEUED_TIMEOUT": "2",
}
START_S = 90.0
#: Seconds to wait for a process that no other fault has cut off.
CUT_OFF_S = 60.0
#: Of PostgreSQL, in its run folder.
SOCKET = ".s.PGSQL.5432"
ALIVE = "select pid from process where stopped_at is null and heartbeat_at > clock_timestamp() - interval '5 s'"
#: Workers and waiters may do no more than they need, as in the stacks that people start.
WORKER_ROLE = "paceline_worker"


class Partitions:
    """The processes that faults cut off, each by one fault at a time: a link that is cut already loses no more data, and the first
    fault to end would restore it for both."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, names: Sequence[str], choose: Callable[[list[str]], str]) -> Iterator[str]:
        """A process that `choose` returns, until the end of the block; waits while other faults have all of them."""
        with self._changed:
            free = self._changed.wait_for(lambda: [name for name in names if name not in self._names], CUT_OFF_S)
            name = choose(free)
            self._names.add(name)
        try:
            yield name
        finally:
            with self._changed:
                self._names.remove(name)
                self._changed.notify_all()


@dataclass(slots=True)
class Links:
    """The links of one process to PostgreSQL and Redis."""

    postgres: Link
    redis: Link


@dataclass
class Cluster:
    """The servers and processes under test; `links` and `frozen` are by process name and process ID."""

    folder: Path
    settings: Settings
    plan: Plan
    ledger: Ledger
    servers: Supervisor
    stack: Supervisor
    postgres: EmbeddedPostgres
    broker: EmbeddedRedis
    proxy: Proxy
    #: The link of the harness itself to PostgreSQL.
    own_link: Link
    links: dict[str, Links]
    output: list[str]
    replicas: int = 0
    #: Held by a fault that stops, moves or configures PostgreSQL: one of these at a time.
    postgres_lock: threading.Lock = field(default_factory=threading.Lock)
    history: History = field(default_factory=History)
    frozen: set[int] = field(default_factory=set)
    partitions: Partitions = field(default_factory=Partitions)

    @property
    def workers(self) -> list[str]:
        return [name for name in self.links if name.startswith("worker")]

    @property
    def schedulers(self) -> list[str]:
        return [name for name in self.links if name.startswith("scheduler")]

    def up(self, names: list[str]) -> list[str]:
        """Those of the processes that run now; LookupError if none does."""
        found = [name for name in names if self.stack.alive(name)]
        if not found:
            raise LookupError(f"none of {', '.join(names)} runs")
        return found

    def whole(self) -> bool:
        """Whether every process of the stack is up and has sent a heartbeat lately."""
        running = {self.stack.pid(name) for name in self.links if self.stack.alive(name)}
        with contextlib.suppress(psycopg2.Error):
            return len(running) == len(self.links) and running <= {row[0] for row in ask(self.settings.database_url, ALIVE)}
        return False

    def signal(self, name: str, number: int) -> None:
        """To a process of the stack, which is started again a second after its end; nothing to one that is down just now."""
        harm = self._harmed(signal.Signals(number).name, name)
        _signal(self.stack, name, number)
        if harm is not None:
            harm.end = time.time()

    def _harmed(self, what: str, name: str, child: int | None = None) -> Harm | None:
        """Only a fault of a worker may cost its tries."""
        return self.history.harmed(what, name, child) if name in self.workers else None

    def signal_server(self, name: str, number: int) -> None:
        _signal(self.servers, name, number)

    def children(self, worker: str) -> list[psutil.Process]:
        """Pool children of a worker of ours."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.stack.pid(worker)).children()
        return []

    @contextlib.contextmanager
    def stopped(self, pid: int, worker: str | None = None) -> Iterator[None]:
        """SIGSTOP for the length of the block, of this worker's parent if one is named; nothing of ours stays stopped."""
        harm = None if worker is None else self._harmed("SIGSTOP", worker)
        self.frozen.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.thaw(pid)
            if harm is not None:
                harm.end = time.time()

    @contextlib.contextmanager
    def to_cut_off(self, names: Sequence[str], rng: random.Random) -> Iterator[str]:
        """A running one of these processes; no other fault cuts it off until the end of the block."""
        with self.partitions.reserve(names, lambda free: rng.choice(self.up(free))) as name:
            yield name

    @contextlib.contextmanager
    def cut_off(self, name: str, links: Sequence[Link]) -> Iterator[None]:
        """A process without these links for the length of the block. A worker without Redis lives on: no try of it may be lost."""
        harm = self._harmed("cut off", name) if self.links[name].postgres in links else None
        try:
            yield
        finally:
            if harm is not None:
                harm.end = time.time()

    def move_to(self, server: EmbeddedPostgres) -> None:
        """Another server takes the place of PostgreSQL: all links lead to it."""
        self.postgres = server
        for link in (self.own_link, *(links.postgres for links in self.links.values())):
            self.proxy.do(lambda link=link: link.move(server.run_folder / SOCKET))  # type: ignore[misc]

    def thaw(self, pid: int) -> None:
        self.frozen.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def redis(self) -> contextlib.closing[redis.Redis]:
        """A client of the broker itself, closed with the block."""
        return contextlib.closing(redis.Redis(unix_socket_path=str(self.broker.socket), socket_timeout=5))

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log of each process."""
        names = [*self.servers.names(), *self.stack.names()]
        return "\n".join(f"--- {name}\n{(self._of(name)).log_tail(name, lines)}" for name in names)

    def _of(self, name: str) -> Supervisor:
        return self.servers if name in self.servers.names() else self.stack


def _signal(supervisor: Supervisor, name: str, number: int) -> None:
    """Each kill here is a new one, so the pause before the next start shall not grow with them. A number of one that has ended
    may be another process's by now."""
    supervisor._children[name].failures = 0
    if supervisor.alive(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor.pid(name), number)


@contextlib.contextmanager
def running_cluster(
    folder: Path, plan: Plan, *, quick: bool, packages: Path | None = None, corners: Corners | None = None
) -> Iterator[Cluster]:
    """Start everything, with all DAGs parsed; end everything. `packages` is a folder with other packages than those installed."""
    output: list[str] = []
    with contextlib.ExitStack() as undo:
        servers = undo.enter_context(Supervisor(folder / "logs", say=output.append))
        ledger_server = EmbeddedPostgres(
            data=folder / "ledger-data", run_folder=folder / "l", supervisor=servers, options=FAST, name="ledger"
        )
        postgres = EmbeddedPostgres(data=folder / "data", run_folder=folder / "p", supervisor=servers, options=POSTGRES)
        broker = EmbeddedRedis(run_folder=folder / "r", supervisor=servers, rules=EVERYTHING)
        for server in (ledger_server, postgres, broker):
            server.start()
        ledger = Ledger(f"postgresql://postgres@/paceline?host={ledger_server.run_folder}").create()
        proxy = Proxy()
        undo.callback(proxy.close)
        own = proxy.link(postgres.run_folder / SOCKET)
        url = f"postgresql://postgres@127.0.0.1:{own.port}/paceline"
        settings = _settings(folder, url, f"redis+socket://{broker.socket}?virtual_host=0")
        _prepare(settings, plan)
        for name, source in (files(plan, ledger) | (corners.files(ledger) if corners is not None else {})).items():
            (settings.dags_folder / name).write_text(source, encoding="utf-8")
        supervisor = undo.enter_context(Supervisor(folder / "logs", say=output.append))
        cluster = Cluster(folder, settings, plan, ledger, servers, supervisor, postgres, broker, proxy, own, {}, output)
        undo.callback(lambda: [cluster.thaw(pid) for pid in list(cluster.frozen)])
        environment = (QUICK if quick else {}) | {"PACELINE_CORE_PARALLELISM": str(plan.parallelism)}
        _start_processes(cluster, environment | ({} if packages is None else {"PYTHONPATH": str(packages)}))
        eventually(
            lambda: _parsed(settings) == len(plan.dags) + len(plan.others), timeout=START_S, interval=0.2, message=cluster.log_tail
        )
        yield cluster


def _settings(folder: Path, database_url: str, broker_url: str) -> Settings:
    home, dags = folder / "home", folder / "dags"
    home.mkdir()
    dags.mkdir()
    return Settings(paths=Paths(home=home, dags_folder=dags), database=Database(url=database_url), broker=Broker(url=broker_url))


def _prepare(settings: Settings, plan: Plan) -> None:
    engine = database.create(settings)
    try:
        migrate.migrate(engine, worker_role=roles.RoleRequest(settings.database_url.replace("postgres@", f"{WORKER_ROLE}@")))
        for name, slots in plan.pools.items():
            transact(engine, pools.set_pool, name, slots)
    finally:
        engine.dispose()
    Ledger.witness(settings.database_url)


def _start_processes(cluster: Cluster, more: Mapping[str, str]) -> None:
    # The names of the URL variables select the processes that get them; their values come with the links below.
    base = stack.environment_for(cluster.settings) | {"PACELINE_WORKER_DATABASE_URL": ""}
    workers = [(f"default,{PROBES}", CONCURRENCY)] * WORKERS + [(FEW, PLACES_OF_FEW)]
    grace = float(ENVIRONMENT["PACELINE_WORKER_GRACE_SEC"])
    for command in stack.stack_commands(base, schedulers=SCHEDULERS, workers=workers, waiters=1, worker_grace_sec=grace):
        links = Links(cluster.proxy.link(cluster.postgres.run_folder / SOCKET), cluster.proxy.link(cluster.broker.socket))
        cluster.links[command.name] = links
        user, name = (WORKER_ROLE, "WORKER_DATABASE") if command.stage == stack.WORKER_STAGE else ("postgres", "DATABASE")
        environment = dict(command.environment or {}) | ENVIRONMENT | more | {
            f"PACELINE_{name}_URL": f"postgresql://{user}@127.0.0.1:{links.postgres.port}/paceline",
            "PACELINE_BROKER_URL": f"redis://127.0.0.1:{links.redis.port}/0",
            "LEDGER_PROCESS": command.name,
        }  # fmt: skip
        if command.name == "scheduler-2":
            environment["TZ"] = "Asia/Tokyo"
        cluster.stack.start(
            Command(name=command.name, argv=command.argv, stage=command.stage, environment=environment, grace_sec=command.grace_sec)
        )


def _parsed(settings: Settings) -> int:
    with contextlib.closing(psycopg2.connect(settings.database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select count(*) from dag")
        return int(cursor.fetchone()[0])


def wait_until_redis_is_up(cluster: Cluster, *, timeout_s: float = 60.0) -> None:
    """Until it answers again after it was killed."""

    def answers() -> bool:
        with contextlib.suppress(redis.RedisError), cluster.redis() as client:
            return bool(client.ping())
        return False

    eventually(lambda: cluster.servers.alive("redis") and answers(), timeout=timeout_s, interval=0.05)


def wait_until_up(url: str, *, timeout_s: float = 60.0) -> float:
    """When PostgreSQL answers again, by time.time()."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            psycopg2.connect(url, connect_timeout=2).close()
        except psycopg2.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return time.time()
