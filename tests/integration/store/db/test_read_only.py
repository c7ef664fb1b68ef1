"""Servers that accept no writes for a moment, time limits of every connection, and early vacuum of busy tables."""

import threading
from collections.abc import Callable, Iterator

import psycopg2
import pytest
from psycopg2 import errors
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError
from support.scenario import Scenario, chain
from support.servers import PostgresServer
from support.waiting import eventually

from paceline.exceptions import ReadOnlyError
from paceline.states import TaskState
from scheduler.deciding.following import NO_MOVES
from scheduler.store.db import database, sqlstates
from scheduler.store.worker.claims import Claim, Ending
from scheduler.store.worker.hot_path import HotPath

Switch = Callable[[bool], None]


@pytest.fixture
def read_only(postgres_server: PostgresServer) -> Iterator[Switch]:
    """Switch the session's server to read-only and back."""
    yield lambda on: postgres_server.take_writes(not on)
    postgres_server.take_writes(True)


@pytest.fixture
def claimed(scenario: Scenario) -> Claim:
    scenario.start(chain("c", 2), run_id="r")
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    return claim


def test_a_worker_may_repeat_statements_that_a_read_only_server_refused(
    scenario: Scenario, claimed: Claim, read_only: Switch
) -> None:
    ending = Ending(TaskState.SUCCESS)
    read_only(True)

    with pytest.raises(psycopg2.Error) as refused:
        eventually(lambda: scenario.follower.report(claimed, ending))
    # The server's own error: not an error of fast-follow, after which the report would be repeated alone.
    assert refused.value.pgcode == "25006"
    assert sqlstates.is_passing(refused.value)
    with pytest.raises(psycopg2.OperationalError) as unreachable:
        HotPath(scenario.settings, scenario.worker_id).now()
    assert sqlstates.is_passing(unreachable.value)

    read_only(False)
    assert scenario.follower.report(claimed, ending).is_stored


def test_no_scheduler_ends_over_a_read_only_server(scenario: Scenario, claimed: Claim, read_only: Switch) -> None:
    read_only(True)
    for timer in scenario.schedulers[0].timers.values():
        timer.due_at = 0.0

    scenario.schedulers[0].run_once()
    complaint = scenario.schedulers[0].health.database
    assert complaint.since is not None

    read_only(False)
    assert scenario.follower.report(claimed, Ending(TaskState.SUCCESS)).is_stored
    scenario.run_to_end()
    assert set(scenario.states().values()) == {"success"}


def write(connection: Connection) -> None:
    connection.exec_driver_sql("update pool set slots = slots")


@pytest.fixture
def engine(scenario: Scenario) -> Iterator[Callable[[float], Engine]]:
    """Engines with a patience in seconds, already connected."""
    made: list[Engine] = []

    def make(patience_s: float) -> Engine:
        made.append(database.create(scenario.settings, pool_size=1, patience_s=patience_s))
        database.transact(made[-1], write)
        return made[-1]

    yield make
    for one in made:
        one.dispose()


def test_a_command_waits_for_a_server_to_take_writes_again(engine: Callable[[float], Engine], read_only: Switch) -> None:
    patient, impatient = engine(30.0), engine(0.0)
    read_only(True)

    with pytest.raises(OperationalError) as refused:
        eventually(lambda: database.transact(impatient, write))
    assert isinstance(database.translate(refused.value), ReadOnlyError)
    back = threading.Timer(0.3, read_only, (False,))
    back.start()
    database.transact(patient, write)
    back.join()


def test_a_refused_write_closes_its_pooled_connection_which_may_lead_to_a_former_primary(
    engine: Callable[[float], Engine], read_only: Switch
) -> None:
    pooled = engine(0.0)

    def backend() -> int:
        with pooled.connect() as connection:
            return int(connection.exec_driver_sql("select pg_backend_pid()").scalar_one())

    before = backend()
    assert backend() == before
    read_only(True)
    with pytest.raises(OperationalError):
        eventually(lambda: database.transact(pooled, write))
    read_only(False)

    assert backend() != before


def test_a_transaction_whose_session_the_server_ended_is_repeated(scenario: Scenario, claimed: Claim) -> None:
    """As of a worker that was stopped while it held joins: 25P03, or a closed socket."""
    idle = "select count(*) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"

    def stopped_while_it_decides() -> None:
        with scenario.hot.locked(claimed, NO_MOVES):
            scenario.hot.read("select set_config('idle_in_transaction_session_timeout', '10ms', true)", ())
            eventually(lambda: scenario.rows(idle) == [(0,)])
            scenario.hot.now()

    with pytest.raises(psycopg2.Error) as ended:
        stopped_while_it_decides()

    assert sqlstates.is_passing(ended.value)
    assert scenario.follower.report(claimed, Ending(TaskState.SUCCESS)).is_stored


def test_an_error_of_the_call_itself_does_not_pass(scenario: Scenario) -> None:
    with pytest.raises(errors.UndefinedTable) as wrong:
        scenario.hot.read("select * from nothing_of_that_name", ())

    assert not sqlstates.is_passing(wrong.value)


CHURNING = ("task_instance", "dag_run", "xcom", "notice", "deferral", "process", "dag_file", "dag_schedule")


@pytest.mark.parametrize(
    ("limit", "engine_has", "child_has"),
    [
        ("statement_timeout", "7s", "7s"),
        ("lock_timeout", "30s", "30s"),
        ("idle_in_transaction_session_timeout", "10s", "5s"),
        ("timezone", "UTC", "UTC"),
    ],
)
def test_every_connection_has_its_limits(
    make_scenario: Callable[..., Scenario], limit: str, engine_has: str, child_has: str
) -> None:
    scenario = make_scenario(database={"statement_timeout": 7.0})

    assert scenario.rows(f"show {limit}") == [(engine_has,)]
    assert scenario.hot.read(f"show {limit}", ()) == [(child_has,)]


def test_a_statement_that_takes_too_long_is_ended_and_logged(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(database={"statement_timeout": 0.05})

    with pytest.raises(OperationalError) as given_up:
        scenario.rows("select pg_sleep(10)")
    assert str(database.translate(given_up.value)) == (
        "PostgreSQL canceled a statement: canceling statement due to statement timeout. Try again when the server is less busy."
    )

    with scenario.engine.begin() as connection:
        database.patiently(connection)
        connection.exec_driver_sql("select pg_sleep(0.1)")
    assert scenario.rows("show statement_timeout") == [("50ms",)], "only that transaction may take its time"


def test_tables_that_churn_are_vacuumed_early(scenario: Scenario) -> None:
    rows = scenario.rows("select relname from pg_class where relkind = 'r' and 'autovacuum_vacuum_cost_delay=0' = any(reloptions)")

    assert {row[0] for row in rows} == set(CHURNING)
