"""A database and numbers of Redis for another system on the servers of a Stack, and the CPU of its processes."""

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
from psycopg2 import sql
from redis import Redis

from bench.stack import Stack
from scheduler.embedded.supervisor import Supervisor


@contextlib.contextmanager
def database(stack: Stack, name: str) -> Iterator[str]:
    """The URL of a new, empty database of the stack's PostgreSQL, which is dropped afterwards."""
    identifier = sql.Identifier(name)
    with stack.connection.cursor() as cursor:
        cursor.execute(sql.SQL("create database {}").format(identifier))
        try:
            yield other_database(stack.settings.database_url, name)
        finally:
            cursor.execute(sql.SQL("drop database {} with (force)").format(identifier))


@contextlib.contextmanager
def redis_number(stack: Stack, number: int) -> Iterator[str]:
    """The URL of a numbered database of the stack's Redis, which is empty, and is flushed afterwards. 0 has Paceline's messages."""
    with contextlib.closing(Redis(unix_socket_path=redis_socket(stack), db=number)) as client:
        client.flushdb()
        try:
            yield other_number(stack.settings.broker_url, number)
        finally:
            client.flushdb()


def redis_socket(stack: Stack) -> str:
    """The path of the Unix socket of the stack's Redis."""
    return urlsplit(stack.settings.broker_url).path


def other_database(url: str, name: str) -> str:
    """The URL of another database of the same PostgreSQL."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def other_number(url: str, number: int) -> str:
    """The URL of another numbered database of the same Redis."""
    if url.startswith("redis+socket:"):
        return f"{url.partition('?')[0]}?virtual_host={number}"
    return urlsplit(url)._replace(path=f"/{number}").geturl()


def cpu_seconds(processes: Supervisor) -> float:
    """CPU seconds of all supervised processes since their start, with their descendants, also ended ones."""
    used = 0.0
    for name in processes.names():
        # The guardian of each process reaps orphans.
        guardian = psutil.Process(processes.pid(name)).parent()
        for process in [guardian, *guardian.children(recursive=True)] if guardian else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
    return used
