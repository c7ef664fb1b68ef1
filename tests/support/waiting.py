"""Waiting for a state with a deadline, instead of sleeping for a guessed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], *, timeout: float = 30.0, interval: float = 0.03, message: Callable[[], str] | str = ""
) -> T:
    """Call the predicate until what it returns is true, and return that.

    `timeout` and `interval` are seconds. A predicate may also fail an assertion: then the last failure is reported.
    `message` (text, or a function called at the end) is added to the AssertionError.
    """
    deadline = time.monotonic() + timeout
    while True:
        failure: AssertionError | None = None
        value: object = None
        try:
            value = predicate()
            if value:
                return value
        except AssertionError as error:
            failure = error
        if time.monotonic() >= deadline:
            name = getattr(predicate, "__name__", repr(predicate))
            last = f"the last failure: {failure}" if failure else f"the last value: {value!r}"
            more = message() if callable(message) else message
            raise AssertionError(f"{name} was not true within {timeout} s; {last}. {more}".rstrip()) from failure
        time.sleep(interval)
