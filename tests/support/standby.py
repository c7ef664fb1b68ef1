"""A streaming standby of a test's PostgreSQL, which can be promoted after the primary is lost."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from scheduler.embedded import home as homes
from scheduler.embedded import servers
from scheduler.embedded.servers import SUPERUSER, EmbeddedPostgres
from scheduler.embedded.supervisor import Supervisor
from support.servers import DURABLE, PostgresServer
from support.waiting import eventually

#: Options that a primary needs for a standby.
PRIMARY = DURABLE | {"wal_level": "replica", "max_wal_senders": "4"}


@contextmanager
def running_standby(primary: PostgresServer, folder: Path) -> Iterator[PostgresServer]:
    """A synchronous standby of `primary`: commits wait for it from now on."""
    data = folder / "data"
    identity = homes.server_identity(data)
    programs = servers.programs_of(data)
    homes.private_folder(data, identity)
    uid, gid = identity or (None, None)
    source = str(primary.embedded.run_folder)
    copy = [str(programs / "pg_basebackup"), "-D", str(data), "-h", source, "-U", SUPERUSER, "-R", "-X", "stream", "-c", "fast"]
    subprocess.run(
        copy,
        user=uid,
        group=gid,
        extra_groups=None if identity is None else [],
        cwd=folder,
        env=servers._environment(),
        check=True,
    )
    with Supervisor(folder / "logs") as supervisor:
        copied = EmbeddedPostgres(data=data, run_folder=folder / "run", supervisor=supervisor, options=PRIMARY)
        copied.start()
        primary.execute("alter system set synchronous_standby_names = '*'")
        primary.execute("select pg_reload_conf()")
        following = "select count(*) from pg_stat_replication where sync_state = 'sync'"
        eventually(lambda: ask(primary, following) == 1, timeout=60)
        yield PostgresServer(copied)


def ask(server: PostgresServer, question: str) -> object:
    """The single value that a statement returns."""
    with closing(server.embedded.connect("postgres")) as connection, connection.cursor() as cursor:
        cursor.execute(question)
        row = cursor.fetchone()
        return None if row is None else row[0]


def lose(server: PostgresServer) -> None:
    """Kill a server with SIGKILL, and do not restart it."""
    supervisor = server.embedded.supervisor
    with supervisor._guard:  # the supervisor must not restart it in the meantime
        os.kill(supervisor.pid(server.embedded.name), signal.SIGKILL)
        supervisor.stop(server.embedded.name)


def promote(server: PostgresServer) -> None:
    """Promote a standby, so that it accepts writes."""
    assert ask(server, "select pg_promote()") is True
