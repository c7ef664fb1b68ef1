"""queue: give free slots to waiting task instances by rank, within every limit, then send their messages."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from scheduler.deciding.select import Room, select
from scheduler.dispatch import PUBLISH_ERRORS, Message, Publisher
from scheduler.settings import Settings
from scheduler.store import instances, room
from scheduler.store.database import transaction
from scheduler.store.room import Held


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
    full_runs: set[int] = set()
    full_queues: set[str] = set()
    while len(messages) < limit:
        free = free_room(pools, room.held(connection), places, settings)
        full_queues = {name for name, count in free.queues.items() if count <= 0}
        batch = room.waiting(
            connection,
            {name: min(slots, limit) for name, slots in free.pools.items() if slots > 0},
            full_runs=full_runs,
            full_queues=full_queues,
            limit=limit,
        )
        ours = room.hold_runs(connection, {one.dag_run_id for one in batch})
        # Counted again now that nobody else can add to these runs.
        free = free_room(pools, room.held(connection), places, settings)
        chosen = select([one for one in batch if one.dag_run_id in ours], free, limit=limit - len(messages))
        messages += instances.queue(connection, [one.id for one in chosen], scheduler_id) if chosen else []
        taken = Counter(one.dag_run_id for one in chosen)
        full_now = {
            one.dag_run_id
            for one in batch
            if one.dag_run_id not in ours or free.active_in_run.get(one.dag_run_id, 0) + taken[one.dag_run_id] >= one.run_limit
        }
        if not chosen and full_now <= full_runs:
            break
        full_runs |= full_now
    return messages, bool(full_queues)


def near_parallelism(connection: Connection, settings: Settings) -> None:
    """If this pass could reach `parallelism`, count alone: other schedulers may hold other pools at the same time."""
    if settings.core.parallelism - sum(one.instances for one in room.held(connection)) < settings.scheduler.max_tis_per_query:
        room.hold_parallelism(connection)


def free_room(pools: Mapping[str, int], held: Iterable[Held], places: Mapping[str, int], settings: Settings) -> Room:
    """What is free now. A queue may hold `queue_headroom` messages more than its live workers have places."""
    slots = {name: settings.core.parallelism if size < 0 else size for name, size in pools.items()}
    window: defaultdict[str, int] = defaultdict(lambda: settings.scheduler.queue_headroom)
    for name, count in places.items():
        window[name] += count
    active: Counter[int] = Counter()
    total = 0
    for one in held:
        if one.pool in slots and pools[one.pool] >= 0:
            slots[one.pool] -= one.slots
        window[one.queue] -= one.instances
        active[one.dag_run_id] += one.instances
        total += one.instances
    return Room(pools=slots, queues=window, active_in_run=active, parallelism=settings.core.parallelism - total)
