"""What holds back a scheduled task instance: its pool, limits, its queue, others before it in line. Pure."""

from collections.abc import Iterable

from scheduler.deciding import wording
from scheduler.deciding.situation import Holder, Limit, PoolFacts, Situation


def scheduled(facts: Situation) -> list[str]:
    return [*_pool(facts), *_limits(facts.limits), *_queue_full(facts), *no_worker(facts)] or _in_line(facts.pool)


def _pool(facts: Situation) -> list[str]:
    pool, needs = facts.pool, facts.pool_slots
    if pool is None:
        return [f"There is no pool {facts.pool_name!r}: make it with `paceline pools set {facts.pool_name} SLOTS`."]
    if pool.slots < 0:
        return []
    needed, name = wording.slots(needs), f"pool {pool.name!r}"
    if needs > pool.slots:
        return [f"It needs {needed} and {name} has {pool.slots} in all, so it can never run: enlarge the pool."]
    free = max(0, pool.slots - pool.used)
    if needs > free:
        full = "is full" if free == 0 else f"has {free} free, and it needs {needs}"
        return [f"P{name[1:]} {full}: {pool.used} of {wording.slots(pool.slots)} are in use{_holders(pool)}."]
    return _reserved(pool, free)


def _reserved(pool: PoolFacts, free: int) -> list[str]:
    first = pool.reserved_for
    if first is None:
        return []
    return [
        f"{first.name} of run {first.run_id!r} ranks higher, needs {wording.slots(first.slots)} of pool {pool.name!r} and holds "
        f"its place in line while {free} are free (scheduler.pool_reservation)."
    ]


def _holders(pool: PoolFacts) -> str:
    if not pool.holders:
        return ""
    shown = ", ".join(_holder(one) for one in pool.holders[: wording.MOST_NAMES])
    more = pool.holder_count - len(pool.holders[: wording.MOST_NAMES])
    return f", held by {shown}{f' and {more} more' if more > 0 else ''}"


def _holder(one: Holder) -> str:
    return f"{one.name} of run {one.run_id!r}{f' ({wording.slots(one.slots)})' if one.slots > 1 else ''}"


def _limits(limits: Iterable[Limit]) -> list[str]:
    return [f"The limit {one.name} is reached: {one.active} of {one.limit}." for one in limits if one.reached]


def _queue_full(facts: Situation) -> list[str]:
    queue = facts.queue
    if queue is None or queue.queued + queue.running < queue.places + queue.headroom:
        return []
    return [
        f"Queue {queue.name!r} holds all that its workers can take soon: {queue.queued} queued and {queue.running} running "
        f"for {wording.many(queue.places, 'place', 'places')}."
    ]


def busy(facts: Situation) -> list[str]:
    queue = facts.queue
    if queue is None or queue.workers == 0 or queue.running < queue.places:
        return []
    return [f"All {wording.many(queue.places, 'place', 'places')} of the workers on queue {queue.name!r} are taken."]


def no_worker(facts: Situation) -> list[str]:
    if facts.queue is None or facts.queue.workers > 0:
        return []
    name = facts.queue.name
    return [f"No live worker listens to queue {name!r}: start one with `paceline worker -q {name}`."]


def _in_line(pool: PoolFacts | None) -> list[str]:
    if pool is None or pool.ahead == 0:
        return []
    wait = wording.many(pool.ahead, "task instance of higher rank waits", "task instances of higher rank wait")
    return [f"{wait} in pool {pool.name!r} before it."]
