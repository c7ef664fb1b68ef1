"""Backfills: which runs they make, when, within which limits, and what they refuse."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.scenario import Scenario, chain

from scheduler.store import backfills
from scheduler.store.backfills import Wanted

START = datetime(2026, 3, 1, tzinfo=UTC)
HOURLY = {"schedule": {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}, "max_active_runs": 2}


def hour(number: int) -> datetime:
    return START + timedelta(hours=number)


def wanted(dag_id: str = "c", *, hours: int = 10, **options: Any) -> Wanted:
    return Wanted(dag_id=dag_id, first=START, last=hour(hours - 1), **options)


def without_schedule(scenario: Scenario) -> None:
    """Its schedule makes no run: the next one is far off."""
    scenario.sql(
        "update dag_schedule s set planned_version_id = d.version_id, next_run_after = 'infinity'"
        " from dag d where d.dag_id = s.dag_id"
    )


@pytest.fixture
def add(scenario: Scenario) -> Callable[..., None]:
    def add(dag_id: str = "c", length: int = 1, **options: Any) -> None:
        scenario.add(chain(dag_id, length, **{**HOURLY, **options}))
        without_schedule(scenario)

    return add


def made(scenario: Scenario) -> list[tuple[datetime, str]]:
    return [
        (row[0], row[1]) for row in scenario.rows("select logical_date, state from dag_run where run_type = 'backfill' order by id")
    ]


def counts(scenario: Scenario, backfill_id: int = 1) -> dict[str, int]:
    row = backfills.backfill(scenario.engine, backfill_id)
    names = ("waiting", "left_out", "queued", "running", "success", "failed")
    return {name: row[name] for name in names if row[name]}


def test_a_backfill_makes_every_run_of_its_dates_in_order_and_ends(scenario: Scenario, add: Callable[..., None]) -> None:
    add(length=2)
    backfill = backfills.create(scenario.engine, wanted(conf={"day": 1}))
    assert (backfill["state"], backfill["total"], backfill["waiting"]) == ("active", 10, 10)

    scenario.run_to_end()
    scenario.turn()

    assert made(scenario) == [(hour(number), "success") for number in range(10)]
    assert scenario.rows(
        "select distinct run_type, conf->>'day', triggered_by, data_interval_start = logical_date, backfill_id from dag_run"
    ) == [("backfill", "1", "backfill", True, backfill["id"])]
    assert scenario.rows("select run_id from dag_run order by id limit 1") == [("backfill__2026-03-01T00:00:00+00:00",)]
    done = backfills.backfill(scenario.engine, backfill["id"])
    assert (done["state"], done["success"], [run["state"] for run in done["runs"]]) == ("completed", 10, ["success"] * 10)
