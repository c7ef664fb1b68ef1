"""A database role of workers at the session's PostgreSQL."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg2
import psycopg2.errors
import pytest
from support.servers import PostgresServer

from scheduler.settings import Settings
from scheduler.store.db import database

ROLE = 'worker "of" a test'


@pytest.fixture
def role(postgres_server: PostgresServer, settings: Settings) -> Iterator[str]:
    """The URL of the database as ROLE, which has no rights yet."""
    quoted = ROLE.replace('"', '""')
    postgres_server.execute(f'create role "{quoted}" login')
    yield settings.database_url.replace("postgres@", "worker%20%22of%22%20a%20test@")
    engine = database.create(settings, pool_size=1)
    with engine.begin() as connection:
        connection.exec_driver_sql(f'drop owned by "{quoted}"')
    engine.dispose()
    postgres_server.execute(f'drop role "{quoted}"')


@pytest.fixture
def engine(settings: Settings) -> Iterator[Any]:
    """An engine of the tables' owner."""
    engine = database.create(settings, pool_size=1)
    yield engine
    engine.dispose()


def allowed(cursor: Any, statements: Iterable[str]) -> list[str]:
    """The statements that a role may execute."""
    found = []
    for statement in statements:
        with contextlib.suppress(psycopg2.errors.InsufficientPrivilege):
            cursor.execute(statement)
            found.append(statement)
    return found


def as_role(url: str, **options: Any) -> Any:
    """A connection in autocommit mode that closes with the block."""
    connection = psycopg2.connect(url, **options)
    connection.autocommit = True
    return contextlib.closing(connection)
