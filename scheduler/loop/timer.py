"""When a service is due."""

import math
import random
import time
from dataclasses import dataclass

#: A service runs at least so often, in seconds, even if no work seems to be pending.
SELDOM_S = 30.0
#: Services that would be due within this share of their interval join one that is, so that all of them cost one look. With a
#: half, any two of the same interval meet.
TOGETHER = 0.5


@dataclass(slots=True)
class Timer:
    """When one service is due again, by this process's monotonic clock."""

    interval_s: float
    due_at: float = 0.0
    _ran_at: float = -math.inf
    _by_interval: bool = False

    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    def is_near(self) -> bool:
        """Whether it is due or would be soon."""
        return time.monotonic() >= self.due_at - (TOGETHER * min(self.interval_s, 1.0) if self._by_interval else 0.0)

    def only_polls(self) -> bool:
        """Whether it is due for no other reason than that its interval is over, and ran lately."""
        return self._by_interval and self.due_at != 0.0 and time.monotonic() < self._ran_at + SELDOM_S

    def wake(self) -> None:
        """Due now, for a reason."""
        self.due_at = 0.0

    def ran(self, again_in_s: float | None = None) -> None:
        """Due again after `again_in_s`, else after the interval."""
        self._ran_at = time.monotonic()
        self.skip()
        if again_in_s is not None:
            self.due_at, self._by_interval = self._ran_at + again_in_s, False

    def skip(self) -> None:
        """Due again after the interval, without having run; the jitter keeps schedulers from polling in step."""
        self.due_at = time.monotonic() + self.interval_s * random.uniform(0.9, 1.1)  # noqa: S311
        self._by_interval = True
