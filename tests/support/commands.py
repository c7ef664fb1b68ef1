"""`paceline ...` in processes that are forked from one that has imported the commands: 0.1 s of CPU each, not 0.5 s."""

import atexit
import contextlib
import functools
import subprocess
from collections.abc import Mapping, Sequence

from support.fork_server import ForkServer, running_fork_server

COMMAND = "from scheduler.cli import main; main()"
#: Modules that commands import on first use.
MODULES = (
    "scheduler.cli.tables", "scheduler.cli.backfills", "scheduler.cli.dags", "scheduler.cli.health", "scheduler.cli.queues",
    "scheduler.cli.pools", "scheduler.cli.progress", "scheduler.cli.runs", "scheduler.cli.tasks", "scheduler.messaging.wakeups",
    "scheduler.store.actions.clear", "scheduler.store.queueing.pools", "scheduler.store.dags.schedules",
    "scheduler.store.read.operations", "scheduler.store.read.reads", "scheduler.store.upkeep.notices",
    "sqlalchemy.dialects.postgresql.psycopg2",
)  # fmt: skip


def run(arguments: Sequence[str], *, env: Mapping[str, str], timeout: float) -> "subprocess.CompletedProcess[str]":
    """Run `paceline ...` to its end with this environment; `timeout` is seconds."""
    return _server().run(COMMAND, arguments, env=env, timeout=timeout)


@functools.cache
def _server() -> ForkServer:
    """Started on first use, and ended with this process."""
    ending = contextlib.ExitStack()
    atexit.register(ending.close)
    return ending.enter_context(running_fork_server(*MODULES))
