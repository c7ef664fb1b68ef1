"""The pause in which the queue service collects wakeups."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.services.queue import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, Queued
from scheduler.services.queue import pause_s as queue_pause_s

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
