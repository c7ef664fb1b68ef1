"""autoscale: reads the workload of queues and decides how many workers they need. A command runs it, no scheduler does.

It starts and stops nothing itself: KEDA, a script or a person does.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine

from scheduler.deciding import worker_count
from scheduler.deciding.worker_count import Limits
from scheduler.store.db.database import transact
from scheduler.store.read import workload

__all__ = ["Autoscaler", "Limits"]

#: The share of the number to which the need must fall before the number does: less would follow noise.
FALLS_TO = 0.9
#: After the number fell, it rises at once only to more than this multiple, and by more than one: less waits for the cooldown.
RISES_TO = 1.25


class Autoscaler:
    """The number of workers of some queues, over time.

    The number falls after it was at least a tenth lower for `cooldown_s` seconds. After a fall, it rises by a small amount only
    when `cooldown_s` seconds are over, so that it does not go up and down. It does not fall while the tasks that run or wait fill
    all workers, even if fewer workers would be enough. The decisions of the last `cooldown_s` seconds are kept in memory, so the
    number may fall too early after a restart.
    """

    def __init__(
        self, queues: Sequence[str], limits: Limits, *, cooldown_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queues = list(queues)
        self._limits = limits
        self._cooldown_s = cooldown_s
        self._clock = clock
        #: The time and result of recent decisions, in falling order of result: an older, lower one no longer matters.
        self._recent: deque[tuple[float, int]] = deque()
        self._last = 0
        self._fell_at = -math.inf

    def decide(self, load: worker_count.Workload) -> int:
        """Return the number of workers for this workload and those of the last seconds."""
        now = self._clock()
        wanted = max(worker_count.workers(load, self._limits), min(self._last, worker_count.usable(load, self._limits)))
        while self._recent and self._recent[-1][1] <= wanted:
            self._recent.pop()
        self._recent.append((now, wanted))
        while self._recent[0][0] < now - self._cooldown_s:
            self._recent.popleft()
        highest = self._recent[0][1]
        if highest > self._last:
            noise = max(self._last + 1, self._last * RISES_TO) if self._last else 0
            if highest > noise or now - self._fell_at >= self._cooldown_s:
                self._last = highest
        elif highest < self._last and (highest <= self._last * FALLS_TO or not highest):
            self._last, self._fell_at = highest, now
        return self._last

    def run_once(self, engine: Engine) -> dict[str, Any]:
        """Read the workload, and return it with the number of workers."""
        load = transact(engine, workload.of_queues, self._queues, window_s=self._limits.drain_s)
        return {"queues": self._queues, "workers": self.decide(load), **asdict(load)}
