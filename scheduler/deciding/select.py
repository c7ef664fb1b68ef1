"""Which waiting task instances may be queued now: pure, in rank order, within every limit."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from paceline.states import Waiting
from scheduler.deciding.limits import Place, own_limits, reached


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
