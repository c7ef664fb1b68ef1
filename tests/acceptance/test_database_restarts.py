"""PostgreSQL is killed and starts again under work: running tasks go on and report later, nobody is taken for dead."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty import faulty_stack, full_only
from support.ledger import Ledger
from support.servers import PostgresServer, running_postgres
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

#: Longer than a worker may be silent here, so that whoever judges too early is seen.
AWAY_S = 4.0


@pytest.fixture
def own_postgres(short_folder: Path) -> Iterator[PostgresServer]:
    with running_postgres(short_folder / "own") as server:
        yield server


@pytest.fixture
def ledger(postgres_server: PostgresServer) -> Iterator[Ledger]:
    """On the session's server, which stays."""
    with postgres_server.new_database(migrated=False) as url:
        yield Ledger(url).create()


@full_only
def test_running_tasks_survive_a_crash_of_the_database(
    own_postgres: PostgresServer, settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    body = f"first = [task(task_id=f'a{{n}}')(lambda: work({AWAY_S + 3}))() for n in range(3)]"
    files = {"long.py": ledger.dag("long", f"{body}\nfirst >> task(task_id='b')(lambda: work())()")}
    with own_postgres.new_database() as url, StackFactory(settings_with(settings, url)) as factory:
        with faulty_stack(factory, ledger, tmp_path / "faults", files=files, workers=[("default", 2)] * 2, waiters=0) as faulty:
            faulty.trigger("long", 1, "r")
            eventually(lambda: len(ledger.rows("select 1 from ledger")) == 3, timeout=30, message=faulty.stack.logs)
            faulty.engine.dispose()

            postgres = own_postgres.embedded.supervisor
            with postgres._guard:  # its watcher does not start it again meanwhile
                postgres.kill(own_postgres.embedded.name)
                back_at = time.monotonic() + AWAY_S
                eventually(lambda: time.monotonic() >= back_at, timeout=AWAY_S + 1)

            eventually(lambda: answers(url), timeout=60, interval=0.2)
            faulty.settle(timeout=60)
            verdict = ledger.judge(url)
            tries = faulty.rows("select state, try_number from task_instance order by task_id")
    assert tries == [("success", 1)] * 4
    assert verdict.ok and verdict.executions == 4 and not verdict.overtaken, verdict


def settings_with(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})


def answers(url: str) -> bool:
    try:
        return Ledger(url).rows("select 1") == [(1,)]
    except Exception:
        return False
