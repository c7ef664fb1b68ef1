"""How long one question to a cluster may take: less if all of them together have a deadline."""

import contextlib
import time
from collections.abc import Iterator

_deadline: float | None = None


@contextlib.contextmanager
def until(deadline: float) -> Iterator[None]:
    """While open no question outlasts `deadline`, on the monotonic clock: whoever ends an application has seconds for it."""
    global _deadline  # noqa: PLW0603 - a process ends one application at a time
    before, _deadline = _deadline, deadline
    try:
        yield
    finally:
        _deadline = before


def left(most_s: float) -> float:
    """Seconds that a question may take, at most `most_s`."""
    return most_s if _deadline is None else max(0.1, min(most_s, _deadline - time.monotonic()))
