"""When workers may pass the slots of a pool on without the queue service."""

import pytest

from scheduler.services.queue import passes_slots_on


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
