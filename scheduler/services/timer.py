"""The timer of a service: when it is due."""

import math
import random
import time
from dataclasses import dataclass

#: A service runs at least every SELDOM_S seconds, even if no work seems to be pending.
SELDOM_S = 30.0
#: As SELDOM_S, for the shared services of a scheduler while another one listens.
BESIDE_LISTENER_S = 5.0
#: Services that are due within this share of their interval join one that is due now, so that one query checks all of them.
#: With a half, any two services with the same interval join.
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

    def is_near(self) -> bool:
        """Whether it is due now or soon."""
        return time.monotonic() >= self.due_at - (TOGETHER * min(self.interval_s, 1.0) if self._by_interval else 0.0)

    def only_polls(self, seldom_s: float = SELDOM_S) -> bool:
        """Whether it is due only because its interval is over, and has run in the last `seldom_s`."""
        return self._by_interval and self.due_at != 0.0 and time.monotonic() < self._ran_at + seldom_s

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
