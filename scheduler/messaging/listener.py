"""Decides which scheduler reads the wakeups: one at a time, so that more schedulers do not mean more and smaller passes.

The listener holds a lock in Redis while it waits, and for a short moment while it works on what it has read. If it works for
longer, or ends, another scheduler becomes the listener; sooner, if it has read so many wakeups that more probably wait. The lock
only saves work: two listeners do no harm.
"""

import time
import uuid
from typing import Any

from scheduler.messaging import broker_keys

KEY = "paceline:listener"
#: Seconds for which the listener may work before another scheduler takes its place, and the same if there is work for both.
WORKS_S, SHARES_S = 0.115, 0.015
#: Seconds for which it keeps its place beyond the end of its wait.
LATE_S = 1.0
#: Seconds after which another scheduler tries again to become the listener, if the lock does not expire sooner.
TRY_S = 0.1
#: Seconds of the longest wait.
LONGEST_WAIT_S = 4.0


class Listener:
    """One scheduler as a candidate for the listener."""

    def __init__(self, client: Any) -> None:
        self._redis = client
        self._name = uuid.uuid4().hex.encode()
        #: Until then, by the monotonic clock, no other scheduler can have become the listener.
        self._until = 0.0
        #: Whether another scheduler listened at the last attempt.
        self.is_other = False

    def listen(self, wait_s: float) -> float:
        """Become or stay the listener for a wait of `wait_s`, and return 0; else the seconds after which to try again."""
        now, lock_ms = time.monotonic(), int((wait_s + LATE_S) * 1000)
        if now < self._until:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.get(KEY)
                pipe.set(KEY, self._name, px=lock_ms)
                held_by: bytes | None = pipe.execute()[0]
            if held_by is not None and held_by > self._name:
                # Both hold it, as after Redis lost the lock: one of the two leaves.
                self._until, self.is_other = 0.0, True
                return TRY_S
        else:
            with self._redis.pipeline(transaction=False) as pipe:
                pipe.set(KEY, self._name, px=lock_ms, nx=True)
                pipe.pttl(KEY)
                answers: tuple[bool | None, int] = tuple(pipe.execute())
            is_own, left_ms = answers
            if not is_own:
                self.is_other = True
                if broker_keys.is_stuck(left_ms, longest_s=LONGEST_WAIT_S + LATE_S):
                    self._redis.delete(KEY)
                return min(max(left_ms, 1) / 1000, TRY_S)
        self._until, self.is_other = now + lock_ms / 1000, False
        return 0.0

    def work(self, pipe: Any) -> None:
        """Add the command that lets another scheduler listen in a moment, unless this one does so again before."""
        pipe.set(KEY, self._name, px=int(WORKS_S * 1000))
        self._until = time.monotonic() + WORKS_S

    def share(self) -> None:
        """Let another scheduler listen soon: there is work for both."""
        self._redis.set(KEY, self._name, px=int(SHARES_S * 1000))
        self._until = time.monotonic() + SHARES_S

    def leave(self) -> None:
        """Let another scheduler listen now."""
        if time.monotonic() < self._until:
            self._until = 0.0
            self._redis.delete(KEY)
