"""The timer of a service: when it is due."""

import math
import random
import time
from dataclasses import dataclass

#: Seconds after which a service runs again, even if no work is pending.
LONGEST_SKIP_S = 30.0
#: As LONGEST_SKIP_S, for a shared service whose work is pending while another scheduler reads the wakeups.
LONGEST_SHARED_SKIP_S = 5.0
#: The share of its interval by which a service may run early. One query then checks all services that are due soon. With a
#: half, services that have the same interval always share a query.
TOGETHER = 0.5


@dataclass(slots=True)
class Timer:
    """When one service is due again, by the monotonic clock of this process."""

    interval_s: float
    due_at: float = 0.0
    _ran_at: float = -math.inf
    _by_interval: bool = False

    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    def is_due_soon(self) -> bool:
        """Whether it is due now, or early enough to join the services that are due."""
        return time.monotonic() >= self.due_at - (TOGETHER * min(self.interval_s, 1.0) if self._by_interval else 0.0)

    def can_skip(self, longest_s: float = LONGEST_SKIP_S) -> bool:
        """Whether it is due only because its interval is over, and has run in the last `longest_s` seconds."""
        return self._by_interval and self.due_at != 0.0 and time.monotonic() < self._ran_at + longest_s

    def wake(self) -> None:
        """Make it due now, because of an event."""
        self.due_at = 0.0

    def ran(self, again_in_s: float | None = None) -> None:
        """Make it due after `again_in_s`, or else after the interval."""
        self._ran_at = time.monotonic()
        self.skip()
        if again_in_s is not None:
            self.due_at, self._by_interval = self._ran_at + again_in_s, False

    def skip(self) -> None:
        """Make it due after the interval, without having run. Jitter keeps schedulers from polling at the same time."""
        self.due_at = time.monotonic() + self.interval_s * random.uniform(0.9, 1.1)  # noqa: S311
        self._by_interval = True
