"""The connection of a pool process: it closes when it is idle, and each statement that opens it again gets the same session."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg2
import pytest
from support.scenario import Scenario, chain
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.deciding.following import Plan
from scheduler.store.db import sqlstates
from scheduler.store.worker.hot_path import HotPath

PID = "select pg_backend_pid()"
SESSION = """
select name, setting from pg_settings where source in ('session', 'client') or name in ('synchronous_commit', 'search_path')
union all select 'prepared ' || name, statement from pg_prepared_statements
union all select 'actor', current_setting('paceline.actor')
union all select 'user', session_user
order by 1
"""
Make = Callable[[float], HotPath]


@pytest.fixture
def make(scenario: Scenario) -> Iterator[Make]:
    """Make the connection of a pool process that closes after so many idle seconds."""
    made: list[HotPath] = []

    def one(idle_s: float) -> HotPath:
        worker = scenario.settings.worker.model_copy(update={"idle_connection_seconds": idle_s})
        made.append(HotPath(scenario.settings.model_copy(update={"worker": worker}), scenario.worker_id))
        return made[-1]

    yield one
    for hot in made:
        hot.close()


def closes(scenario: Scenario, pid: int) -> None:
    eventually(lambda: not scenario.rows("select from pg_stat_activity where pid = %s", pid))


def closing_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "idle-connection"]


def test_an_idle_connection_closes_and_opens_again_with_the_same_session(scenario: Scenario, make: Make) -> None:
    hot = make(0.2)
    before, pid = hot.read(SESSION, ()), hot.value(PID, ())

    closes(scenario, pid)
    eventually(lambda: not closing_threads())

    assert hot.value(PID, ()) != pid
    assert hot.read(SESSION, ()) == before
    assert ("application_name", "paceline task") in before
    assert "prepared report" in dict(before)


def test_statements_keep_a_connection_open(make: Make) -> None:
    hot = make(0.5)
    pid = hot.value(PID, ())
    (closer,) = closing_threads()

    # Longer than it may be idle: after that time, the thread finds that the connection was used.
    eventually(lambda: hot.value("select clock_timestamp() - backend_start > interval '1.5 s' from pg_stat_activity"
                                 " where pid = pg_backend_pid()", ()), interval=0.02)  # fmt: skip

    assert hot.value(PID, ()) == pid
    assert closer.is_alive()


def test_zero_keeps_a_connection(make: Make) -> None:
    hot = make(0)
    hot.now()
    assert not closing_threads()


def test_a_transaction_is_not_closed_by_another_thread(scenario: Scenario, make: Make) -> None:
    scenario.start(chain("c", 2), run_id="r")
    (message,) = scenario.messages()
    hot = make(0)
    claim = hot.claim(*message)
    assert claim is not None
    other = threading.Thread(target=hot.close)

    with hot.locked(claim, Plan(joins=[1])):
        other.start()
        first, pid = hot.value("select pg_current_xact_id_if_assigned() is not null", ()), hot.value(PID, ())
        other.join(0.2)
        assert other.is_alive()
        assert first and hot.value(PID, ()) == pid

    other.join()
    assert hot.value(PID, ()) != pid


def test_a_forked_process_has_a_connection_of_its_own(make: Make) -> None:
    hot = make(0.2)
    pid = hot.value(PID, ())
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(hot.value(PID, ())).encode())
        finally:
            os._exit(0)
    os.close(writer)
    other = os.read(reader, 100)

    assert os.waitpid(child, 0)[1] == 0
    assert other and int(other) != pid
    assert hot.now()


def test_a_fork_waits_for_a_statement_of_another_thread(scenario: Scenario, make: Make) -> None:
    """Otherwise the forked process would inherit a lock that is never released."""
    hot = make(5)
    hot.now()
    sleeping = threading.Thread(target=lambda: hot.run("select pg_sleep(0.5)"))
    sleeping.start()
    eventually(lambda: scenario.rows("select from pg_stat_activity where query like '%%pg_sleep(0.5)' and state = 'active'"
                                     " and pid <> pg_backend_pid()"))  # fmt: skip

    child = os.fork()
    if child == 0:
        os._exit(7 if hot.now() else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    sleeping.join()


def test_changes_of_user_code_to_the_environment_do_not_reach_a_connection(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGGEQO", "off")
    hot = make(0)
    before = hot.read(SESSION, ())
    hot.close()
    changed = {"PGPORT": "1", "PGOPTIONS": "-c wrong=1", "PGSSLMODE": "require", "PGHOSTADDR": "192.0.2.1", "PGUSER": "x"}
    monkeypatch.delenv("PGGEQO")
    for name, value in changed.items():
        monkeypatch.setenv(name, value)

    assert hot.read(SESSION, ()) == before
    assert ("geqo", "off") in before
    assert {name: value for name, value in os.environ.items() if name.startswith("PG")} == changed


def test_a_refused_connection_is_passing_and_is_then_not_held(
    scenario: Scenario, make: Make, postgres_server: PostgresServer
) -> None:
    with postgres_server.few_connections(scenario.settings.database_url, 1) as url:
        hot = make(60)
        hot.settings = hot.settings.model_copy(update={"database": hot.settings.database.model_copy(update={"url": url})})
        with closing(psycopg2.connect(url)):
            with pytest.raises(psycopg2.OperationalError, match="too many connections") as refused:
                hot.now()
            assert sqlstates.is_passing(refused.value)
        eventually(lambda: not scenario.rows("select from pg_stat_activity where usename = 'few'"))

        pid = hot.value(PID, ())

        closes(scenario, pid)
        eventually(lambda: not closing_threads())
        assert hot.now()
        hot.close()
