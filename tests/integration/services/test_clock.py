"""All services decide by PostgreSQL's clock, so a test that moves it moves every decision."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from support.clock import Clock
from support.scenario import Scenario, chain, dag

from paceline.states import TaskState
from scheduler.settings import Settings
from scheduler.store.worker.claims import Ending

HOUR = timedelta(hours=1)
SCHEDULED = "select count(*) from dag_run where run_type = 'scheduled'"


@pytest.fixture
def clock(settings: Settings) -> Iterator[Clock]:
    clock = Clock(settings)
    yield clock
    clock.close()


@pytest.fixture
def moved(clock: Clock, scenario: Scenario) -> Scenario:
    """A scenario whose connections were made after the clock."""
    return scenario


def test_a_retry_is_due_after_its_delay(clock: Clock, moved: Scenario) -> None:
    moved.add(chain("c", 1, task={"retries": 1}))
    moved.trigger("c")
    moved.turn()
    moved.work(lambda _: Ending(TaskState.UP_FOR_RETRY, delay_s=HOUR.total_seconds()))
    moved.turn()
    assert set(moved.states().values()) == {"up_for_retry"}

    clock.advance(HOUR)
    moved.turn()

    assert set(moved.states().values()) == {"queued"}


def test_a_run_ends_at_its_timeout(clock: Clock, moved: Scenario) -> None:
    moved.add(chain("c", 1, dagrun_timeout_s=HOUR.total_seconds()))
    run = moved.trigger("c")
    moved.turn()
    assert moved.run_state(run) == "running"

    clock.advance(HOUR)
    moved.turn()

    assert moved.run_state(run) == "failed"


def test_a_schedule_makes_the_next_run(clock: Clock, moved: Scenario) -> None:
    schedule = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
    moved.add(dag("d", {"a": []}, schedule=schedule, start_date="2026-03-01T00:00:00+00:00", catchup=False))
    moved.turn()
    assert moved.rows(SCHEDULED) == [(1,)]

    clock.advance(HOUR)
    moved.turn()

    assert moved.rows(SCHEDULED) == [(2,)]
