"""The number of workers that queues need."""

import math
from dataclasses import dataclass

#: The share of the drain time that a backlog has left at least, however old it is: without it, the number would grow without limit.
LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The task instances of the queues of a worker."""

    waiting: int
    #: Those of workers that drain do not count.
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
