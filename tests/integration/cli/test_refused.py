"""Databases and a Redis that no process can work with: every command ends with one sentence."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import redis
from support.servers import PostgresServer, RedisServer, running_redis

from scheduler.embedded.stack import PACELINE
from scheduler.settings import Settings

COMMANDS = (["scheduler"], ["worker"], ["waiter"], ["dags", "list"], ["variables", "set", "a", "1"], ["doctor"])


@pytest.fixture
def stranger(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.execute("create role stranger login")
    yield "stranger"
    postgres_server.execute("drop role stranger")


def output_of(environment: dict[str, str], command: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        [*PACELINE, *command], env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_missing_grants_are_one_sentence(
    command: list[str], stranger: str, settings: Settings, environment: dict[str, str]
) -> None:
    url = settings.database_url.replace("postgres@", f"{stranger}@")
    code, text = output_of(environment | {"PACELINE_DATABASE_URL": url, "PACELINE_WORKER_DATABASE_URL": url}, command)

    assert code == (1 if command == ["doctor"] else 4), text
    assert "The database role lacks a right: permission denied for table paceline_schema" in text
    assert "Run `paceline db migrate` as the owner of the tables to grant" in text
    assert "Traceback" not in text and "psycopg2.errors" not in text


@pytest.mark.parametrize("command", [["scheduler"], ["worker"], ["waiter"], ["web"], ["standalone"]], ids=" ".join)
def test_the_database_of_an_earlier_checkout_is_one_sentence(
    command: list[str], database_url: str, environment: dict[str, str]
) -> None:
    with contextlib.closing(psycopg2.connect(database_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("alter table paceline_schema drop column baseline; update paceline_schema set version_num = '0028'")

    code, text = output_of(environment, command)

    assert code == 4, text
    assert "The database has the schema 0028 of a Paceline before 0.2.0, which cannot be upgraded: back up" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("command", [["scheduler"], ["worker"], ["waiter"], ["doctor"]], ids=" ".join)
def test_a_redis_that_requires_a_password_is_one_sentence(command: list[str], closed: str, environment: dict[str, str]) -> None:
    code, text = output_of(environment | {"PACELINE_BROKER_URL": closed}, command)

    assert code == (1 if command == ["doctor"] else 4), text
    assert "Redis rejects the connection" in text
    assert "orrect PACELINE_BROKER_URL" in text
    assert "Traceback" not in text


@pytest.fixture
def closed(short_folder: Path) -> Iterator[str]:
    """The URL, without the password, of a Redis that requires one."""
    with running_redis(short_folder) as server:
        yield _close(server)


def _close(server: RedisServer) -> str:
    with redis.Redis(unix_socket_path=str(server.embedded.socket)) as client:
        client.execute_command("CONFIG", "SET", "requirepass", "secret")
    return f"redis+socket://{server.embedded.socket}?virtual_host=0"
