"""The session's PostgreSQL and Redis, and a fresh database or Redis number for each test."""

import base64
import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2
import redis

from scheduler.embedded.servers import EmbeddedPostgres, EmbeddedRedis
from scheduler.embedded.supervisor import Supervisor
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database, migrate
from support.waiting import eventually

TEMPLATE = "migrated"
#: Fast rather than durable, because the data is temporary.
FAST = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "512MB",
    # A vacuum in the middle of a test that counts the blocks of a statement would change the count.
    "autovacuum_naptime": "1min",
}  # fmt: skip
#: For a server that the test crashes: committed data survives that. No test simulates a crash of the machine.
DURABLE = {name: value for name, value in FAST.items() if name != "synchronous_commit"}

#: The permissions of the Redis user: tests flush databases and inspect them.
EVERYTHING = ("~*", "&*", "+@all")


@dataclass
class PostgresServer:
    """A running PostgreSQL. `new_database` copies the migrated template, which is created on first use."""

    embedded: EmbeddedPostgres
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _template_made: bool = False
    _kept: "psycopg2.extensions.connection | None" = None

    def url(self, name: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql://postgres@/{name}?host={self.embedded.run_folder}"

    def execute(self, statement: str) -> None:
        """Run one statement outside of any transaction, in the maintenance database."""
        with contextlib.closing(self.embedded.connect("postgres")) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)

    def take_writes(self, yes: bool) -> None:
        """Make the server read-only for all sessions, as a failover or an operator does, or writable again."""
        self.execute(f"alter system set default_transaction_read_only = {'off' if yes else 'on'}")
        self.execute("select pg_reload_conf()")
        eventually(lambda: self._takes_writes() == yes)

    def autovacuum(self, *, on: bool) -> None:
        """Start or end autovacuum in all databases."""
        self.execute(f"alter system set autovacuum = {'on' if on else 'off'}")
        self.execute("select pg_reload_conf()")
        eventually(lambda: self._vacuums() == on)

    def _vacuums(self) -> bool:
        with contextlib.closing(self.embedded.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute("select 1 from pg_stat_activity where backend_type like 'autovacuum%'")
            return cursor.fetchone() is not None

    def _takes_writes(self) -> bool:
        with contextlib.closing(self.embedded.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute("show default_transaction_read_only")
            row = cursor.fetchone()
            return row == ("off",)

    @contextlib.contextmanager
    def few_connections(self, url: str, number: int) -> Iterator[str]:
        """The URL with a role that may open so many connections at once, and has the rights of the owner."""
        self.execute(f"create role few login connection limit {number} in role postgres")
        try:
            yield url.replace("postgres@", "few@")
        finally:
            self.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'few'")
            self.execute("drop role few")

    @contextlib.contextmanager
    def new_database(self, *, migrated: bool = True) -> Iterator[str]:
        """The URL of a database that exists during the block."""
        if migrated:
            self._make_template()
        name = f"test_{next(self._numbers)}"
        self._maintain(f"create database {name} template {TEMPLATE if migrated else 'template0'} strategy file_copy")
        try:
            yield self.url(name)
        finally:
            self._maintain(f"drop database {name} with (force)")

    def _maintain(self, statement: str) -> None:
        """Run one statement on a connection that is kept for the next test.

        After a crash of the server, psycopg2 may raise any of its errors: each leads to a second attempt on a new connection.
        """
        try:
            self._execute(statement)
        except psycopg2.Error:
            self._kept = None
            self._execute(statement)

    def _execute(self, statement: str) -> None:
        if self._kept is None:
            self._kept = self.embedded.connect("postgres")
            self._kept.autocommit = True
        with self._kept.cursor() as cursor:
            cursor.execute(statement)

    def _make_template(self) -> None:
        if self._template_made:
            return
        self.execute(f"drop database if exists {TEMPLATE}")
        self.execute(f"create database {TEMPLATE}")
        engine = database.create(Settings(paths=Paths(home=Path("/nonexistent")), database=Database(url=self.url(TEMPLATE))))
        try:
            migrate.migrate(engine)
        finally:
            engine.dispose()
        self._template_made = True


@dataclass
class RedisServer:
    """A running Redis. `new_database` flushes and returns its numbered databases in turn, and number 0 for the whole module."""

    embedded: EmbeddedRedis
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.cycle(range(1, 16)))

    def new_database(self, *, of_module: bool = False) -> str:
        """A broker URL whose database is empty."""
        number = 0 if of_module else next(self._numbers)
        with contextlib.closing(redis.Redis(unix_socket_path=str(self.embedded.socket), db=number)) as client:
            client.flushdb()
        return f"redis+socket://{self.embedded.socket}?virtual_host={number}"


@contextlib.contextmanager
def running_postgres(folder: Path, options: Mapping[str, str] = FAST) -> Iterator[PostgresServer]:
    """A PostgreSQL in this folder, fast rather than safe."""
    with Supervisor(folder / "logs") as supervisor:
        embedded = EmbeddedPostgres(data=folder / "data", run_folder=folder / "run", supervisor=supervisor, options=options)
        embedded.start()
        yield PostgresServer(embedded)


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """A Redis with its socket in this folder."""
    with Supervisor(folder / "logs") as supervisor:
        embedded = EmbeddedRedis(run_folder=folder / "run", supervisor=supervisor, rules=EVERYTHING)
        embedded.start()
        yield RedisServer(embedded)


def settings_in(folder: Path, database_url: str, broker_url: str) -> Settings:
    """Settings with this database and broker, and a new home and DAGs folder in `folder`."""
    home, dags = folder / "home", folder / "dags"
    home.mkdir()
    dags.mkdir()
    # This database is not that of the home, so no process makes a key.
    (home / "fernet.key").write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
    (home / "fernet.key").chmod(0o600)
    return Settings(paths=Paths(home=home, dags_folder=dags), database=Database(url=database_url), broker=Broker(url=broker_url))
