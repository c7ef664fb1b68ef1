"""A PgBouncer before a test's PostgreSQL."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest

from scheduler.embedded import home as homes
from scheduler.embedded.supervisor import Command, Supervisor
from support.servers import PostgresServer
from support.waiting import eventually

#: Debian installs it there, and not every user has that folder in PATH.
PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
CONFIG = """
[databases]
* = host={postgres} user=postgres

[pgbouncer]
unix_socket_dir = {folder}
listen_port = 5432
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
"""


@dataclass(frozen=True)
class PgBouncer:
    """A running PgBouncer, with its socket in `folder`."""

    folder: Path
    supervisor: Supervisor

    def kill(self) -> None:
        """End it with all its connections. It starts again after a second."""
        os.kill(self.supervisor.pid("pgbouncer"), signal.SIGKILL)


@contextmanager
def running_pgbouncer(postgres: PostgresServer, folder: Path, mode: str, *, size: int = 100) -> Iterator[PgBouncer]:
    """A PgBouncer with this pool_mode and at most `size` connections to each database of the server."""
    if PROGRAM is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    identity = homes.server_identity(postgres.embedded.data)
    homes.private_folder(folder, identity)
    if identity is not None:
        homes.let_pass(folder.parent, identity)
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(postgres=postgres.embedded.run_folder, folder=folder, mode=mode, size=size))
    config.chmod(0o644)
    with Supervisor(folder.with_name(f"{folder.name}-logs")) as supervisor:
        supervisor.start(Command(name="pgbouncer", argv=(PROGRAM, str(config)), user=identity))
        eventually(lambda: answers(folder), message=lambda: supervisor.log_tail("pgbouncer", 5))
        yield PgBouncer(folder, supervisor)


def answers(folder: Path) -> bool:
    """Whether it hands out connections."""
    try:
        psycopg2.connect(host=str(folder), dbname="postgres").close()
    except psycopg2.OperationalError:
        return False
    return True
