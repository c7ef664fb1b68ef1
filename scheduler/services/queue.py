"""queue: give free slots to waiting task instances by rank, within every limit, then send their messages."""

import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine

from scheduler.deciding.limits import RUN, TASK, TASK_IN_RUN, Place, own_limits, reached
from scheduler.deciding.prefetch_window import PrefetchWindow
from scheduler.deciding.select import Room, select
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import QUEUE
from scheduler.process import fault_points
from scheduler.services.service import AT_ONCE, HELD_PAUSE_S, Result, Service
from scheduler.services.shared_limits import SharedLimits
from scheduler.settings import Settings
from scheduler.states import Waiting
from scheduler.store.db.database import transaction_at
from scheduler.store.queueing import capacity
from scheduler.store.queueing.capacity import Counts, Full, Pool
from scheduler.store.runs import instances

#: Bounds of the pause, in seconds, between two passes that wakeups alone ask for.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1
#: More slots than any task needs.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Queued:
    """The messages of the task instances queued, whether the broker took them, and whether the next pass is wanted at once.

    `ahead`: if more waits than could be queued, how many messages the longest queue holds beyond the places of its workers. Until
    they have taken some of these, nobody waits for the next pass. 0 if whatever becomes ready may go at once.
    `held_elsewhere`: another scheduler held a pool or run that something waits for, and may not have seen it.
    """

    messages: list[Message]
    sent: bool
    more: bool
    ahead: int = 0
    held_elsewhere: bool = False


class Queue(Service):
    """Only the pools something waits for are locked, so schedulers working on different pools do not meet."""

    name = "queue"
    pending = capacity.PENDING
    wakeups = frozenset({QUEUE})

    def __init__(self, engine: Engine, settings: Settings, publisher: Publisher, scheduler_id: Callable[[], str]) -> None:
        self._engine = engine
        self._settings = settings
        self._publisher = publisher
        self._scheduler_id = scheduler_id
        self._prefetch_window = PrefetchWindow(settings.scheduler.queue_headroom)
        self._queued_at = 0.0
        #: When, by this process's monotonic clock, wakeups of this service may be taken again, see pause_s.
        self.listens_at = SHORTEST_PAUSE_S
        self.interval_s = settings.scheduler.scheduler_idle_sleep_time

    def run_once(self) -> Result:
        queued = self.queue()
        since_last_s, self._queued_at = time.monotonic() - self._queued_at, time.monotonic()
        self.listens_at = self._queued_at + pause_s(queued, since_last_s)
        again_in_s = AT_ONCE if queued.more else None
        if queued.held_elsewhere and not queued.more:
            # At random, since two that met would meet again.
            again_in_s = HELD_PAUSE_S * random.uniform(0.5, 1.5)  # noqa: S311
        unsent = f"The broker does not answer; {len(queued.messages)} message(s) will be sent again"
        return Result(again_in_s=again_in_s, log=[] if queued.sent else [(logging.WARNING, unsent)])

    def queue(self) -> Queued:
        at_s = time.monotonic()
        chosen = _choose_and_queue(self._engine, self._settings, self._scheduler_id(), self._prefetch_window, at_s)
        sent = send(self._engine, self._publisher, chosen.messages, step="queue")
        more = chosen.lost or len(chosen.messages) >= self._settings.scheduler.max_tis_per_query
        return Queued(chosen.messages, sent, more, chosen.ahead if chosen.waits else 0, chosen.held_elsewhere)


def pause_s(queued: Queued, since_last_s: float) -> float:
    """Seconds in which wakeups need not wake this service: about until the workers have taken half of what the longest queue
    holds for them, at the pace at which they took the last of it. Every task that ends while others wait sends a wakeup, and a
    pass for each of them would queue one task at a time. If everything that waited could be queued, there may be room for whatever
    is woken for.
    """
    if queued.ahead <= 0:
        return SHORTEST_PAUSE_S
    taken_per_s = max(len(queued.messages), 1) / max(since_last_s, SHORTEST_PAUSE_S)
    return min(max(queued.ahead / 2 / taken_per_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


def send(engine: Engine, publisher: Publisher, messages: list[Message], *, step: str) -> bool:
    """Publish and stamp dispatched_at. If the broker is away they stay queued without a message, and rescue sends them."""
    if not messages:
        return True
    fault_points.point(f"{step}.publish")
    try:
        publisher.publish(messages)
    except PUBLISH_ERRORS:
        return False
    fault_points.point(f"{step}.published")
    _stamp(engine, messages)
    return True


@transaction_at("stamp", lambda _: True)
def _stamp(connection: Connection, messages: list[Message]) -> None:
    instances.stamp_dispatched(connection, messages)


@dataclass(slots=True)
class _Chosen:
    """What a pass has done so far: messages to send, what it found full, and whether another scheduler was in its way."""

    messages: list[Message] = field(default_factory=list)
    full: Full = field(default_factory=Full)
    held_elsewhere: bool = False
    #: A worker handed its slots to one that this pass had picked: with that it may not have rung for what it made ready.
    lost: bool = False
    #: Whether something waits that could not be queued, and what the longest queue holds beyond the places of its workers.
    waits: bool = False
    ahead: int = 0


@transaction_at("queue", lambda chosen: chosen.messages)
def _choose_and_queue(
    connection: Connection, settings: Settings, scheduler_id: str, headroom: PrefetchWindow, at_s: float
) -> _Chosen:
    """Rounds of read, select and write under the locks; what is found full is left out of the query, before its limit."""
    chosen = _Chosen()
    found = capacity.hold_waiting_pools(connection)
    pools, chosen.held_elsewhere = found.held, found.held_elsewhere
    if not pools:
        return chosen
    counts = capacity.count(connection, alive_s=settings.worker.heartbeat_timeout)
    limits = SharedLimits()
    headroom.look(in_queues(counts), at_s)
    free = free_room(pools, counts, settings, headroom)
    all_held, more = not chosen.held_elsewhere, True
    while more:
        free, more = _round(
            connection, chosen, pools, free, limits, settings=settings, scheduler_id=scheduler_id, headroom=headroom
        )
    # Of each queue that something is in: what it and its workers hold now.
    held = {name: counts.places.get(name, 0) + headroom.of(name) - left for name, left in free.queues.items()}
    headroom.leave(held, at_s)
    chosen.waits |= bool(chosen.full.queues)
    chosen.ahead = max((count - counts.places.get(name, 0) for name, count in held.items()), default=0)
    if all_held:
        _let_hand_on(connection, pools, free)
    return chosen


def _round(
    connection: Connection,
    chosen: _Chosen,
    pools: Mapping[str, Pool],
    free: Room,
    limits: SharedLimits,
    *,
    settings: Settings,
    scheduler_id: str,
    headroom: PrefetchWindow,
) -> tuple[Room, bool]:
    """Read the best that are not known to be full, select, write. What is free then, and whether more may be found."""
    limit = settings.scheduler.max_tis_per_query
    _note_full(chosen.full, free)
    share = {name: min(slots, limit) for name, slots in free.pools.items() if slots > 0}
    batch = capacity.waiting(
        connection,
        share,
        _largest(pools, free, settings),
        full=chosen.full,
        limit=limit,
        aging_s=settings.scheduler.priority_aging,
    )
    if not batch:
        return free, False
    left, reserve = limit - len(chosen.messages), settings.scheduler.pool_reservation
    limits.announce(connection, select(batch, free, limit=left, reserve=reserve))
    ours = _hold(connection, batch)
    # Counted again now that nobody else can add to these runs.
    free = free_room(pools, capacity.count(connection, alive_s=settings.worker.heartbeat_timeout), settings, headroom)
    usable, left_to_others = limits.within(free, {one.queue for one in batch})
    chosen.held_elsewhere |= len(ours) < len(batch) or left_to_others
    picked = select(ours, usable, limit=left, reserve=reserve)
    if picked:
        queued = instances.queue(connection, [one.id for one in picked], scheduler_id)
        chosen.lost |= len(queued) < len(picked)
        chosen.messages += queued
        free = free.without(picked)
    chosen.waits |= len(picked) < len(batch)
    came = Counter(one.pool for one in batch)
    more_wait = any(came[name] >= share[name] for name in share) and len(chosen.messages) < limit
    return free, more_wait and (_exclude(chosen.full, free, batch, ours) or bool(picked))


def _let_hand_on(connection: Connection, pools: Mapping[str, Pool], free: Room) -> None:
    may = may_hand_on(free.pools, free.parallelism)
    if changed := {name: may[name] for name, pool in pools.items() if may[name] is not pool.hands_on}:
        capacity.let_hand_on(connection, changed)


def may_hand_on(free: Mapping[str, int], parallelism: int) -> dict[str, bool]:
    """Of each pool something waits for, by its free slots: whether workers may hand its slots on without asking this service.

    Not if more is taken than there is. And not while a task of another pool, which has slots for it, waits for something that all
    share: places in a queue, in its run or overall. Handed on, those would never come to it.
    """
    with_room = {name for name, slots in free.items() if slots > 0}
    return {name: slots >= 0 <= parallelism and not with_room - {name} for name, slots in free.items()}


def _hold(connection: Connection, batch: list[Waiting]) -> list[Waiting]:
    """Those of `batch` whose run, and whose DAG where its limit counts, no other scheduler holds."""
    limited = {one.dag_id for one in batch if one.task_limit is not None}
    dags = capacity.hold_dags(connection, limited) if limited else set()
    runs = capacity.hold_runs(connection, {one.dag_run_id for one in batch}) if batch else set()
    return [one for one in batch if one.dag_run_id in runs and (one.task_limit is None or one.dag_id in dags)]


def _note_full(full: Full, free: Room) -> None:
    """Queues without a place, and runs and tasks that have reached limits of their own."""
    full.queues.update(name for name, count in free.queues.items() if count <= 0)
    full.places.update(reached(free.active, free.most.items()))


def _exclude(full: Full, free: Room, batch: list[Waiting], ours: list[Waiting]) -> bool:
    """Leave out what `batch` showed to be full or held elsewhere; whether that is anything new."""
    held = {one.id for one in ours}
    queues = {one.queue for one in batch if free.queues[one.queue] <= 0}
    places = {place for one in batch for place in reached(free.active, own_limits(one))}
    places |= {(RUN, one.dag_run_id) for one in batch if one.id not in held}
    news = queues - full.queues or places - full.places
    full.queues.update(queues)
    full.places.update(places)
    return bool(news)


def _largest(pools: Mapping[str, Pool], free: Room, settings: Settings) -> Mapping[str, int]:
    """By pool, how many slots a task may need to be looked at: with reservation one that does not fit now holds its place."""
    if not settings.scheduler.pool_reservation:
        return free.pools
    return {one.name: UNLIMITED if one.slots < 0 else one.slots for one in pools.values()}


def in_queues(counts: Counts) -> Counter[str]:
    """What each queue and its workers hold."""
    held: Counter[str] = Counter()
    for one in counts.held:
        held[one.queue] += one.instances
    return held


def free_room(pools: Mapping[str, Pool], counts: Counts, settings: Settings, headroom: PrefetchWindow) -> Room:
    """What is free now. A queue may hold its `headroom` more than its live workers have places."""
    slots = {
        one.name: settings.core.parallelism if one.slots < 0 else one.slots - counts.deferred.get(one.name, 0)
        for one in pools.values()
    }
    window: defaultdict[str, int] = defaultdict(lambda: settings.scheduler.queue_headroom)
    for name in {*counts.places, *in_queues(counts)}:
        window[name] = counts.places.get(name, 0) + headroom.of(name)
    active: Counter[Place] = Counter()
    most: dict[Place, int] = {}
    for one in counts.held:
        if one.pool in slots and pools[one.pool].slots >= 0:
            slots[one.pool] -= one.slots
        window[one.queue] -= one.instances
        active[RUN, one.dag_run_id] += one.instances
        most[RUN, one.dag_run_id] = one.run_limit
    for each in counts.tasks:
        places = (
            ((TASK, (each.dag_id, each.task_id)), each.task_limit),
            ((TASK_IN_RUN, (each.dag_run_id, each.task_id)), each.task_in_run_limit),
        )
        for place, limit in places:
            active[place] += each.instances
            if limit is not None:
                most[place] = limit
    parallelism = settings.core.parallelism - sum(one.instances for one in counts.held)
    return Room(pools=slots, queues=window, parallelism=parallelism, active=active, most=most)
