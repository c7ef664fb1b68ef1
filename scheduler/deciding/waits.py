"""Waits for slots, limits and workers: the facts, and their sentences now and in a history. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

#: Names in one sentence; the rest is counted.
MOST_NAMES = 8
#: A shorter wait, in seconds, has no cause worth a sentence.
SHORTEST_WAIT_S = 1.0
ENDED = {
    "success": "Succeeded", "failed": "Failed", "up_for_retry": "Failed", "skipped": "Skipped", "removed": "Removed",
    "upstream_failed": "Not run, because an upstream task failed",
    "up_for_reschedule": "Checked its condition, and will check again",
    "deferred": "Deferred to its trigger", "shutdown": "Stop requested",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A task instance that holds slots of a pool. Both names are None if the account may not see its DAG."""

    name: str | None
    run_id: str | None
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """The pool of the task instance, the first few holders of its slots, and the number of task instances before it in line."""

    name: str
    #: -1: without limit.
    slots: int
    used: int
    holders: tuple[Holder, ...] = ()
    holder_count: int = 0
    #: Scheduled task instances of higher rank in the same pool.
    ahead: int = 0
    #: The task instance of higher rank that does not fit. No other one of lower rank may pass it.
    reserved_for: Holder | None = None

    def lacks(self, needed: int) -> bool:
        """Whether fewer slots than these are free."""
        return 0 <= self.slots < self.used + needed


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFacts:
    """A number that may not be passed, and how many count towards it now."""

    name: str
    limit: int
    active: int

    @property
    def reached(self) -> bool:
        return self.active >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The Celery queue: live workers that listen, their pool children, and the task instances with them."""

    name: str
    workers: int
    places: int
    running: int
    queued: int
    #: Messages a queue may hold beyond the places of its workers.
    prefetch_window: int
    #: Queued task instances whose message was sent before this one's.
    ahead: int = 0

    @property
    def is_full(self) -> bool:
        return self.queued + self.running >= self.places + self.prefetch_window

    @property
    def is_busy(self) -> bool:
        """Whether no place of its workers is free."""
        return self.workers > 0 and self.running >= self.places


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The pool, the limits and the queue of a task instance, and their holders, now or at a moment of a past wait."""

    pool_name: str = "default_pool"
    pool_slots: int = 1
    #: None: there is no such pool.
    pool: PoolFacts | None = None
    limits: tuple[LimitFacts, ...] = ()
    queue: QueueFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of state. A state of None is undecided."""

    at: datetime
    from_state: str | None
    to_state: str | None
    actor: str | None
    reason: str | None
    try_number: int | None = None


# Now.


def in_line(facts: Contention) -> list[str]:
    """The reasons why a scheduled task instance is not queued."""
    sentences = [*_pool(facts), *_limits(facts.limits), *_queue_full(facts.queue), *no_worker(facts.queue)]
    return sentences or _ranked_before(facts.pool)


def busy(queue: QueueFacts | None) -> list[str]:
    """The sentence for a queue whose workers have no free place."""
    if queue is None or not queue.is_busy:
        return []
    if queue.places == 1:
        return [f"The only worker slot of queue {queue.name!r} is busy."]
    return [f"All {queue.places} worker slots of queue {queue.name!r} are busy."]


def no_worker(queue: QueueFacts | None) -> list[str]:
    """The sentence for a queue without workers."""
    if queue is None or queue.workers > 0:
        return []
    return [f"No live worker listens to queue {queue.name!r}: start one with `paceline worker -q {queue.name}`."]


def running_runs(limit: LimitFacts, backfill: int | None = None) -> str:
    """The running runs of a DAG or of its backfill, and their limit: the end of a sentence."""
    owner = "the DAG" if backfill is None else f"backfill {backfill}"
    return f"{owner} has {many(limit.active, 'running run', 'running runs')} and {limit.name} is {limit.limit}"


def _pool(facts: Contention) -> list[str]:
    pool, needs = facts.pool, facts.pool_slots
    if pool is None:
        return [f"There is no pool {facts.pool_name!r}: create it with `paceline pools set {facts.pool_name} SLOTS`."]
    needed, name, free = _slots(needs), f"pool {pool.name!r}", max(0, pool.slots - pool.used)
    if 0 <= pool.slots < needs:
        return [f"It needs {needed} and {name} has {pool.slots} in all, so it can never run: enlarge the pool."]
    if pool.lacks(needs):
        full = "is full" if free == 0 else f"has {free} free, and it needs {needs}"
        return [f"P{name[1:]} {full}: {pool.used} of {_slots(pool.slots)} {are(pool.slots)} in use{_holders(pool, ', held by ')}."]
    first = pool.reserved_for
    if first is None or pool.slots < 0:
        return []
    other = "A task of another DAG" if first.name is None else f"{first.name} of run {first.run_id!r}"
    return [
        f"{other} ranks higher, needs {_slots(first.slots)} of {name} and holds its place in line while {free} {are(free)} free "
        "(scheduler.pool_reservation)."
    ]


def _limits(limits: Iterable[LimitFacts]) -> list[str]:
    return [f"The limit {limit.name} is reached: {limit.active} of {limit.limit}." for limit in limits if limit.reached]


def _queue_full(queue: QueueFacts | None) -> list[str]:
    if queue is None or not queue.is_full:
        return []
    slots = many(queue.places, "worker slot", "worker slots")
    return [f"Queue {queue.name!r} is full: {queue.queued} queued and {queue.running} running for {slots}."]


def _ranked_before(pool: PoolFacts | None) -> list[str]:
    if pool is None or pool.ahead == 0:
        return []
    wait = many(pool.ahead, "task instance of higher rank waits", "task instances of higher rank wait")
    return [f"{wait} in pool {pool.name!r} before it."]


# In a history.


def sentence(step: Step, before: Step | None, contention: Contention | None = None, last_upstream: str | None = None) -> str:
    """A step in words, with the reason for the wait before it, whose `contention` matters for a queued or a running step."""
    waited_s = 0.0 if before is None else (step.at - before.at).total_seconds()
    by = f" by {step.actor}" if step.actor else ""
    because = f": {step.reason.rstrip('.')}" if step.reason else ""
    if step.to_state == "scheduled":
        if not because and last_upstream is not None:
            because = f", because {last_upstream} ended"
        return f"Scheduled{by}{because}."
    if step.to_state == "queued":
        return _capital(f"{_waited(waited_s, _for_slot(contention))}queued{by}.")
    if step.to_state == "running":
        number = f", try {step.try_number}" if step.try_number else ""
        return _capital(f"{_waited(waited_s, _in_queue(contention))}started{by}{number}.")
    if step.to_state is None:
        return f"Cleared{by}." if step.reason == "cleared" else f"Undecided again{by}{because}."
    after = f" after {span(waited_s)}" if before is not None and before.to_state == "running" else ""
    decided_here = (before is not None and before.actor == step.actor) or step.to_state == "upstream_failed"
    actor = "" if decided_here else by
    return f"{ENDED.get(step.to_state, step.to_state)}{after}{actor}{because}."


def of_run(step: Step, before: Step | None, runs: LimitFacts | None = None) -> str:
    """A step of a run in words. `runs` are the running runs during the wait before it."""
    by = f" by {step.actor}" if step.actor else ""
    because = f": {step.reason}" if step.reason else ""
    if before is None:
        return f"Created as {step.to_state}{by}{because}."
    waited_s = (step.at - before.at).total_seconds()
    if step.to_state == "running":
        cause = "to start"
        if runs is not None and runs.reached:
            cause = f"for {runs.name}: {runs.active} of {many(runs.limit, 'run was', 'runs were')} running"
        return _capital(f"{_waited(waited_s, cause)}started{by}.")
    if step.to_state == "queued":
        return f"Queued again{by}{because}."
    after = f" after {span(waited_s)}" if before.to_state == "running" else ""
    return f"Ended as {step.to_state}{after}{by}{because}."


def _waited(seconds: float, cause: str) -> str:
    return f"waited {span(seconds)} {cause}, then " if seconds >= SHORTEST_WAIT_S else ""


def _for_slot(facts: Contention | None) -> str:
    """The reason why a scheduled task instance waited."""
    if facts is None:
        return "in line"
    if facts.pool is None:
        return f"for pool {facts.pool_name!r}, which does not exist"
    if facts.pool.lacks(facts.pool_slots):
        pool = facts.pool
        return f"for pool {pool.name!r} with {pool.used} of {_slots(pool.slots)} in use{_holders(pool, ' by ')}"
    reached = next((limit for limit in facts.limits if limit.reached), None)
    if reached is not None:
        return f"for {reached.name}: {reached.active} of {reached.limit} {'was' if reached.limit == 1 else 'were'} active"
    return "in line" if facts.queue is None else _for_queue(facts.queue)


def _for_queue(queue: QueueFacts) -> str:
    if queue.workers == 0:
        return f"for queue {queue.name!r}, which no worker listened to"
    if queue.is_full:
        places = many(queue.places, "place", "places")
        return f"for queue {queue.name!r} with {queue.running} running and {queue.queued} queued for {places}"
    return "in line"


def _in_queue(facts: Contention | None) -> str:
    """The reason why a queued task instance waited."""
    if facts is None or facts.queue is None:
        return "in its queue"
    queue = facts.queue
    if queue.workers == 0:
        return f"in queue {queue.name!r}, which no worker listened to"
    taken = f", whose {many(queue.places, 'place was', 'places were')} taken" if queue.is_busy else ""
    return f"in queue {queue.name!r}{taken}"


# Names, numbers and times in words.


def _holders(pool: PoolFacts, before: str) -> str:
    """The holders of slots by name, after the words `before`; empty if there are none."""
    if not pool.holders:
        return ""
    named = pool.holders[:MOST_NAMES]
    shown, more = ", ".join(map(_holder, named)), pool.holder_count - len(named)
    return f"{before}{shown}{f' and {more} more' if more > 0 else ''}"


def _holder(holder: Holder) -> str:
    name = "a task of another DAG" if holder.name is None else f"{holder.name} of run {holder.run_id!r}"
    return f"{name}{f' ({_slots(holder.slots)})' if holder.slots > 1 else ''}"


def are(number: int) -> str:
    """The verb for this number of things."""
    return "is" if number == 1 else "are"


def _slots(number: int) -> str:
    return many(number, "slot", "slots")


def many(number: int, singular: str, plural: str) -> str:
    """A number with its noun."""
    return f"{number} {singular if number == 1 else plural}"


def span(seconds: float, *, tenths: bool = True) -> str:
    """Seconds in words, such as 0.4 s (with `tenths`), 40 s or 3 min."""
    if tenths and seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{round(max(seconds, 0.0))} s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
