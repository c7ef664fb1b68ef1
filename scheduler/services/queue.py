"""queue: gives free slots to waiting task instances by rank, within every limit, then sends their messages."""

import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, Engine

from paceline.states import Waiting
from scheduler.deciding.limits import RUN, TASK, TASK_IN_RUN, own_limits, reached
from scheduler.deciding.select import FreeCapacity, PrefetchWindow, select
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import QUEUE
from scheduler.process import fault_points, measures
from scheduler.services.service import AT_ONCE, HELD_PAUSE_S, Result, Service
from scheduler.settings import Settings
from scheduler.store.db.database import step, transact
from scheduler.store.moves.queue import queue, stamp_dispatched
from scheduler.store.queueing import capacity, parking
from scheduler.store.queueing.capacity import ALL_INSTANCES, OF_QUEUE, Counts, Full, Pool
from scheduler.store.queueing.parking import ParkedTask

#: Bounds, in seconds, of the pause between two passes that only wakeups cause.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.1
#: Seconds after which the tasks with parked instances are read again, since other schedulers park too.
READ_PARKED_S = 1.0
#: More slots than any task can need.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Queued:
    """The messages of the queued task instances, whether the broker accepted them, and whether another pass should follow now.

    `ahead`: the messages that the longest queue holds beyond the places of its workers, if task instances are still waiting.
    The next pass is not urgent until workers have taken some of these. 0 if a task instance that becomes ready can be queued.
    `held_elsewhere`: another scheduler had locked a pool or run with waiting task instances, and may have missed them.
    `lost`: a worker took a task instance that this pass had picked, and may not have woken this service for others that became
    ready.
    """

    messages: list[Message]
    sent: bool
    more: bool
    ahead: int = 0
    held_elsewhere: bool = False
    lost: bool = False


class Queue(Service):
    """Queues task instances. It locks only pools with waiting task instances, so schedulers can work on different pools."""

    name = "queue"
    pending = f"({capacity.PENDING} or {parking.PENDING})"
    is_shared = True
    wakeups = frozenset({QUEUE})

    def __init__(self, engine: Engine, settings: Settings, publisher: Publisher, scheduler_id: Callable[[], str]) -> None:
        super().__init__(engine, settings)
        self._publisher = publisher
        self._scheduler_id = scheduler_id
        self._prefetch_window = PrefetchWindow(settings.scheduler.prefetch_window)
        #: Runs that had reached max_active_tasks. The next pass counts them first, to exclude those that still have.
        self._full_runs: Collection[int] = ()
        self._queued_at = 0.0
        #: The tasks with parked instances, as they were read and as this service has parked them since.
        self._parked: Collection[ParkedTask] = ()
        self._parked_read_at = 0.0

    def run_once(self) -> Result:
        queued = self.queue()
        since_last_s, self._queued_at = time.monotonic() - self._queued_at, time.monotonic()
        self.wakeups_paused_until = self._queued_at + pause_s(queued, since_last_s)
        again_in_s = AT_ONCE if queued.more else None
        if (queued.held_elsewhere or queued.lost) and not queued.more:
            # Jitter, so that two schedulers, or a scheduler and the workers, that met do not meet again.
            again_in_s = HELD_PAUSE_S * random.uniform(0.5, 1.5)  # noqa: S311
        unsent = f"The broker does not answer; {len(queued.messages)} message(s) will be sent later"
        return Result(again_in_s=again_in_s, log=[] if queued.sent else [(logging.WARNING, unsent)])

    def queue(self) -> Queued:
        at_s = time.monotonic()
        settings, window = self._settings, self._prefetch_window
        full_runs = self._full_runs
        if at_s - self._parked_read_at >= READ_PARKED_S:
            self._parked, self._parked_read_at = transact(self._engine, parking.parked), at_s
        with measures.timed("scheduler.critical_section_duration"):
            chosen = transact(
                self._engine, _choose_and_queue, settings, self._scheduler_id(), window, at_s,
                full_runs=full_runs, parked=self._parked, without_slots=self._parked_read_at == at_s,
            )  # fmt: skip
        self._parked = {*self._parked, *chosen.parked}
        measures.gauge("scheduler.tasks.executable", len(chosen.messages))
        if chosen.held_elsewhere:
            measures.count("scheduler.critical_section_busy")
        self._full_runs = chosen.full.keys()[RUN]
        sent = send(self._engine, self._publisher, chosen.messages, step="queue")
        more = len(chosen.messages) >= self._settings.scheduler.max_tis_per_query
        return Queued(chosen.messages, sent, more, chosen.ahead if chosen.waits else 0, chosen.held_elsewhere, chosen.lost)


def pause_s(queued: Queued, since_last_s: float) -> float:
    """Seconds for which wakeups of this service are left unread, so that a pass can queue several tasks.

    Every task that ends while others wait sends a wakeup, and a pass for each of them would queue one task at a time. So the
    pause lasts about until the workers have taken half of the longest queue, at their last pace. The pause is shortest if every
    waiting task instance could be queued, because capacity may be left for the next one.
    """
    if queued.ahead <= 0:
        return SHORTEST_PAUSE_S
    taken_per_s = max(len(queued.messages), 1) / max(since_last_s, SHORTEST_PAUSE_S)
    return min(max(queued.ahead / 2 / taken_per_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)


class SharedLimits:
    """The limits that pools share, `parallelism` and the places of a queue, in concurrent passes that lock different pools.

    A pass first announces how much it may take of each limit, in the key of an advisory lock that it holds until it commits. Then
    it reads what other passes have announced, and only then counts what is free. It takes at most the difference: call `announce`
    before the count that the pass uses, and `within` after it.

    So no limit is exceeded. Consider the last pass that announced, among all that take from a limit. Every other pass either
    committed before this one read the announcements, and is counted; or it was still running, and this pass leaves everything to it
    that it may take. No pass waits. A pass that leaves something to another one runs again soon.
    """

    def __init__(self) -> None:
        #: The number that all rounds of the pass may take together, by the name of the limit.
        self._announced: Counter[str] = Counter()
        #: The numbers that this round may take, and that all other passes may take.
        self._wanted: Counter[str] = Counter()
        self._others: Mapping[str, int] = {}

    def announce(self, connection: Connection, expected: Collection[Waiting]) -> None:
        """Announce that this round may take as many places as `expected` needs, which were free at the last count."""
        self._wanted = Counter(_of_queue(waiting.queue) for waiting in expected)
        if expected:
            self._wanted[ALL_INSTANCES] = len(expected)
            self._announced += self._wanted
            # The sum of all rounds: each amount is a lock of its own, and the largest of a pass counts.
            self._others = capacity.announce(connection, {name: self._announced[name] for name in self._wanted})

    def within(self, free: FreeCapacity, queues: Collection[str]) -> tuple[FreeCapacity, bool]:
        """The part of `free`, counted after `announce`, that this round may take; and whether it leaves some to other passes."""
        counts = {ALL_INSTANCES: free.parallelism} | {_of_queue(name): free.queues[name] for name in queues}
        usable = {name: min(self._wanted[name], count - self._others.get(name, 0)) for name, count in counts.items()}
        leaves = any(usable[name] < min(self._wanted[name], count) for name, count in counts.items())
        by_queue = defaultdict(int, {name: usable[_of_queue(name)] for name in queues})
        return replace(free, parallelism=usable[ALL_INSTANCES], queues=by_queue), leaves


def _of_queue(name: str) -> str:
    return OF_QUEUE + name


@dataclass(slots=True)
class _Chosen:
    """The result of a pass so far: messages to send, limits that are reached, and whether another scheduler had rows locked."""

    messages: list[Message] = field(default_factory=list)
    full: Full = field(default_factory=Full)
    #: The runs that are counted one by one.
    runs: set[int] = field(default_factory=set)
    held_elsewhere: bool = False
    #: A worker passed its slots on to a task instance that this pass had chosen. It may not have sent a wakeup for others.
    lost: bool = False
    #: Whether a task instance could not be queued, and the messages of the longest queue beyond the places of its workers.
    waits: bool = False
    ahead: int = 0
    #: The tasks whose instances this pass parked.
    parked: list[ParkedTask] = field(default_factory=list)


@step("queue", lambda chosen: chosen.messages)
def _choose_and_queue(
    connection: Connection,
    settings: Settings,
    scheduler_id: str,
    window: PrefetchWindow,
    at_s: float,
    *,
    full_runs: Collection[int],
    parked: Collection[ParkedTask],
    without_slots: bool,
) -> _Chosen:
    """Rounds of read, select and write under locks. The query of the next round excludes full limits before its LIMIT."""
    chosen = _Chosen(runs=set(full_runs))
    waiting = capacity.lock_waiting_pools(connection, {task.pool for task in parked})
    pools, chosen.held_elsewhere = waiting.held, waiting.held_elsewhere
    if not pools:
        return chosen
    if waiting.paused:
        capacity.park(connection, waiting.paused)
    counts = capacity.count(connection, chosen.runs, alive_s=settings.worker.heartbeat_timeout)
    limits = SharedLimits()
    window.look(in_queues(counts), at_s)
    free = free_capacity(pools, counts, settings, window)
    _note_full(chosen.full, free)
    _park_and_unpark(connection, chosen, free, parked, without_slots)
    all_pools_held, more = not waiting.held_elsewhere, True
    while more:
        free, more = _round(connection, chosen, pools, free, limits, settings=settings, scheduler_id=scheduler_id, window=window)
    # The messages that each queue and its workers hold now.
    held = {name: counts.places.get(name, 0) + window.of(name) - left for name, left in free.queues.items()}
    window.leave(held, at_s)
    chosen.waits |= bool(chosen.full.queues)
    chosen.ahead = max((count - counts.places.get(name, 0) for name, count in held.items()), default=0)
    if all_pools_held:
        _allow_passing_on(connection, pools, free, chosen.full, {name for name in chosen.full.queues if name not in counts.places})
    return chosen


def _park_and_unpark(
    connection: Connection, chosen: _Chosen, free: FreeCapacity, parked: Collection[ParkedTask], without_slots: bool
) -> None:
    """Unpark what may start, with `without_slots` also what lacks slots; park what is behind a full limit of its task."""
    may_start = {task: task.free(free.active) for task in parked if task.pool in free.pools}
    if unparked := {task: count for task, count in may_start.items() if count > 0 and (without_slots or free.pools[task.pool] > 0)}:
        parking.unpark(connection, unparked, chosen.full)
    if any(limit in (TASK, TASK_IN_RUN) for limit, _ in chosen.full.places):
        chosen.parked = parking.park(connection, free.pools, chosen.full)


def _round(
    connection: Connection,
    chosen: _Chosen,
    pools: Mapping[str, Pool],
    free: FreeCapacity,
    limits: SharedLimits,
    *,
    settings: Settings,
    scheduler_id: str,
    window: PrefetchWindow,
) -> tuple[FreeCapacity, bool]:
    """Read the highest-ranked task instances, except those behind a full limit, then select and write.

    Returns the capacity that is left, and whether another round may find more.
    """
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
        # Workers pass slots on faster than a round takes: without locks, they could take the few it chooses again and again.
        lock=chosen.lost,
    )
    if not batch:
        return free, False
    left, reserve = limit - len(chosen.messages), settings.scheduler.pool_reservation
    limits.announce(connection, select(batch, free, limit=left, reserve=reserve))
    ours = _lock(connection, batch)
    chosen.runs.update(instance.dag_run_id for instance in batch)
    # Counted again, now that no other process can add to these runs.
    counts = capacity.count(connection, chosen.runs, alive_s=settings.worker.heartbeat_timeout)
    free = free_capacity(pools, counts, settings, window)
    usable, left_to_others = limits.within(free, {instance.queue for instance in batch})
    chosen.held_elsewhere |= len(ours) < len(batch) or left_to_others
    picked = select(ours, usable, limit=left, reserve=reserve)
    if picked:
        queued = queue(connection, [instance.id for instance in picked], scheduler_id)
        chosen.lost |= len(queued) < len(picked)
        chosen.messages += queued
        # A task instance that a worker took in the meantime has the place of the task that ended there. This place stays free.
        moved = {message.ti_id for message in queued}
        free = free.without([instance for instance in picked if instance.id in moved])
    chosen.waits |= len(picked) < len(batch)
    came = Counter(instance.pool for instance in batch)
    more_wait = any(came[name] >= share[name] for name in share) and len(chosen.messages) < limit
    return free, more_wait and (_exclude(chosen.full, free, batch, ours) or bool(picked))


def _allow_passing_on(
    connection: Connection, pools: Mapping[str, Pool], free: FreeCapacity, full: Full, unserved: Collection[str]
) -> None:
    with_slots = {name for name, slots in free.pools.items() if slots > 0}
    if with_slots and len(pools) > 1:
        with_slots = capacity.without_shared_limit(connection, with_slots, full, unserved)
    may = passes_slots_on(free.pools, free.parallelism, with_slots)
    if changed := {name: may[name] for name, pool in pools.items() if may[name] is not pool.passes_slots_on}:
        capacity.set_passing_on(connection, changed)


def passes_slots_on(free: Mapping[str, int], parallelism: int, with_slots: Collection[str] | None = None) -> dict[str, bool]:
    """For each pool with waiting task instances, given its free slots: whether workers may pass slots on without this service.

    They may not if more slots are taken than there are. Nor may they while another pool, one of `with_slots`, has free slots and
    a task that waits for a shared limit (places in a queue, in its run or overall). It would never get a place if these were
    passed on with the slots. A task that waits for something of its own changes nothing for others.
    """
    if with_slots is None:
        with_slots = {name for name, slots in free.items() if slots > 0}
    return {name: slots >= 0 <= parallelism and not set(with_slots) - {name} for name, slots in free.items()}


def _lock(connection: Connection, batch: list[Waiting]) -> list[Waiting]:
    """Lock the runs of `batch`, and the DAGs with a limit. Returns the task instances whose rows could be locked."""
    limited = {instance.dag_id for instance in batch if instance.task_limit is not None}
    dags = capacity.lock_dags(connection, limited) if limited else set()
    runs = capacity.lock_runs(connection, {instance.dag_run_id for instance in batch})
    return [
        instance for instance in batch if instance.dag_run_id in runs and (instance.task_limit is None or instance.dag_id in dags)
    ]


def _note_full(full: Full, free: FreeCapacity) -> None:
    """Add queues without free places, and runs and tasks that have reached their limits."""
    full.queues.update(name for name, count in free.queues.items() if count <= 0)
    full.places.update(reached(free.active, free.most.items()))


def _exclude(full: Full, free: FreeCapacity, batch: list[Waiting], ours: list[Waiting]) -> bool:
    """Exclude the queues and limits that `batch` shows to be full or locked elsewhere. Returns whether any exclusion is new."""
    held = {instance.id for instance in ours}
    queues = {instance.queue for instance in batch if free.queues[instance.queue] <= 0}
    places = {place for instance in batch for place in reached(free.active, own_limits(instance))}
    places |= {place for instance in batch if instance.id not in held for place, _ in own_limits(instance, [RUN])}
    news = queues - full.queues or places - full.places
    full.queues.update(queues)
    full.places.update(places)
    return bool(news)


def _largest(pools: Mapping[str, Pool], free: FreeCapacity, settings: Settings) -> Mapping[str, int]:
    """By pool, the most slots a candidate may need. With reservation, candidates too big for the free slots count too."""
    if not settings.scheduler.pool_reservation:
        return free.pools
    return {pool.name: UNLIMITED if pool.slots < 0 else pool.slots for pool in pools.values()}


def in_queues(counts: Counts) -> Counter[str]:
    """The messages that each queue and its workers hold."""
    held: Counter[str] = Counter()
    for use in counts.used:
        held[use.queue] += use.instances
    return held


def free_capacity(pools: Mapping[str, Pool], counts: Counts, settings: Settings, window: PrefetchWindow) -> FreeCapacity:
    """The capacity that is free now. A queue can hold as many messages as its workers have places, plus its prefetch window."""
    slots = {
        pool.name: settings.core.parallelism if pool.slots < 0 else pool.slots - counts.deferred.get(pool.name, 0)
        for pool in pools.values()
    }
    queues: defaultdict[str, int] = defaultdict(lambda: settings.scheduler.prefetch_window)
    for name in {*counts.places, *in_queues(counts)}:
        queues[name] = counts.places.get(name, 0) + window.of(name)
    for use in counts.used:
        if use.pool in slots and pools[use.pool].slots >= 0:
            slots[use.pool] -= use.slots
        queues[use.queue] -= use.instances
    parallelism = settings.core.parallelism - sum(use.instances for use in counts.used)
    return FreeCapacity(pools=slots, queues=queues, parallelism=parallelism, active=counts.active, most=counts.most)


def send(engine: Engine, publisher: Publisher, messages: list[Message], *, step: str) -> bool:
    """Publish messages and set dispatched_at. Without the broker, the task instances stay queued, and rescue sends them later."""
    if not messages:
        return True
    fault_points.point(f"{step}.publish")
    try:
        publisher.publish(messages)
    except PUBLISH_ERRORS:
        measures.count("celery.task_timeout_error", len(messages))
        return False
    fault_points.point(f"{step}.published")
    transact(engine, stamp_dispatched, messages)
    return True
