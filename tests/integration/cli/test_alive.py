"""`paceline alive`: what a container's health check learns."""

import socket

import pytest
from sqlalchemy import Engine

from scheduler.settings import Settings
from scheduler.store import database, processes

from .conftest import Cli


@pytest.fixture
def engine(settings: Settings) -> Engine:
    return database.create(settings, pool_size=1, application="test")


def test_a_process_of_this_host_with_a_fresh_sign_of_life_is_alive(cli: Cli, engine: Engine) -> None:
    processes.register(engine, kind="worker", name="w", host=socket.gethostname(), pid=1)

    assert cli("alive", "worker").exit_code == 0
    assert cli("alive", "scheduler").exit_code == 1
    engine.dispose()


def test_a_process_of_another_host_or_one_that_stopped_does_not_count(cli: Cli, engine: Engine) -> None:
    processes.register(engine, kind="scheduler", name="s", host="elsewhere", pid=1)
    stopped = processes.register(engine, kind="scheduler", name="t", host=socket.gethostname(), pid=2)
    processes.stop(engine, stopped)

    refused = cli("alive", "scheduler")

    assert refused.exit_code == 1
    assert "No scheduler gives signs of life" in refused.stderr
    engine.dispose()
