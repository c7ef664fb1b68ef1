"""Which waiting task instances may be queued now, in rank order and within every limit, and how far ahead of its workers. Pure."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from paceline.states import Waiting
from scheduler.deciding.limits import Place, own_limits, reached

#: Seconds of work that may wait in a queue, so that few iterations can supply short tasks. An urgent task waits at most this long.
AHEAD_S = 0.2
#: The largest window, as a multiple of the setting, so that the lists in Redis stay short enough to be read.
LARGEST_WINDOW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCapacity:
    """The free capacity: slots by pool, messages by queue, and overall; and how many are active under the limits of runs and
    tasks.
    """

    pools: Mapping[str, int]
    queues: defaultdict[str, int]
    parallelism: int
    #: Runs, and tasks that have a limit of their own.
    active: Counter[Place] = field(default_factory=Counter)
    #: How many each of these allows.
    most: Mapping[Place, int] = field(default_factory=dict)

    def without(self, chosen: Collection[Waiting]) -> "FreeCapacity":
        """The capacity that is free if these are active too."""
        pools, queues, active, most = Counter(self.pools), self.queues.copy(), self.active.copy(), dict(self.most)
        for instance in chosen:
            pools[instance.pool] -= instance.pool_slots
            queues[instance.queue] -= 1
            for place, allowed in own_limits(instance):
                active[place] += 1
                if allowed is not None:
                    most[place] = allowed
        return replace(self, pools=dict(pools), queues=queues, parallelism=self.parallelism - len(chosen), active=active, most=most)


def select(waiting: Iterable[Waiting], free: FreeCapacity, *, limit: int, reserve: bool = True) -> list[Waiting]:
    """Choose in rank order. A task instance that does not fit is skipped, so that a full pool does not block others.

    With `reserve`, one that only lacks slots of its pool reserves the pool: lower-ranked ones get none of its slots, so that
    small tasks cannot overtake a large one forever.
    """
    pools, queues, active = dict(free.pools), free.queues.copy(), free.active.copy()
    left = min(limit, free.parallelism)
    chosen: list[Waiting] = []
    for instance in sorted(waiting, key=lambda instance: (-instance.rank, instance.id)):
        if len(chosen) >= left:
            break
        limits = own_limits(instance)
        if queues[instance.queue] <= 0 or reached(active, limits):
            continue
        if pools.get(instance.pool, 0) < instance.pool_slots:
            if reserve:
                pools[instance.pool] = 0
            continue
        pools[instance.pool] -= instance.pool_slots
        queues[instance.queue] -= 1
        for place, _ in limits:
            active[place] += 1
        chosen.append(instance)
    return chosen


class PrefetchWindow:
    """The prefetch window of each queue: the messages that its workers take in AHEAD_S at their last pace, at least `least`.

    It at most doubles from one look to the next. For long tasks it stays at `least`, so that the database decides the order of
    waiting tasks as late as possible.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._of: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._at_s = 0.0

    def of(self, queue: str) -> int:
        """Return the current window of a queue, in messages."""
        return self._of.get(queue, self._least)

    def look(self, held: Mapping[str, int], at_s: float) -> None:
        """Update the windows from the messages that each queue and its workers hold now, and held after the last iteration."""
        passed_s = at_s - self._at_s
        if passed_s <= 0:
            return
        most = LARGEST_WINDOW * self._least
        for queue, left in self._left.items():
            pace = max(0, left - held.get(queue, 0)) / passed_s
            self._of[queue] = int(max(self._least, min(pace * AHEAD_S, 2 * self.of(queue), most)))

    def leave(self, held: Mapping[str, int], at_s: float) -> None:
        """Record the messages that each queue and its workers hold after this iteration."""
        self._left, self._at_s = dict(held), at_s
