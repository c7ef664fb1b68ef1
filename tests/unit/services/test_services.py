"""The list of services, the pause of the queue service, and the slots that workers may pass on without it."""

import importlib
import pkgutil
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import services as package
from scheduler.services.heartbeat import Heartbeat
from scheduler.services.loop import services
from scheduler.services.promote import STARTERS
from scheduler.services.queue import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, Queued, passes_slots_on
from scheduler.services.queue import pause_s as queue_pause_s
from scheduler.services.service import BaseService, Service, TimedService
from scheduler.settings import Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database


@pytest.mark.parametrize(
    ("free", "parallelism", "expected"),
    [
        ({"a": 3}, 9, {"a": True}),
        ({"a": 0}, 0, {"a": True}),
        ({"a": -1}, 9, {"a": False}),
        ({"a": 3}, -1, {"a": False}),
        # Tasks that wait in `a` although it has slots wait for something that `b` would keep.
        ({"a": 1, "b": 0}, 9, {"a": True, "b": False}),
        ({"a": 1, "b": 1}, 9, {"a": False, "b": False}),
        ({"a": 0, "b": 0, "c": -2}, 9, {"a": True, "b": True, "c": False}),
        ({}, 9, {}),
    ],
)
def test_slots_are_passed_on_only_where_no_other_task_could_use_them(
    free: dict[str, int], parallelism: int, expected: dict[str, bool]
) -> None:
    assert passes_slots_on(free, parallelism) == expected


AHEAD = 32


def queued(count: int, *, ahead: int) -> Queued:
    messages: list[Any] = [None] * count
    return Queued(messages, sent=True, more=False, ahead=ahead)


def test_a_queue_with_free_places_does_not_wait() -> None:
    assert queue_pause_s(queued(3, ahead=0), 0.5) == SHORTEST_PAUSE_S
    assert queue_pause_s(queued(3, ahead=-4), 0.5) == SHORTEST_PAUSE_S


def test_a_filled_queue_is_left_until_half_of_it_is_taken() -> None:
    assert queue_pause_s(queued(10, ahead=AHEAD), 0.02) == 0.02 * (AHEAD / 2) / 10


@given(st.integers(0, 1000), st.floats(0, 100), st.integers(-100, 1000))
def test_the_pause_keeps_its_bounds(count: int, since_last_s: float, ahead: int) -> None:
    pause_s = queue_pause_s(queued(count, ahead=ahead), since_last_s)

    assert SHORTEST_PAUSE_S <= pause_s <= LONGEST_PAUSE_S


@pytest.fixture
def listed() -> tuple[BaseService, ...]:
    """They connect when they are first used."""
    settings = Settings(database=Database(url="postgresql://nowhere/paceline"), broker=Broker(url="redis://nowhere"))
    return services(database.create(settings), settings, lambda: "s#1")


def test_every_service_is_listed_once_and_named_after_its_file(listed: tuple[BaseService, ...]) -> None:
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    declared = {*Service.__subclasses__(), *TimedService.__subclasses__()} - {Heartbeat}

    assert Counter(map(type, listed)) == Counter(declared)
    assert {one.name for one in listed} == {one.__module__.rpartition(".")[2] for one in declared}


def test_the_end_of_a_run_wakes_services_that_exist(listed: tuple[BaseService, ...]) -> None:
    assert {*STARTERS, "notify", "queue", "promote"} <= {one.name for one in listed}
