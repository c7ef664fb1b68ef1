"""Calls of a cluster by its command, and the timeout of each request, which is shorter if several requests share a deadline."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence

from workers.spark.clusters.status import ClusterUnreachableError

COMMAND_S = 30.0

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


def run(command: Sequence[str], shown: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; ClusterUnreachableError, which names it as `shown`, if it cannot be run or takes too long."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=left(COMMAND_S), check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterUnreachableError(f"{shown} gave no answer ({error})") from None
