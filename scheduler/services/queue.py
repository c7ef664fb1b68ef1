"""queue: give free slots to waiting task instances by rank, within every limit, then send their messages."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from scheduler.deciding.select import Room, select
from scheduler.dispatch import PUBLISH_ERRORS, Message, Publisher
from scheduler.settings import Settings
from scheduler.states import Waiting
from scheduler.store import instances, room
from scheduler.store.database import transaction
from scheduler.store.room import Full, Held, HeldTask, Pool

#: More slots than any task needs.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Queued:
    """The messages of the task instances queued, whether the broker took them, and whether more may wait for this scheduler.

    `filled`: some queue now holds all that its workers can take soon, so the next pass may wait until they have taken some.
    """

    messages: list[Message]
    sent: bool
    more: bool
    filled: bool


class Queue:
    """Only the pools something waits for are locked, so schedulers working on different pools do not meet."""

    def __init__(self, engine: Engine, settings: Settings, publisher: Publisher, scheduler_id: str) -> None:
        self._engine = engine
        self._settings = settings
        self._publisher = publisher
        self.scheduler_id = scheduler_id

    def run_once(self, now: datetime) -> Queued:
        messages, filled = _choose_and_queue(self._engine, self._settings, self.scheduler_id)
        sent = send(self._engine, self._publisher, messages)
        return Queued(messages, sent, more=len(messages) >= self._settings.scheduler.max_tis_per_query, filled=filled)


def send(engine: Engine, publisher: Publisher, messages: list[Message]) -> bool:
    """Publish and stamp dispatched_at. If the broker is away they stay queued without a message, and rescue sends them."""
    try:
        publisher.publish(messages)
    except PUBLISH_ERRORS:
        return False
    if messages:
        _stamp(engine, messages)
    return True


@transaction
def _stamp(connection: Connection, messages: list[Message]) -> None:
    instances.stamp_dispatched(connection, messages)


@transaction
def _choose_and_queue(connection: Connection, settings: Settings, scheduler_id: str) -> tuple[list[Message], bool]:
    """Rounds of read, select and write under the locks; what a round finds full is left out of the next query, before its limit.

    Returns the messages to send, and whether a queue was filled.
    """
    pools = room.hold_waiting_pools(connection)
    if not pools:
        return [], False
    limit = settings.scheduler.max_tis_per_query
    near_parallelism(connection, settings)
    places = room.places(connection, alive_s=settings.worker.heartbeat_timeout)
    messages: list[Message] = []
    now = _count(connection, pools, places, settings)
    full = Full(room.full_runs(connection, now.room.active_in_run), set(), now.full_tasks, now.full_tasks_in_run)
    while len(messages) < limit:
        full.queues.update(name for name, count in now.room.queues.items() if count <= 0)
        batch = room.waiting(
            connection,
            {name: min(slots, limit) for name, slots in now.room.pools.items() if slots > 0},
            # Without reservation one that does not fit now is none to look at; with it, it holds its place.
            now.total if settings.scheduler.pool_reservation else now.room.pools,
            full=full,
            limit=limit,
            aging_s=settings.scheduler.priority_aging,
        )
        ours = _hold(connection, batch)
        # Counted again now that nobody else can add to these runs.
        now = _count(connection, pools, places, settings)
        chosen = select(ours, now.room, limit=limit - len(messages), reserve=settings.scheduler.pool_reservation)
        messages += instances.queue(connection, [one.id for one in chosen], scheduler_id) if chosen else []
        now = _count(connection, pools, places, settings) if chosen else now
        if not _note_full(full, now, batch, ours) and not chosen:
            break
    return messages, bool(full.queues)


def _hold(connection: Connection, batch: list[Waiting]) -> list[Waiting]:
    """Those of `batch` whose run, and whose DAG where its limit counts, no other scheduler holds."""
    limited = {one.dag_id for one in batch if one.task_limit is not None}
    dags = room.hold_dags(connection, limited) if limited else set()
    runs = room.hold_runs(connection, {one.dag_run_id for one in batch})
    return [one for one in batch if one.dag_run_id in runs and (one.task_limit is None or one.dag_id in dags)]


def _note_full(full: Full, now: "_Now", batch: list[Waiting], ours: list[Waiting]) -> bool:
    """Add to `full` what the next query must leave out: runs held elsewhere, limits reached. Whether that is anything new."""
    held = {one.id for one in ours}
    runs = {one.dag_run_id for one in batch if one.id not in held or now.room.active_in_run.get(one.dag_run_id, 0) >= one.run_limit}
    queues = {one.queue for one in batch if now.room.queues[one.queue] <= 0}
    news = (runs - full.runs, queues - full.queues, now.full_tasks - full.tasks, now.full_tasks_in_run - full.tasks_in_run)
    full.runs.update(runs)
    full.queues.update(queues)
    full.tasks.update(now.full_tasks)
    full.tasks_in_run.update(now.full_tasks_in_run)
    return any(news)


def near_parallelism(connection: Connection, settings: Settings) -> None:
    """If this pass could reach `parallelism`, count alone: other schedulers may hold other pools at the same time."""
    if settings.core.parallelism - sum(one.instances for one in room.held(connection)) < settings.scheduler.max_tis_per_query:
        room.hold_parallelism(connection)


@dataclass(frozen=True, slots=True)
class _Now:
    """What is free at one moment, the size of each pool, and the tasks that have reached limits of their own."""

    room: Room
    total: dict[str, int]
    full_tasks: set[tuple[str, str]]
    full_tasks_in_run: set[tuple[int, str]]


def _count(connection: Connection, pools: Mapping[str, Pool], places: Mapping[str, int], settings: Settings) -> _Now:
    deferred = room.deferred_slots(connection, [one.name for one in pools.values() if one.include_deferred])
    tasks = room.held_tasks(connection)
    free = free_room(pools, room.held(connection), settings, places=places, deferred=deferred, tasks=tasks)
    of_task = free.active_of_task
    return _Now(
        free,
        {one.name: UNLIMITED if one.slots < 0 else one.slots for one in pools.values()},
        {(one.dag_id, one.task_id) for one in tasks if one.task_limit and of_task[one.dag_id, one.task_id] >= one.task_limit},
        {(one.dag_run_id, one.task_id) for one in tasks if one.task_in_run_limit and one.instances >= one.task_in_run_limit},
    )


def free_room(
    pools: Mapping[str, Pool],
    held: Iterable[Held],
    settings: Settings,
    *,
    places: Mapping[str, int],
    deferred: Mapping[str, int],
    tasks: Iterable[HeldTask] = (),
) -> Room:
    """What is free now. A queue may hold `queue_headroom` messages more than its live workers have places."""
    slots = {
        one.name: settings.core.parallelism if one.slots < 0 else one.slots - deferred.get(one.name, 0) for one in pools.values()
    }
    window: defaultdict[str, int] = defaultdict(lambda: settings.scheduler.queue_headroom)
    for name, count in places.items():
        window[name] += count
    active: Counter[int] = Counter()
    total = 0
    for one in held:
        if one.pool in slots and pools[one.pool].slots >= 0:
            slots[one.pool] -= one.slots
        window[one.queue] -= one.instances
        active[one.dag_run_id] += one.instances
        total += one.instances
    of_task: Counter[tuple[str, str]] = Counter()
    of_task_in_run: Counter[tuple[int, str]] = Counter()
    for each in tasks:
        of_task[each.dag_id, each.task_id] += each.instances
        of_task_in_run[each.dag_run_id, each.task_id] += each.instances
    return Room(
        pools=slots,
        queues=window,
        active_in_run=active,
        parallelism=settings.core.parallelism - total,
        active_of_task=of_task,
        active_of_task_in_run=of_task_in_run,
    )
