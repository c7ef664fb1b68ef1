"""How long a command waits for the parsing of what was saved before it."""

import pytest

from scheduler.cli import saved_files
from scheduler.cli.saved_files import Missing


@pytest.mark.parametrize(
    ("parsed_at", "looks", "least_s", "most_s", "is_said"),
    [
        ([1.0, 1.0, None], 3, 0.0, 1.0, False),  # parsed
        ([1.0] * 1000, None, saved_files.LONGEST_S, saved_files.LONGEST_S + 1, True),  # no scheduler parses it
        ([1.0, 3.0] + [4.0] * 1000, None, saved_files.ENOUGH_S, saved_files.ENOUGH_S + 1, False),  # saved all the time
        ([None], 1, 0.0, 0.0, False),  # nothing was saved
    ],
    ids=["parsed", "not parsed", "saved again and again", "nothing"],
)
def test_a_command_waits_for_what_was_saved(
    parsed_at: list[float | None], looks: int | None, least_s: float, most_s: float, is_said: bool
) -> None:
    now, made = 0.0, 0

    def look() -> Missing | None:
        nonlocal made
        at, made = parsed_at[made], made + 1
        return None if at is None else Missing("lib.py", saved_at=2.0 + now, parsed_at=at)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    missing = saved_files.until_parsed(look, clock=lambda: now, sleep=sleep)

    assert looks in {None, made} and least_s <= now <= most_s
    assert (missing is not None) == is_said
