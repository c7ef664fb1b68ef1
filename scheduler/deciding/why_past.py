"""Explains how long a task instance or a run was in each state, and why: facts in, sentences out. Pure."""

from dataclasses import dataclass
from datetime import datetime

from scheduler.deciding.situation import LimitFacts, PoolFacts
from scheduler.deciding.why import holders, many, slots

#: A shorter wait, in seconds, has no cause worth a sentence.
SHORTEST_WAIT_S = 1.0
ENDED = {
    "success": "Succeeded", "failed": "Failed", "up_for_retry": "Failed", "skipped": "Skipped", "removed": "Removed",
    "upstream_failed": "Not run, because an upstream task failed",
    "up_for_reschedule": "Checked its condition, and will check again",
    "deferred": "Deferred to its trigger", "shutdown": "Stop requested",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of state. A state of None is undecided."""

    at: datetime
    from_state: str | None
    to_state: str | None
    actor: str | None
    reason: str | None
    try_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """The holders of the limits of a task instance at a moment of its wait. The limits themselves are those of now."""

    pool_name: str
    pool: PoolFacts | None
    pool_slots: int
    limits: tuple[LimitFacts, ...]
    queue: str
    #: Live workers of the queue at that moment, with their places.
    workers: int
    places: int
    prefetch: int
    queued: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContention:
    """The obstacles of a queued run at a moment of its wait."""

    run_after: datetime
    running: LimitFacts


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


def of_run(step: Step, before: Step | None, contention: RunContention | None = None) -> str:
    """A step of a run in words."""
    by = f" by {step.actor}" if step.actor else ""
    because = f": {step.reason}" if step.reason else ""
    if before is None:
        return f"Created as {step.to_state}{by}{because}."
    waited_s = (step.at - before.at).total_seconds()
    if step.to_state == "running":
        return _capital(f"{_waited(waited_s, _for_run(contention))}started{by}.")
    if step.to_state == "queued":
        return f"Queued again{by}{because}."
    after = f" after {span(waited_s)}" if before.to_state == "running" else ""
    return f"Ended as {step.to_state}{after}{by}{because}."


def span(seconds: float) -> str:
    """Seconds in words, such as 0.4 s, 40 s or 3 min."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} s"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _waited(seconds: float, what: str) -> str:
    return f"waited {span(seconds)} {what}, then " if seconds >= SHORTEST_WAIT_S else ""


def _for_slot(contention: Contention | None) -> str:
    """The reason why a scheduled task instance waited."""
    if contention is None:
        return "in line"
    pool = contention.pool
    if pool is None:
        return f"for pool {contention.pool_name!r}, which does not exist"
    if pool.slots >= 0 and contention.pool_slots > pool.slots - pool.used:
        return f"for pool {pool.name!r} with {pool.used} of {slots(pool.slots)} in use{holders(pool, ' by ')}"
    reached = next((limit for limit in contention.limits if limit.reached), None)
    if reached is not None:
        return f"for {reached.name}: {reached.active} of {reached.limit} were active"
    return _for_queue(contention)


def _for_queue(contention: Contention) -> str:
    if contention.workers == 0:
        return f"for queue {contention.queue!r}, which no worker listened to"
    if contention.queued + contention.running >= contention.places + contention.prefetch:
        places = many(contention.places, "place", "places")
        return f"for queue {contention.queue!r} with {contention.running} running and {contention.queued} queued for {places}"
    return "in line"


def _in_queue(contention: Contention | None) -> str:
    """The reason why a queued task instance waited."""
    if contention is None:
        return "in its queue"
    if contention.workers == 0:
        return f"in queue {contention.queue!r}, which no worker listened to"
    if contention.running >= contention.places:
        return f"in queue {contention.queue!r}, whose {many(contention.places, 'place was', 'places were')} taken"
    return f"in queue {contention.queue!r}"


def _for_run(contention: RunContention | None) -> str:
    if contention is not None and contention.running.reached:
        return f"for {contention.running.name}: {contention.running.active} of {contention.running.limit} runs were running"
    return "to start"
