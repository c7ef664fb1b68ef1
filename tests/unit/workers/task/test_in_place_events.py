"""The pipe through which pool processes report what they continue with."""

import os

import pytest

from workers.supervision.slots import InPlaceEvents, Step


def step(name: str, message: str = "m") -> Step:
    return Step(message=message, seconds=0.5, ti_id=7, dispatch_id=f"of {name}", name=name, arguments="r", started_at=1.5)


def test_steps_arrive_as_they_were_written_in_order() -> None:
    events = InPlaceEvents()
    events.write(step("d.a"))
    events.write(step("d.日本"))

    assert events.read() == [step("d.a"), step("d.日本")]
    assert events.read() == []


def test_lines_of_several_processes_do_not_mix_however_long_the_ids_are() -> None:
    events = InPlaceEvents()
    longest = step(".".join(["日" * 250, "本" * 250]), message="0" * 36)
    events.write(longest)

    assert os.fpathconf(events.reader, "PC_PIPE_BUF") >= len(os.read(events.reader, 100_000))


def test_a_line_is_read_once_it_is_whole() -> None:
    events = InPlaceEvents()
    os.write(events._writer, b'["m", 2, 7, "i"')
    assert events.read() == []
    os.write(events._writer, b', "d.a", "r", 1]\n')

    assert [one.name for one in events.read()] == ["d.a"]


@pytest.mark.parametrize(
    "text",
    [
        b"no JSON", b"{}", b"[]", b'["m", "long", 7, "i", "n", "a", 1]', b'["m", 1, Infinity, "i", "n", "a", 1]', b"\xff",
        b"[[]]", b"1", b"[" * 100_000,
    ],
)  # fmt: skip
def test_output_of_user_code_in_the_pipe_is_dropped(text: bytes) -> None:
    events = InPlaceEvents()
    os.set_blocking(events._writer, True)
    os.write(events._writer, text[:60_000] + b"\n")
    events.write(step("d.a"))

    assert [one.name for one in events.read()] == ["d.a"]


def test_a_full_pipe_delays_no_task() -> None:
    events = InPlaceEvents()
    for _ in range(2000):
        events.write(step("d.a", message="m" * 100))

    assert 0 < len(events.read()) < 2000
