"""How long the queue service lets rings collect."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.services.queue import Queued
from scheduler.turns import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, queue_pause_s

HEADROOM = 32


def queued(count: int, *, filled: bool) -> Queued:
    messages: list[Any] = [None] * count
    return Queued(messages, sent=True, more=False, filled=filled)


def test_a_queue_with_room_waits_for_nobody() -> None:
    assert queue_pause_s(queued(3, filled=False), 0.5, HEADROOM) == SHORTEST_PAUSE_S


def test_a_filled_queue_is_left_until_half_of_it_is_taken() -> None:
    assert queue_pause_s(queued(10, filled=True), 0.02, HEADROOM) == 0.02 * (HEADROOM / 2) / 10


@given(st.integers(0, 1000), st.floats(0, 100), st.booleans())
def test_the_pause_keeps_its_bounds(count: int, since_last_s: float, filled: bool) -> None:
    pause_s = queue_pause_s(queued(count, filled=filled), since_last_s, HEADROOM)

    assert SHORTEST_PAUSE_S <= pause_s <= LONGEST_PAUSE_S
