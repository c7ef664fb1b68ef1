"""The process that serves the catalog of a worker: it is given the socket and, on standard input, the settings."""

import os
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from scheduler.catalog import app
from scheduler.catalog.tables import Tables
from scheduler.process import fault_points, hardening
from scheduler.settings import Settings
from scheduler.store.db import database
from workers.process import logs

#: Database connections that the process keeps open.
CONNECTIONS = 4
#: Seconds after which an idle connection of a task is closed. A task that sends a commit on a connection which is closed just then
#: fails, because pyiceberg does not know whether it arrived. The end of a task closes its connections.
IDLE_S = 86_400


def main(number: int, worker: int) -> None:
    """Serve the catalog at a listening socket until the worker ends this process, or ends itself."""
    hardening.close()
    hardening.die_with_parent(worker, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = Settings.model_validate_json(sys.stdin.buffer.read())
    logs.to_stderr(settings.logs.format, role="catalog")
    fault_points.arm(os.environ, settings.database_url)
    tables = Tables(settings, database.create(settings, pool_size=CONNECTIONS, application="paceline catalog"))
    uvicorn.Server(config(app.create(tables, app.of_tries(tables)))).run(sockets=[socket.socket(fileno=number)])


def config(application: FastAPI) -> uvicorn.Config:
    """The configuration of uvicorn."""
    return uvicorn.Config(application, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=IDLE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
