"""Backfills that are paused, cancelled or finished, and other runs at their dates."""

import pytest
from support.backfills import add, complete, counts, hour, wanted
from support.scenario import Scenario

from paceline.exceptions import ConflictError
from scheduler.store.actions import backfills
from scheduler.store.db.database import transact


def test_a_run_that_another_source_creates_meanwhile_is_left_alone(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=3, max_active_runs=1))
    scenario.trigger("c", run_id="mine", logical_date=hour(1))
    scenario.trigger("c", run_id="backfill__2026-03-01T02:00:00+00:00", logical_date=hour(50))

    complete(scenario)

    assert [run["reason"] for run in transact(scenario.engine, backfills.backfill, 1)["runs"]] == [
        None,
        "already has a run (success)",
        "a run of another date has the run ID backfill__2026-03-01T02:00:00+00:00",
    ]
    assert scenario.rows("select state, run_type from dag_run where run_id = 'mine'") == [("success", "manual")]


def test_paused_it_makes_and_starts_nothing_until_resumed(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=2))
    scenario.turn()
    assert counts(scenario) == {"waiting": 8, "running": 2}
    scenario.sql("update dag_run set state = 'queued', started_at = null where id = (select max(id) from dag_run)")

    assert transact(scenario.engine, backfills.pause, 1)
    assert not transact(scenario.engine, backfills.pause, 1)
    scenario.work()
    scenario.turn()
    scenario.turn()
    assert counts(scenario) == {"waiting": 8, "queued": 1, "success": 1}
    assert transact(scenario.engine, backfills.backfill, 1)["state"] == "paused"

    assert transact(scenario.engine, backfills.resume, 1)
    assert not transact(scenario.engine, backfills.resume, 1)
    scenario.run_to_end()
    scenario.turn()
    assert counts(scenario) == {"success": 10}


def test_a_paused_dag_keeps_its_backfill_waiting(scenario: Scenario) -> None:
    add(scenario)
    scenario.sql("update dag_schedule set is_paused = true")
    transact(scenario.engine, backfills.create, wanted(hours=2))
    scenario.turn()
    assert counts(scenario) == {"waiting": 2}

    scenario.sql("update dag_schedule set is_paused = false")
    scenario.run_to_end()
    assert counts(scenario) == {"success": 2}


def test_queued_runs_of_a_cancelled_backfill_fail_and_running_runs_continue(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=2))
    scenario.turn()
    scenario.sql("update dag_run set state = 'queued', started_at = null where id = (select max(id) from dag_run)")
    scenario.sql("update task_instance set state = null where dag_run_id = (select max(id) from dag_run)")

    done = transact(scenario.engine, backfills.cancel, 1)

    assert (done["state"], done["ended_at"] is not None) == ("cancelled", True)
    assert counts(scenario) == {"left_out": 8, "running": 1, "failed": 1}
    scenario.run_to_end()
    scenario.turn()
    assert counts(scenario) == {"left_out": 8, "success": 1, "failed": 1}
    assert scenario.rows("select t.state, t.reason from task_instance t order by id desc limit 1") == [
        ("skipped", "its backfill was cancelled")
    ]
    for refused in (backfills.cancel, backfills.pause, backfills.resume):
        with pytest.raises(ConflictError, match="Backfill 1 was cancelled already"):
            transact(scenario.engine, refused, 1)
    assert transact(scenario.engine, backfills.create, wanted(hours=20))["id"] == 2


def test_a_run_cleared_after_the_end_starts_within_the_same_limit(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=3, max_active_runs=1))
    complete(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=5))
    transact(scenario.engine, backfills.pause, 2)
    transact(scenario.engine, backfills.cancel, 2)
    scenario.sql("update task_instance set state = null")
    scenario.sql("update dag_run set state = 'queued', started_at = null, ended_at = null")

    scenario.turn()
    assert scenario.rows("select logical_date from dag_run where state = 'running'") == [(hour(0),)]
    scenario.run_to_end()
    assert counts(scenario) == {"success": 3}
