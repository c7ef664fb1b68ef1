"""autoscale: reads the workload of queues and decides how many workers they need. A command runs it, no scheduler does.

It starts and stops nothing itself: KEDA, a script or a person does.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine

from scheduler.deciding import worker_count
from scheduler.deciding.worker_count import Limits
from scheduler.store.db.database import transact
from scheduler.store.queries import workload

__all__ = ["Autoscaler", "Limits"]

#: The share of the number to which the need must fall before the number does: less would follow noise.
FALLS_TO = 0.9


class Autoscaler:
    """The desired number of workers of some queues. It falls only after it was a tenth lower for `cooldown_s`: it does not flap.

    Its only state is the numbers of that time. After a restart, the number may fall once too early.
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

    def decide(self, load: worker_count.Workload) -> int:
        """Return the number of workers for this workload and those of the last seconds."""
        now, wanted = self._clock(), worker_count.workers(load, self._limits)
        while self._recent and self._recent[-1][1] <= wanted:
            self._recent.pop()
        self._recent.append((now, wanted))
        while self._recent[0][0] < now - self._cooldown_s:
            self._recent.popleft()
        highest = self._recent[0][1]
        if highest >= self._last or highest <= self._last * FALLS_TO or not highest:
            self._last = highest
        return self._last

    def run_once(self, engine: Engine) -> dict[str, Any]:
        """Read the workload, and return it with the number of workers."""
        load = transact(engine, workload.of_queues, self._queues, window_s=self._limits.drain_s)
        return {"queues": self._queues, "workers": self.decide(load), **asdict(load)}
