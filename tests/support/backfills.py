"""Shared by the tests of backfills: hourly DAGs, requests and their results."""

from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.store.actions import backfills
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.db.database import transact
from support.scenario import Scenario, chain

START = datetime(2026, 3, 1, tzinfo=UTC)
HOURLY = {"schedule": {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}, "max_active_runs": 2}


def hour(number: int) -> datetime:
    return START + timedelta(hours=number)


def wanted(dag_id: str = "c", *, hours: int = 10, **options: Any) -> BackfillRequest:
    return BackfillRequest(dag_id=dag_id, first=START, last=hour(hours - 1), **options)


def without_schedule(scenario: Scenario) -> None:
    """Keep the schedule from creating runs: its next run is infinitely far away."""
    scenario.sql(
        "update dag_schedule s set planned_version_id = d.version_id, next_run_after = 'infinity'"
        " from dag d where d.dag_id = s.dag_id"
    )


def add(scenario: Scenario, dag_id: str = "c", length: int = 1, **options: Any) -> None:
    """Add a chain of tasks that is due every hour."""
    scenario.add(chain(dag_id, length, **{**HOURLY, **options}))
    without_schedule(scenario)


def made(scenario: Scenario) -> list[tuple[datetime, str]]:
    return [
        (row[0], row[1]) for row in scenario.rows("select logical_date, state from dag_run where run_type = 'backfill' order by id")
    ]


def counts(scenario: Scenario, backfill_id: int = 1) -> dict[str, int]:
    row = transact(scenario.engine, backfills.backfill, backfill_id)
    names = ("waiting", "left_out", "queued", "running", "success", "failed")
    return {name: row[name] for name in names if row[name]}


def complete(scenario: Scenario) -> None:
    """Work until no backfill is left."""
    for _ in range(50):
        scenario.run_to_end()
        scenario.turn()
        if not scenario.rows("select 1 from backfill where ended_at is null"):
            return
    raise AssertionError(counts(scenario))
