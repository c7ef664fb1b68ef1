"""PostgreSQL is killed and restarts under load: running tasks continue and report later, and no process is declared lost."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faulty import default_times, faulty_stack
from support.ledger import Ledger
from support.servers import DURABLE, PostgresServer, running_postgres
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

#: Longer than a worker may be silent here, so that a premature verdict shows.
AWAY_S = 4.0


@pytest.fixture
def own_postgres(short_folder: Path) -> Iterator[PostgresServer]:
    with running_postgres(short_folder / "own", DURABLE) as server:
        yield server


def kill_server(server: PostgresServer) -> None:
    """And keep it away for a while."""
    postgres = server.embedded.supervisor
    with postgres._guard:  # its watcher does not start it again meanwhile
        os.kill(postgres.pid(server.embedded.name), signal.SIGKILL)
        back_at = time.monotonic() + AWAY_S
        eventually(lambda: time.monotonic() >= back_at, timeout=AWAY_S + 1)


def kill_backend(server: PostgresServer) -> None:
    """As when memory runs out: the server ends all other backends and recovers, and stays the same process."""
    with contextlib.closing(server.embedded.connect("postgres")) as connection, connection.cursor() as cursor:
        cursor.execute("select pid from pg_stat_activity where application_name = 'paceline worker' limit 1")
        os.kill(cursor.fetchone()[0], signal.SIGKILL)


@pytest.mark.on_demand
@pytest.mark.parametrize("crash", [kill_server, kill_backend])
def test_running_tasks_survive_a_crash_of_the_database(
    crash: Callable[[PostgresServer], None], own_postgres: PostgresServer, settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    body = f"first = [task(task_id=f'a{{n}}')(lambda: work({AWAY_S + 3}))() for n in range(3)]"
    files = {"long.py": ledger.dag("long", f"{body}\nfirst >> task(task_id='b')(lambda: work())()")}
    with own_postgres.new_database() as url, StackFactory(settings_with(settings, url)) as factory:
        with faulty_stack(factory, ledger, tmp_path / "faults", files=files, workers=[("default", 2)] * 2, waiters=0) as faulty:
            faulty.trigger("long", 1, "r")
            eventually(lambda: len(ledger.rows("select 1 from ledger")) == 3, timeout=60, message=faulty.stack.logs)
            faulty.engine.dispose()

            crash(own_postgres)
            eventually(lambda: answers(url), timeout=120, interval=0.2)
            faulty.settle(timeout=120)
            verdict = ledger.check(url)
            tries = faulty.rows("select state, try_number from task_instance order by task_id")
    assert tries == [("success", 1)] * 4
    assert verdict.ok and verdict.executions == 4 and not verdict.overtaken, verdict


@pytest.mark.long
def test_queued_tasks_start_immediately_after_a_clean_restart(
    own_postgres: PostgresServer, settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    """A clean restart undoes no claim, so no process waits for workers to confirm theirs."""
    files = {"two.py": ledger.dag("two", "[task(task_id=f't{n}')(lambda: work(2))() for n in range(2)]")}
    with own_postgres.new_database() as url, StackFactory(settings_with(settings, url)) as factory:
        options = {"files": files, "workers": [("default", 1)], "waiters": 0, "env": default_times()}
        with faulty_stack(factory, ledger, tmp_path / "faults", **options) as faulty:
            faulty.trigger("two", 1, "r")
            eventually(lambda: len(ledger.rows("select 1 from ledger")) == 1, timeout=60, message=faulty.stack.logs)
            (queued,) = faulty.rows("select id from task_instance where state = 'queued'")
            faulty.engine.dispose()

            postmaster = own_postgres.embedded.supervisor.pid("postgres")
            os.kill(postmaster, signal.SIGINT)
            eventually(lambda: own_postgres.embedded.supervisor.pid("postgres") != postmaster, timeout=120)
            eventually(lambda: answers(url), timeout=120, interval=0.1)

            faulty.settle(timeout=120)
            verdict = ledger.check(url)
            waited = "select extract(epoch from started_at - pg_postmaster_start_time())::float from task_instance where id = %s"
            ((waited_s,),) = faulty.rows(waited, queued[0])
    assert verdict.ok and verdict.executions == 2, verdict
    assert 0 < waited_s < settings.worker.heartbeat_timeout - 1


def settings_with(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})


def answers(url: str) -> bool:
    try:
        return Ledger(url).rows("select 1") == [(1,)]
    except Exception:
        return False
