"""Requests for backfills: refusals, dry runs, and dates that have a run already."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.backfills import START, add, complete, counts, hour, wanted
from support.scenario import Scenario

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from paceline.states import TaskState
from scheduler.store.actions import backfills
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.db.database import transact

REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"schedule": {"kind": "never"}}, {}, "has no periodic schedule .*trigger its runs instead"),
    ({"schedule": {"kind": "once"}}, {}, "has no periodic schedule"),
    ({}, {"first": hour(5), "last": hour(4)}, "is later than --to"),
    ({}, {"first": datetime(2999, 1, 1, tzinfo=UTC), "last": datetime(2999, 1, 2, tzinfo=UTC)}, "is in the future"),
    ({}, {"first": START + timedelta(minutes=1), "last": START + timedelta(minutes=59)}, "has no run due from"),
    ({}, {"first": datetime(1900, 1, 1, tzinfo=UTC)}, "has more than 20 runs"),
    ({"task": {"depends_on_past": True}}, {"reverse": True, "reprocess": "failed"}, "in reverse: its task 't000' depends"),
    ({"task": {"depends_on_past": True}}, {}, "choose --reprocess failed or --reprocess completed"),
    ({"allowed_run_types": ("scheduled", "manual")}, {}, "allows no backfills: its allowed_run_types are scheduled, manual"),
    ({"params": {"day": {"schema": {"type": "integer"}, "description": None}}}, {}, "needs a value for param 'day'"),
    ({"params": {"day": {"value": 1, "schema": {"type": "integer"}}}}, {"conf": {"day": "x"}}, "Param 'day' .* cannot be \"x\""),
]


@pytest.mark.parametrize(("of_dag", "of_backfill", "sentence"), REFUSED)
def test_it_refuses_invalid_requests_in_one_sentence(
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
    of_dag: dict[str, Any],
    of_backfill: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.setattr(backfills, "MOST_RUNS", 20)
    add(scenario, **of_dag)
    backfill_request = replace(wanted(), **of_backfill)

    for attempt in (backfills.create, backfills.dry_run):
        with pytest.raises(PacelineError, match=sentence) as refusal:
            transact(scenario.engine, attempt, backfill_request)
        assert "\n" not in str(refusal.value)
    assert scenario.rows("select count(*) from backfill") == [(0,)]


def test_dates_that_are_not_due_are_left_to_the_schedule(scenario: Scenario) -> None:
    add(scenario)
    now = scenario.rows("select date_trunc('hour', clock_timestamp())")[0][0]

    backfill = transact(
        scenario.engine, backfills.create, BackfillRequest(dag_id="c", first=now - timedelta(hours=1), last=now + timedelta(days=9))
    )

    assert backfill["total"] in (2, 3)  # the hour may turn meanwhile


def test_it_refuses_a_second_backfill_and_an_empty_one(scenario: Scenario) -> None:
    add(scenario)
    add(scenario, "other")
    transact(scenario.engine, backfills.create, wanted(hours=2))
    transact(scenario.engine, backfills.create, wanted("other", hours=2))
    for attempt in (backfills.create, backfills.dry_run):
        with pytest.raises(
            ConflictError, match=r"already has an active backfill \(1\): wait for its end, or `paceline backfills can"
        ):
            transact(scenario.engine, attempt, wanted(hours=20))
    scenario.run_to_end()
    scenario.turn()

    with pytest.raises(ConflictError, match="Nothing to do: each of the 2 dates has a run, which `reprocess` none leaves as it is"):
        transact(scenario.engine, backfills.create, wanted(hours=2))
    with pytest.raises(NotFoundError, match="There is no DAG 'nope'"):
        transact(scenario.engine, backfills.create, wanted("nope"))
    with pytest.raises(NotFoundError, match="There is no backfill 7"):
        transact(scenario.engine, backfills.backfill, 7)


def test_a_dry_run_shows_every_date_and_changes_nothing(scenario: Scenario) -> None:
    add(scenario)
    scenario.trigger("c", run_id="mine", logical_date=hour(1))

    rows = transact(scenario.engine, backfills.dry_run, wanted(hours=3, reverse=True))

    assert [(row["ordinal"], row["logical_date"], row["state"], row["reason"]) for row in rows] == [
        (1, hour(2), "waiting", None),
        (2, hour(1), "left_out", "in flight"),
        (3, hour(0), "waiting", None),
    ]
    assert scenario.rows("select (select count(*) from backfill), (select count(*) from dag_run)") == [(0, 1)]


def existing_runs(scenario: Scenario) -> None:
    """Hour 0 has succeeded, 1 failed, 2 runs, 3 is queued; 4 is missing."""
    for number in (0, 1, 2):
        scenario.trigger("c", run_id=f"r{number}", logical_date=hour(number))
    scenario.turn()
    scenario.work(outcome=lambda claim: TaskState.FAILED if claim.run_id == "r1" else TaskState.SUCCESS)
    scenario.sql("update dag_run set state = 'running', ended_at = null where run_id = 'r2'")
    scenario.sql("update task_instance t set state = null from dag_run r where r.id = t.dag_run_id and r.run_id = 'r2'")
    scenario.turn()
    scenario.trigger("c", run_id="r3", logical_date=hour(3))
    scenario.sql("update dag_run set run_after = 'infinity' where run_id = 'r3'")
    assert [row[0] for row in scenario.rows("select state from dag_run order by logical_date")] == [
        "success", "failed", "running", "queued",
    ]  # fmt: skip


@pytest.mark.parametrize(("reprocess", "again"), [("none", []), ("failed", ["r1"]), ("completed", ["r0", "r1"])])
def test_reprocess_chooses_the_runs_that_run_again(scenario: Scenario, reprocess: str, again: list[str]) -> None:
    add(scenario, max_active_runs=10)
    existing_runs(scenario)

    transact(scenario.engine, backfills.create, wanted(hours=5, reprocess=reprocess))
    scenario.turn()

    reasons = {"r0": "already has a run (success)", "r1": "already has a run (failed)", "r2": "in flight", "r3": "in flight"}
    for name in again:
        del reasons[name]
    shown = transact(scenario.engine, backfills.backfill, 1)["runs"]
    assert [run["reason"] for run in shown if run["state"] == "left_out"] == list(reasons.values())
    assert [run["run_id"] for run in shown if run["state"] == "running"] == [*again, "backfill__2026-03-01T04:00:00+00:00"]
    assert scenario.rows("select run_id from dag_run where clear_number = 1 and run_type = 'backfill' order by 1") == [
        (name,) for name in again
    ]
    scenario.sql("delete from dag_run where run_id in ('r2', 'r3')")
    scenario.run_to_end()
    scenario.turn()
    repeated = scenario.rows(
        "select r.run_id, r.state, t.try_number, t.rank < 0, (select count(*) from task_try k where k.task_instance_id = t.id)"
        "  from dag_run r join task_instance t on t.dag_run_id = r.id where r.clear_number = 1 order by 1"
    )
    assert repeated == [(name, "success", 2, True, 1) for name in again]
    assert counts(scenario) == {"left_out": len(reasons), "success": 1 + len(again)}
    assert transact(scenario.engine, backfills.backfill, 1)["state"] == "completed"


def test_after_a_cancelled_backfill_another_repeats_its_failed_runs(scenario: Scenario) -> None:
    add(scenario, length=2)
    transact(scenario.engine, backfills.create, wanted(hours=2, max_active_runs=1))
    scenario.turn()
    scenario.sql("update dag_run set state = 'queued', started_at = null")
    transact(scenario.engine, backfills.cancel, 1)

    transact(scenario.engine, backfills.create, wanted(hours=2, reprocess="failed", conf={"again": True}))
    complete(scenario)

    assert scenario.rows("select run_id, state, conf from dag_run order by 1") == [
        (f"backfill__2026-03-01T0{number}:00:00+00:00", "success", {"again": True}) for number in (0, 1)
    ]
