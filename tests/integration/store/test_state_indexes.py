"""Partial indexes and the sets of paceline/states: an index holds exactly the set that it was created for."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event
from support.scenario import Scenario

from paceline.states import ACTIVE, DUE, HOLDS_SLOTS, IDLE, OPEN, RUN_UNFINISHED, STARTED
from scheduler.store.read import home

#: By index, the set its predicate lists.
LISTED: dict[str, frozenset[str]] = {
    "task_instance_unfinished": OPEN,
    "task_instance_holding": HOLDS_SLOTS,
    "task_instance_due": DUE,
    "task_instance_limited": ACTIVE,
    "dag_run_unfinished": RUN_UNFINISHED,
    "dag_run_backfill": RUN_UNFINISHED,
}
LIMITED = "(max_active_tis_per_dag is not null or max_active_tis_per_dagrun is not null)"


def test_index_predicates_are_sets_of_states(scenario: Scenario) -> None:
    predicates = scenario.rows(
        "select indexrelid::regclass::text, pg_get_expr(indpred, indrelid) from pg_index"
        " where indrelid in ('task_instance'::regclass, 'dag_run'::regclass) and indpred is not null"
    )
    listed = {name: re.findall(r"'(\w+)'", predicate) for name, predicate in predicates if "ARRAY" in predicate}

    assert {name: set(states) for name, states in listed.items()} == {name: set(states) for name, states in LISTED.items()}


@pytest.mark.parametrize(
    ("index", "table", "condition"),
    [
        ("task_instance_unfinished", "task_instance", f"dag_run_id = 1 and task_no = 1 and (state is null or state in {OPEN.sql})"),
        ("task_instance_unfinished", "task_instance", f"dag_run_id = 1 and task_no = 1 and (state is null or state in {IDLE.sql})"),
        ("task_instance_holding", "task_instance", f"pool = 'a' and queue = 'b' and state in {HOLDS_SLOTS.sql}"),
        ("task_instance_holding", "task_instance", f"pool = 'a' and queue = 'b' and state in {STARTED.sql}"),
        ("task_instance_due", "task_instance", f"due_at < now() and state in {DUE.sql}"),
        ("task_instance_limited", "task_instance", f"task_id = 'a' and {LIMITED} and state in {ACTIVE.sql}"),
        ("dag_run_unfinished", "dag_run", f"dag_id = 'a' and state in {RUN_UNFINISHED.sql}"),
        ("dag_run_backfill", "dag_run", f"backfill_id = 1 and state in {RUN_UNFINISHED.sql}"),
    ],
)
def test_a_list_of_states_finds_its_index(scenario: Scenario, index: str, table: str, condition: str) -> None:
    with scenario.engine.begin() as connection:
        connection.exec_driver_sql("set local enable_seqscan = off")
        plan = connection.exec_driver_sql(f"explain select 1 from {table} where {condition}").scalars().all()

    assert any(re.search(rf"\b{index}\b", line) for line in plan), plan


@pytest.mark.parametrize("read", [home.last_day, home.failed_runs])
def test_the_home_page_finds_the_runs_of_the_last_day_by_index(scenario: Scenario, read: Callable[..., Any]) -> None:
    statements: list[tuple[str, Any]] = []
    with scenario.engine.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append((arguments[2], arguments[3])))
        read(connection, home.filters())
        ((statement, parameters),) = statements
        connection.exec_driver_sql("set local enable_seqscan = off")
        plan = connection.exec_driver_sql(f"explain {statement}", parameters).scalars().all()

    assert any("dag_run_ended" in line for line in plan), plan
    assert any("Index Cond: (ended_at >" in line for line in plan), plan
