"""The number of workers that queues need, now and over time."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: The share of the drain time that a backlog has left at least, however old it is: without it, the number would grow without limit.
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The task instances of the queues of a worker."""

    waiting: int
    #: Task instances of workers that drain do not count.
    running: int
    #: Of the waiting ones, the number for which pools and limits have free slots.
    startable: int
    #: Seconds for which the oldest has waited.
    oldest_s: float
    #: Seconds that one takes, on average. None if none has ended recently.
    service_s: float | None
    #: New ones in a second, over the drain time.
    arrivals_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of the number, and the goal."""

    minimum: int
    maximum: int
    #: Tasks that one worker runs at once.
    concurrency: int
    #: Seconds in which a backlog should be worked off, from the arrival of its oldest task.
    drain_s: float
    #: Seconds that a task takes, as long as none has ended.
    default_service_s: float


def service_time(ended_s: float | None, running_s: float | None) -> float | None:
    """Return the average time of a task, from that of ended tasks and the average age of running ones.

    The age is about the average time if all take the same. Only tasks that take much longer than those before them raise it.
    """
    if ended_s is None or running_s is None:
        return running_s if ended_s is None else ended_s
    return running_s if running_s > 2 * ended_s else ended_s


def slots(load: Workload, limits: Limits) -> int:
    """Return the number of tasks that should run at once.

    Enough to keep up with arrivals and to work off the backlog in time; at least those that run now, so that no worker with tasks
    is stopped; at most those that can run.
    """
    service_s = limits.default_service_s if load.service_s is None else load.service_s
    steady = load.arrivals_per_s * service_s
    left_s = max(limits.drain_s - load.oldest_s, limits.drain_s * LEAST_SHARE)
    # Of each running task, half is left on average.
    backlog = (load.waiting + load.running / 2) * service_s / left_s if load.waiting else 0
    wanted = math.ceil(max(steady, backlog))
    return max(load.running, min(wanted, load.running + min(load.waiting, load.startable)))


def workers(load: Workload, limits: Limits) -> int:
    """Return the number of workers for `slots`, within the limits. 0 if nothing waits or runs and the minimum is 0."""
    wanted = math.ceil(slots(load, limits) / limits.concurrency)
    if load.waiting and load.startable:
        wanted = max(wanted, 1)
    return min(max(wanted, limits.minimum), limits.maximum)


def usable(load: Workload, limits: Limits) -> int:
    """Return the number of workers that the tasks which run or could run would occupy, whatever the drain time.

    Stopping one of them saves no worker-seconds: the other workers would run its tasks later.
    """
    return math.ceil((load.running + min(load.waiting, load.startable)) / limits.concurrency)


#: The share of the number to which the need must fall before the number does: less would follow noise.
FALLS_TO = 0.9
#: After the number fell, it rises at once only to more than this multiple, and by more than one: less waits for the cooldown.
RISES_TO = 1.25


class Autoscaler:
    """Decides the number of workers over time. It starts and stops nothing itself: KEDA, a script or a person does.

    The number falls after it was at least a tenth lower for `cooldown_s` seconds. After a fall, it rises by a small amount only
    when `cooldown_s` seconds are over, so that it does not go up and down. It does not fall while the tasks that run or wait fill
    all workers, even if fewer workers would be enough. The decisions of the last `cooldown_s` seconds are kept in memory, so the
    number may fall too early after a restart.
    """

    def __init__(self, limits: Limits, *, cooldown_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._cooldown_s = cooldown_s
        self._clock = clock
        #: The time and result of recent decisions, in falling order of result: an older, lower one no longer matters.
        self._recent: deque[tuple[float, int]] = deque()
        self._last = 0
        self._fell_at = -math.inf

    def decide(self, load: Workload) -> int:
        """Return the number of workers for this workload and the workloads of the last seconds."""
        now = self._clock()
        wanted = max(workers(load, self.limits), min(self._last, usable(load, self.limits)))
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
