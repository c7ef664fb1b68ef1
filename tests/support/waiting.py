"""Waiting for a state with a deadline, instead of sleeping for a guessed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The limits of the pauses if no interval is given. Polling more often would take the CPU that a starting JVM needs.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.3


def eventually(
    predicate: Callable[[], T], *, timeout: float = 60.0, interval: float | None = None, message: Callable[[], str] | str = ""
) -> T:
    """Call the predicate until it returns a true value, and return that value.

    `timeout` and `interval` are in seconds. Without an interval, the pauses grow. A pause lasts at least as long as the call before
    it, so that predicates that start processes leave CPU for what they wait for. If the predicate fails an assertion, the last
    failure is reported. `message` (text, or a function that is called at the end) is added to the AssertionError.
    """
    began = time.monotonic()
    deadline = began + timeout
    while True:
        asked = time.monotonic()
        failure: AssertionError | None = None
        value: object = None
        try:
            value = predicate()
            if value:
                return value
        except AssertionError as error:
            failure = error
        now = time.monotonic()
        if now >= deadline:
            name = getattr(predicate, "__name__", repr(predicate))
            last = f"the last failure: {failure}" if failure else f"the last value: {value!r}"
            more = message() if callable(message) else message
            raise AssertionError(f"{name} was not true within {timeout} s; {last}. {more}".rstrip()) from failure
        pause = min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, (now - began) / 20)) if interval is None else interval
        time.sleep(max(pause, now - asked))
