"""Triggers as the rows of deferred tasks name them, and the clock by which they wait."""

import asyncio
import importlib
from datetime import UTC, datetime, timedelta

import pytest

from paceline.authoring import deferral
from paceline.authoring.execution import current
from paceline.triggers import (
    BaseTrigger,
    DateTimeTrigger,
    DirectoryFileDeleteTrigger,
    ExternalTrigger,
    FileDeleteTrigger,
    FileTrigger,
    TimeDeltaTrigger,
)
from workers.waiter.triggers import OtherRuns


@pytest.mark.parametrize(
    "trigger",
    [
        DateTimeTrigger(datetime(2026, 3, 1, tzinfo=UTC)),
        DirectoryFileDeleteTrigger(directory="/tmp", filename="orders"),
        ExternalTrigger([], allowed_states=["success"]),
        FileDeleteTrigger("/tmp/orders"),
        FileTrigger("/tmp/orders"),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
def test_a_class_path_is_that_of_every_release_and_leads_to_the_class(trigger: BaseTrigger) -> None:
    path, arguments = deferral.serialized(trigger)

    module, _, name = path.rpartition(".")
    assert module == "paceline.triggers"
    kind = getattr(importlib.import_module(module), name)
    assert kind is type(trigger)
    assert deferral.serialized(kind(**deferral.decode(arguments))) == (path, arguments)


class Skewed:
    """A waiter on a machine with a wrong clock, and the time of PostgreSQL."""

    def __init__(self, shows: datetime) -> None:
        self.shows = shows

    def now(self) -> datetime:
        return self.shows


@pytest.mark.parametrize(("late", "fires"), [(timedelta(seconds=1), True), (-timedelta(hours=1), False)])
def test_a_trigger_waits_by_the_clock_of_postgresql_and_not_by_that_of_its_waiter(late: timedelta, fires: bool) -> None:
    trigger = DateTimeTrigger(datetime(2100, 1, 1, tzinfo=UTC))
    trigger.other_runs = Skewed(trigger.moment + late)

    async def wait() -> bool:
        try:
            await asyncio.wait_for(deferral.first_event(trigger), 0.1)
        except TimeoutError:
            return False
        return True

    assert asyncio.run(wait()) is fires


def test_the_database_time_of_a_waiter_advances() -> None:
    async def nobody(targets: object) -> list[object]:
        return []

    other_runs = OtherRuns(nobody, datetime(2100, 1, 1, tzinfo=UTC))  # type: ignore[arg-type]

    first = other_runs.now()

    assert datetime(2100, 1, 1, tzinfo=UTC) <= first <= other_runs.now() < first + timedelta(minutes=1)


def test_a_delay_is_counted_on_the_clock_of_postgresql_from_inside_a_task() -> None:
    with current({"ti": Skewed(datetime(2100, 1, 1, tzinfo=UTC))}):  # type: ignore[arg-type]
        assert TimeDeltaTrigger(timedelta(hours=1)).moment == datetime(2100, 1, 1, 1, tzinfo=UTC)
