"""Which waiting task instances may be queued now: pure, in rank order, within every limit."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scheduler.states import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is free: slots by pool, messages by queue, and overall; and how many of each run are active."""

    pools: Mapping[str, int]
    queues: defaultdict[str, int]
    active_in_run: Counter[int]
    parallelism: int


def select(waiting: Iterable[Waiting], room: Room, *, limit: int) -> list[Waiting]:
    """Choose in rank order. One that does not fit is passed over and the next is tried, so a full pool stops nobody else."""
    pools, queues, active = dict(room.pools), room.queues.copy(), room.active_in_run.copy()
    left = min(limit, room.parallelism)
    chosen: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: (-one.priority_weight, one.id)):
        if len(chosen) >= left:
            break
        fits = pools.get(one.pool, 0) >= one.pool_slots and queues[one.queue] > 0 and active[one.dag_run_id] < one.run_limit
        if fits:
            pools[one.pool] -= one.pool_slots
            queues[one.queue] -= 1
            active[one.dag_run_id] += 1
            chosen.append(one)
    return chosen
