"""The process that serves the catalog of a worker: it is given the socket and, on standard input, the settings."""

import os
import signal
import socket
import sys

import uvicorn

from scheduler.catalog import app
from scheduler.catalog.tables import Tables
from scheduler.process import fault_points, hardening
from scheduler.settings import Settings
from scheduler.store.db import database
from workers.process import logs

#: Database connections that the process keeps open.
CONNECTIONS = 4


def main(number: int, worker: int) -> None:
    """Serve the catalog at a listening socket until the worker ends this process, or ends itself."""
    hardening.close()
    hardening.die_with_parent(worker, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = Settings.model_validate_json(sys.stdin.buffer.read())
    logs.to_stderr(settings.logs.format, role="catalog")
    fault_points.arm(os.environ, settings.database_url)
    tables = Tables(settings, database.create(settings, pool_size=CONNECTIONS, application="paceline catalog"))
    config = uvicorn.Config(app.create(tables, app.of_tries(tables)), log_config=None, access_log=False, lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=number)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
