"""The timeout of a request to a cluster, which is shorter if several requests share a deadline."""

import contextlib
import time
from collections.abc import Iterator

_deadline: float | None = None


@contextlib.contextmanager
def until(deadline: float) -> Iterator[None]:
    """Limit all requests inside the `with` block to `deadline`, by the monotonic clock: ending an application must be quick."""
    global _deadline  # noqa: PLW0603 - a process ends one application at a time
    before, _deadline = _deadline, deadline
    try:
        yield
    finally:
        _deadline = before


def left(most_s: float) -> float:
    """The seconds that a request may take, at most `most_s`."""
    return most_s if _deadline is None else max(0.1, min(most_s, _deadline - time.monotonic()))
