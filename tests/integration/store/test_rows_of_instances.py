"""The rows of a task instance: a deletion takes them all, and no row is added to a task instance that is being deleted."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection
from support.scenario import Scenario, chain
from support.waiting import eventually

from paceline.exceptions import ConflictError
from scheduler.store.db import migrate
from scheduler.store.db.database import transact
from scheduler.store.runs import edits
from scheduler.store.upkeep import invariants

#: Those that outlive their task instance, with the reason.
KEPT = {
    "event": "the trigger of a deleted run deletes them, in the order of runs",
    "table_version": "the history of a table tells who published it",
    "table_try": "its files are removed later",
    "table_read": "retention deletes it by its age",
    "table_pin": "retention deletes it by its age",
}
OWNED = "select c.table_name from information_schema.columns c where c.column_name = 'task_instance_id' and c.table_schema = %s"
FILL = {
    "task_try": "insert into task_try (task_instance_id, try_number) values (%s, 1)",
    "xcom": "insert into xcom (task_instance_id, key, value) values (%s, 'k', '1')",
    "task_state": "insert into task_state (task_instance_id, key, value) values (%s, 'k', '1')",
    "deferral": "insert into deferral (task_instance_id, dispatch_id, classpath) values (%s, gen_random_uuid(), 'c')",
    "external_job": "insert into external_job (task_instance_id, try_number, dispatch_id, max_tries, queue, tag, kind, deploy_mode,"
    " master) values (%s, 1, gen_random_uuid(), 0, 'q', gen_random_uuid(), 'local', 'client', 'm')",
    "task_progress": "insert into task_progress (task_instance_id, try_number, progress) values (%s, 1, '{}')",
    "instance_note": "insert into instance_note (task_instance_id, note) values (%s, 'n')",
    "notice": "insert into notice (kind, dag_run_id, task_instance_id, ended_at)"
    " select 'on_success', dag_run_id, id, now() from task_instance where id = %s",
}


@dataclass(frozen=True)
class Filled:
    """Three runs with three task instances each, and a row of each for each table."""

    scenario: Scenario
    runs: list[int]

    @classmethod
    def of(cls, scenario: Scenario) -> "Filled":
        scenario.add(chain("d", 3))
        filled = cls(scenario, [scenario.trigger("d", run_id=name) for name in ("first", "second", "kept")])
        scenario.run_to_end()
        filled.fill()
        return filled

    def fill(self) -> None:
        for (ti,) in self.scenario.rows("select id from task_instance order by id"):
            for table, statement in FILL.items():
                self.scenario.sql(f"delete from {table} where task_instance_id = %s", ti)
                self.scenario.sql(statement, ti)

    def counts(self) -> dict[str, int]:
        return {table: self.scenario.rows(f"select count(*) from {table}")[0][0] for table in FILL}


def test_every_table_with_rows_of_task_instances_is_named_here(scenario: Scenario) -> None:
    schema = scenario.rows("select current_schema()")[0][0]

    assert {table for (table,) in scenario.rows(OWNED, schema)} == FILL.keys() | KEPT.keys()
    assert FILL.keys() == set(invariants.ROWS_OF_INSTANCES)


def test_a_deletion_of_several_runs_takes_all_rows_of_their_task_instances_and_no_others(scenario: Scenario) -> None:
    filled = Filled.of(scenario)
    assert set(filled.counts().values()) == {9}

    scenario.sql("delete from dag_run where run_id in ('first', 'second')")
    assert set(filled.counts().values()) == {3}

    scenario.sql("delete from task_instance where id = (select min(id) from task_instance)")
    assert set(filled.counts().values()) == {2}


def test_one_step_back_returns_to_foreign_keys_and_forward_again(scenario: Scenario) -> None:
    filled = Filled.of(scenario)
    constraints = "select count(*) from pg_constraint where confrelid = 'task_instance'::regclass and contype = 'f'"

    with scenario.engine.begin() as connection:
        command.downgrade(migrate._config(connection), "0009")
    assert scenario.rows(constraints) == [(len(FILL),)]
    scenario.sql("delete from dag_run where run_id = 'first'")
    assert set(filled.counts().values()) == {6}

    assert migrate.migrate(scenario.engine) == migrate.head()
    assert scenario.rows(constraints) == [(0,)]
    scenario.sql("delete from dag_run where run_id = 'second'")
    assert set(filled.counts().values()) == {3}


#: How a person adds a row; those of tasks are in test_worker_writes.py.
WRITES: dict[str, Callable[[Connection, int], Any]] = {
    "instance_note": lambda connection, ti: edits.note_instance(connection, ti, "late"),
    "xcom": lambda connection, ti: edits.put_xcom(connection, ti, "late", 1, new=True),
    "task_state": lambda connection, ti: edits.add_to_task(connection, ti, "late", "1"),
}
WAITING = "select exists (select from pg_locks where not granted)"


@pytest.mark.parametrize("table", WRITES)
def test_a_deletion_waits_for_a_row_that_is_being_added_and_takes_it(scenario: Scenario, table: str) -> None:
    run = scenario.finish(chain("d", 1), run_id="r")
    ((ti,),) = scenario.rows("select id from task_instance")

    with scenario.engine.connect() as writer:
        WRITES[table](writer, ti)
        deletion = threading.Thread(target=scenario.sql, args=("delete from dag_run where id = %s", run))
        deletion.start()
        eventually(lambda: scenario.rows(WAITING) == [(True,)])
        writer.commit()
        deletion.join()

    assert scenario.rows(f"select count(*) from {table}") == [(0,)]
    assert scenario.rows("select count(*) from dag_run") == [(0,)]


@pytest.mark.parametrize("table", WRITES)
def test_a_row_waits_for_a_deletion_and_is_not_added(scenario: Scenario, table: str) -> None:
    run = scenario.finish(chain("d", 1), run_id="r")
    ((ti,),) = scenario.rows("select id from task_instance")

    def write() -> None:
        with contextlib.suppress(ConflictError):  # an XCom that could not be added
            transact(scenario.engine, WRITES[table], ti)

    with scenario.engine.connect() as deleter:
        deleter.exec_driver_sql("delete from dag_run where id = %s", (run,))
        late = threading.Thread(target=write)
        late.start()
        eventually(lambda: scenario.rows(WAITING) == [(True,)])
        deleter.commit()
        late.join()

    assert scenario.rows(f"select count(*) from {table}") == [(0,)]
