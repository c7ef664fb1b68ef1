"""Claims use asynchronous commit: how workers and schedulers recover a claim that a crash of PostgreSQL has undone."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sqlalchemy.exc import OperationalError
from support.scenario import Scenario, chain
from support.servers import DURABLE, PostgresServer, running_postgres
from support.waiting import eventually

from paceline.exceptions import StaleTryError
from paceline.states import TaskState
from scheduler.services.rescue import Rescue
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.secrets import variables
from scheduler.store.upkeep import processes
from scheduler.store.worker import claims, dispatches, external_jobs, xcoms
from scheduler.store.worker.claims import Ending
from scheduler.store.worker.hot_path import HotPath

#: Commits that do not wait for the disk are written long after.
LATE = {"wal_writer_delay": "10s"}
WORK = """
import os, time
with DAG("d", schedule=None):
    @task(retries=1)
    def t():
        with open({ran!r}, "a") as file:
            file.write("x")
        while not os.path.exists({go!r}):
            time.sleep(0.05)
    t()
"""


def test_a_report_of_a_dispatch_whose_claim_was_undone_is_stored_and_nothing_runs_twice(bench: Any, tmp_path: Path) -> None:
    """The task ends before the next heartbeat could have asserted the claim again."""
    ran, go = tmp_path / "ran", tmp_path / "go"
    bench.worker(PACELINE_WORKER_HEARTBEAT_SEC="100", PACELINE_WORKER_HEARTBEAT_TIMEOUT="1000")
    run = bench.run(WORK.format(ran=str(ran), go=str(go)), t="running")
    eventually(ran.exists)
    (started,) = bench.scenario.rows("select started_at from task_instance where task_id = 't'")[0]
    with psycopg2.connect(bench.settings.database_url) as connection, connection.cursor() as cursor:
        cursor.execute("update task_instance set state = 'queued', started_at = null, worker = null where task_id = 't'")
    connection.close()

    go.touch()
    bench.wait(run)

    assert ran.read_text() == "x"
    assert bench.scenario.run_state(run) == "success"
    assert bench.column("t", "try_number") == 1
    assert bench.column("t", "started_at") == started


@pytest.fixture
def server(short_folder: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL of this test alone, which may crash."""
    short_folder.chmod(0o755)
    with running_postgres(short_folder, DURABLE | LATE) as made:
        yield made


@pytest.fixture
def scenario(server: PostgresServer, settings: Settings) -> Iterator[Scenario]:
    """One chain, whose first task is queued, on that server."""
    with server.new_database() as url:
        scenario = Scenario(settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})}))
        scenario.start(chain("c", 2), run_id="r")
        yield scenario
        scenario.close()


def crash_backend(server: PostgresServer, scenario: Scenario) -> None:
    """SIGKILL to one backend: PostgreSQL ends all others and recovers, and stays the same process."""
    (pid,) = scenario.hot.read("select pg_backend_pid()", ())[0]
    with contextlib.closing(server.embedded.connect()) as other:
        os.kill(pid, signal.SIGKILL)
        # Until the server has noticed, it takes connections.
        eventually(lambda: _is_cut(other))
    _back(server, scenario)


def _is_cut(connection: Any) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("select 1")
    except psycopg2.Error:
        return True
    return False


def crash_server(server: PostgresServer, scenario: Scenario) -> None:
    postmaster = server.embedded.supervisor.pid("postgres")
    os.kill(postmaster, signal.SIGQUIT)
    eventually(lambda: server.embedded.supervisor.pid("postgres") != postmaster, timeout=60)
    _back(server, scenario)


def restart(server: PostgresServer, scenario: Scenario) -> None:
    postmaster = server.embedded.supervisor.pid("postgres")
    os.kill(postmaster, signal.SIGINT)
    eventually(lambda: server.embedded.supervisor.pid("postgres") != postmaster, timeout=60)
    _back(server, scenario)


def _back(server: PostgresServer, scenario: Scenario) -> None:
    scenario.hot.close()
    scenario.engine.dispose()

    def answers() -> bool:
        with contextlib.suppress(psycopg2.OperationalError):
            server.embedded.connect().close()
            return True
        return False

    eventually(answers, timeout=60)
    scenario.engine.dispose()


@pytest.mark.parametrize("crash", [crash_backend, crash_server])
def test_a_claim_that_a_crash_undid_is_not_given_away_before_its_worker_could_restore_it(
    server: PostgresServer, scenario: Scenario, crash: Any
) -> None:
    """A second message of it is about: sent again, or back with an old state of Redis."""
    (message,) = scenario.messages()
    ti_id, dispatch_id = message
    other = processes.register(scenario.engine, kind="worker", name="other", host="h", pid=2, queues=["default"], concurrency=1)
    assert scenario.claim(message) is not None
    crash(server, scenario)
    assert scenario.states()["t000"] == "queued", "the crash has undone the claim"

    elsewhere = HotPath(scenario.settings, other)
    assert elsewhere.claim(*message) is None
    assert scenario.rows("select count(*) from crash_free") == [(1,)], "the first process that connects notes the crash"
    assert scenario.schedulers[0].service(Rescue)._lost_messages() == []

    assert transact(scenario.engine, processes.still_held, scenario.worker_id, {dispatch_id: ti_id}) == {dispatch_id}
    assert scenario.states()["t000"] == "running"
    scenario.sql("update crash_free set since = since - interval '1 hour'")
    assert elsewhere.claim(*message) is None
    elsewhere.close()


@pytest.mark.parametrize("crash", [crash_backend, crash_server])
def test_a_connection_that_ends_with_a_crash_is_lost_and_no_fault_of_the_statement(
    server: PostgresServer, scenario: Scenario, crash: Any
) -> None:
    """A worker and a scheduler continue on their next connection after such an error, and with no other."""
    survivor = HotPath(scenario.settings, scenario.worker_id)
    survivor.now()
    with scenario.engine.connect() as connection:
        connection.exec_driver_sql("select 1")
        crash(server, scenario)

        with pytest.raises(psycopg2.OperationalError):
            survivor.now()
        with pytest.raises(OperationalError):
            connection.exec_driver_sql("select 1")
        connection.invalidate()
    assert survivor.now() is not None
    survivor.close()


def test_values_that_a_task_stored_survive_a_crash_of_the_server(server: PostgresServer, scenario: Scenario) -> None:
    """Only the claim does not wait for the disk: a task that continues and succeeds must not have lost its stored values."""
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    xcoms.push(scenario.hot, claim, "key", '"value"')
    scenario.hot.write(claim.writer, variables.WRITE_OF_TASK, ("name", "text", None))
    job = external_jobs.add(
        scenario.hot.dicts, claim.writer, max_tries=0, queue="spark", tag="tag", kind="standalone", deploy_mode="cluster",
        master="spark://m:7077", reach={},
    )  # fmt: skip

    crash_backend(server, scenario)

    assert scenario.rows("select key, value #>> '{}' from xcom") == [("key", "value")]
    assert scenario.rows("select key, value from variable") == [("name", "text")]
    assert external_jobs.open_of(scenario.hot.dicts, claim.id) == [job]


def test_an_undone_claim_that_no_worker_restores_is_published_and_claimed_once_all_had_time(
    server: PostgresServer, scenario: Scenario
) -> None:
    (message,) = scenario.messages()
    crash_backend(server, scenario)
    scenario.sql("update task_instance set queued_at = queued_at - interval '1 hour', dispatched_at = null where state = 'queued'")
    rescue = scenario.schedulers[0].service(Rescue)
    now = scenario.rows("select clock_timestamp()")[0][0]

    assert rescue.rescue(now).sent_again == []
    assert scenario.claim(message) is None
    # As if so much time had passed.
    scenario.sql("update crash_free set since = since - make_interval(secs => %s)", scenario.settings.worker.heartbeat_timeout)

    (sent,) = rescue.rescue(now).sent_again
    assert (sent.ti_id, sent.dispatch_id) != message, "it has a dispatch id of its own"
    assert scenario.claim(message) is None
    assert scenario.claim((sent.ti_id, sent.dispatch_id)) is not None
    assert rescue.rescue(now).sent_again == []


def test_a_worker_that_returns_after_its_undone_claim_was_given_away_changes_nothing(
    server: PostgresServer, scenario: Scenario
) -> None:
    """It was stopped since before the crash for longer than the others waited for it, and its task has ended meanwhile."""
    (message,) = scenario.messages()
    away = scenario.claim(message)
    assert away is not None
    crash_backend(server, scenario)
    scenario.hot.now()  # connects, which notes the crash
    scenario.sql("update task_instance set queued_at = queued_at - interval '1 hour' where state = 'queued'")
    scenario.sql("update crash_free set since = since - make_interval(secs => %s)", scenario.settings.worker.heartbeat_timeout)
    scenario.schedulers[0].service(Rescue).rescue(scenario.rows("select clock_timestamp()")[0][0])
    other = processes.register(scenario.engine, kind="worker", name="other", host="h", pid=2, queues=["default"], concurrency=1)
    elsewhere = HotPath(scenario.settings, other)
    claimed = [elsewhere.claim(*one) for one in dict.fromkeys([message, *scenario.messages()])]
    assert [one is not None for one in claimed].count(True) == 1

    assert transact(scenario.engine, processes.still_held, scenario.worker_id, {away.dispatch_id: away.id}) == set()
    with pytest.raises(StaleTryError):
        xcoms.push(scenario.hot, away, "key", '"late"')
    assert not dispatches.claim_again(scenario.hot, away)
    assert not scenario.follower.report(away, Ending(TaskState.SUCCESS)).is_stored

    assert scenario.rows("select state, worker from task_instance where task_id = 't000'") == [("running", other)]
    elsewhere.close()


def test_tasks_queued_after_a_crash_are_claimed_immediately(server: PostgresServer, scenario: Scenario) -> None:
    crash_backend(server, scenario)
    with scenario.engine.connect() as connection:
        assert not claims.crash_settled(connection, seconds=0)
    scenario.hot.now()
    scenario.trigger("c", run_id="later")
    scenario.turn()

    later = scenario.rows("select id from task_instance where state = 'queued' order by id desc limit 1")[0][0]
    taken = {message[0]: scenario.claim(message) is not None for message in scenario.messages()}
    assert taken[later]
    assert list(taken.values()).count(False) == 1


def test_after_a_clean_restart_queued_tasks_are_claimed_immediately(server: PostgresServer, scenario: Scenario) -> None:
    (message,) = scenario.messages()
    restart(server, scenario)

    with scenario.engine.connect() as connection:
        assert connection.exec_driver_sql("select clock_timestamp() - pg_postmaster_start_time() < interval '10 s'").scalar_one()
        assert claims.crash_settled(connection, seconds=0)
    assert scenario.claim(message) is not None
