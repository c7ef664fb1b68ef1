"""The number of messages that a queue may hold beyond the places of its workers."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.deciding.select import AHEAD_S, LARGEST_WINDOW, PrefetchWindow

LEAST = 32


def test_it_is_that_of_the_setting_without_a_measurement_and_with_slow_tasks() -> None:
    window = PrefetchWindow(LEAST)
    assert window.of("default") == LEAST

    window.leave({"default": 36}, 100.0)
    window.look({"default": 20}, 110.0)

    assert window.of("default") == LEAST


def test_quick_tasks_may_queue_as_much_as_workers_take_soon_and_it_doubles_at_most() -> None:
    window = PrefetchWindow(LEAST)
    seen = []
    for turn in range(4):
        window.leave({"default": 100}, turn * 0.1)
        window.look({"default": 50}, (turn + 1) * 0.1)  # 500 a second
        seen.append(window.of("default"))

    assert seen[0] == 2 * LEAST
    assert all(abs(count - 500 * AHEAD_S) <= 1 for count in seen[1:])


def test_a_pass_that_is_done_again_counts_once() -> None:
    window = PrefetchWindow(LEAST)
    window.leave({"default": 100}, 1.0)
    window.look({"default": 0}, 1.1)
    before = window.of("default")
    window.leave({"default": 100}, 1.1)
    window.look({"default": 0}, 1.1)

    assert window.of("default") == before == 2 * LEAST


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000), st.floats(0, 10)), max_size=30))
def test_it_keeps_its_bounds(steps: list[tuple[int, int, float]]) -> None:
    window, at_s = PrefetchWindow(LEAST), 0.0
    for left, held, passed_s in steps:
        window.leave({"default": left}, at_s)
        at_s += passed_s
        window.look({"default": held}, at_s)

        assert LEAST <= window.of("default") <= LARGEST_WINDOW * LEAST
