"""Time limits for statements, locks and idle transactions of every connection, and early vacuum of tables with many updates."""

from collections.abc import Callable

import pytest
from sqlalchemy.exc import OperationalError
from support.scenario import Scenario

from scheduler.store.db import database

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
