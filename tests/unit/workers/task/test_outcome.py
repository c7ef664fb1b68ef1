"""The meaning of an exception for a try, and the delay of the next try."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.exceptions import FailTask, SkipTask, TaskStopped, XComError
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.worker.claims import Claim
from workers.task import outcome
from workers.task.outcome import Fail, Retry, Skip


def attempt(*, number: int = 1, max_tries: int = 3, **task: Any) -> outcome.Try:
    known = {"dag_id": "d", "run_id": "r", "logical_date": datetime(2026, 1, 2, tzinfo=UTC)}
    tries = {"try_number": number, "max_tries": max_tries}
    claim = Claim(**dict.fromkeys(Claim.__slots__, None) | known | tries)  # type: ignore[arg-type]
    return outcome.Try(claim, SerializedTask(task_id="t", operator="PythonOperator", runtime="python", **task), "d.py")


@pytest.mark.parametrize(
    ("number", "max_tries", "again"), [(1, 0, False), (1, 1, True), (2, 1, False), (3, 3, True), (4, 3, False), (9, 0, False)]
)
def test_a_try_is_followed_by_another_as_long_as_retries_remain(number: int, max_tries: int, again: bool) -> None:
    result = outcome.of_error(ValueError("x"), attempt(number=number, max_tries=max_tries))

    assert isinstance(result, Retry if again else Fail)
    assert result.reason == "ValueError: x"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SkipTask("nothing to do"), Skip("nothing to do")),
        (FailTask("never"), Fail("never")),
        (XComError("a set"), Fail("XComError: a set")),
        (TaskStopped("worker was stopped"), Retry("worker was stopped", 0.0)),
        (SystemExit(3), Retry("SystemExit: the task called sys.exit(3).", 300.0)),
        (SystemExit(), Retry("SystemExit: the task called sys.exit().", 300.0)),
        (KeyboardInterrupt(), Retry("KeyboardInterrupt", 300.0)),
        (GeneratorExit(), Retry("GeneratorExit", 300.0)),
        (BaseException("odd"), Retry("BaseException: odd", 300.0)),
    ],
)
def test_each_exception_has_one_meaning(error: BaseException, expected: outcome.Outcome) -> None:
    assert outcome.of_error(error, attempt()) == expected


def test_an_exception_that_cannot_be_shown_still_has_a_reason() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert outcome.describe(Odd()) == "Odd: (its message cannot be shown)"


def test_a_reason_can_always_be_stored() -> None:
    reason = outcome.describe(ValueError("nul \x00 half \ud800 " + "x" * 5000))

    assert "\x00" not in reason
    assert reason.encode()
    assert len(reason) == outcome.MAX_REASON_CHARACTERS


@given(
    number=st.integers(1, 40), delay=st.floats(0.01, 1e6), multiplier=st.sampled_from([1.5, 2.0, 3.0]), longest=st.floats(1, 86400)
)
def test_a_backoff_waits_between_one_and_two_times_its_base_up_to_the_longest(
    number: int, delay: float, multiplier: float, longest: float
) -> None:
    this = attempt(number=number, retry_delay_s=delay, retry_exponential_backoff=multiplier, max_retry_delay_s=longest)

    waits = outcome.retry_delay_s(this)

    base = max(1, math.ceil(delay * multiplier ** (number - 1)))
    assert min(base, longest) <= waits <= min(2 * base, longest)


def test_a_backoff_beyond_all_numbers_waits_the_longest() -> None:
    assert outcome.retry_delay_s(attempt(number=5000, retry_exponential_backoff=2.0, max_retry_delay_s=60)) == 60


def test_a_backoff_is_the_same_in_every_process_and_another_for_every_try() -> None:
    waits = [outcome.retry_delay_s(attempt(number=number, retry_delay_s=60, retry_exponential_backoff=2.0)) for number in (1, 2, 3)]

    # sha1("d#t#2026-01-02T00:00:00+00:00#<try>") mod (60, 120, 240), on top of it.
    assert waits == [94.0, 169.0, 324.0]


@pytest.mark.parametrize("multiplier", [0.0, 1.0])
def test_without_a_backoff_every_retry_waits_the_same(multiplier: float) -> None:
    waits = {
        outcome.retry_delay_s(attempt(number=number, retry_delay_s=7, retry_exponential_backoff=multiplier)) for number in (1, 5)
    }

    assert waits == {7.0}


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (PermissionError(13, "Permission denied", "/home/bundles/abc/out.csv"), True),
        (OSError(30, "Read-only file system", "/home/bundles/abc/out.csv"), True),
        (FileNotFoundError(2, "No such file or directory", "/home/bundles/abc/in.csv"), False),
        (PermissionError(13, "Permission denied", "/etc/shadow"), False),
        (PermissionError("the user may not"), False),
        (ValueError("/home/bundles/abc"), False),
    ],
)
def test_a_task_that_writes_beside_its_dag_file_learns_where_it_may_write(error: Exception, is_explained: bool) -> None:
    cause = outcome.wrote_to_code(error, Path("/home/bundles"))
    assert (cause is not None) == is_explained
    if cause is not None:
        assert cause.startswith(outcome.describe(error)) and "tempfile" in cause and "pin_dags_folder" in cause
