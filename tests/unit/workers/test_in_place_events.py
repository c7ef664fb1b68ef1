"""The pipe through which pool processes report what they continue with."""

import os

import pytest

from scheduler.store.worker.claims import Claim
from workers.in_place_events import InPlaceEvents


def claim(task_id: str, map_index: int = -1) -> Claim:
    known = dict.fromkeys(Claim.__slots__, None) | {
        "dispatch_id": f"of {task_id}", "dag_id": "d", "run_id": "r", "task_id": task_id, "map_index": map_index
    }  # fmt: skip
    return Claim(**known)  # type: ignore[arg-type]


def test_steps_come_in_order_with_the_names_that_flower_shows() -> None:
    events = InPlaceEvents()
    events.continued("m", 0.5, claim("a"))
    events.continued("m", 1.5, claim("b", 3))

    steps = events.read()

    assert [(step.message, step.seconds, step.dispatch_id, step.name, step.arguments) for step in steps] == [
        ("m", 0.5, "of a", "d.a", "r"),
        ("m", 1.5, "of b", "d.b", "r [3]"),
    ]
    assert events.read() == []


def test_a_line_is_read_once_it_is_whole() -> None:
    events = InPlaceEvents()
    os.write(events._writer, b'["m", 2, "i"')
    assert events.read() == []
    os.write(events._writer, b', "d.a", "r"]\n')

    assert [step.name for step in events.read()] == ["d.a"]


@pytest.mark.parametrize("text", [b"no JSON", b"{}", b"[]", b'["m", "long", "i", "n", "a"]', b"\xff", b"[[]]", b"1"])
def test_what_user_code_writes_there_is_dropped(text: bytes) -> None:
    events = InPlaceEvents()
    os.write(events._writer, text + b"\n")
    events.continued("m", 0.5, claim("a"))

    assert [step.name for step in events.read()] == ["d.a"]


def test_a_full_pipe_delays_no_task() -> None:
    events = InPlaceEvents()
    for _ in range(2000):
        events.continued("m" * 100, 0.5, claim("a"))

    assert 0 < len(events.read()) < 2000
