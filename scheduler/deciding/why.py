"""Explains why a task instance waits: facts in, sentences out. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from scheduler.deciding.rules import Upstream, decide
from scheduler.deciding.situation import Counted, Holder, LimitFacts, PoolFacts, RunFacts, Situation
from scheduler.states import FINISHED, RUN_FINISHED, RunState
from scheduler.states import TaskState as S

#: Names in one sentence; the rest is counted.
MOST_NAMES = 8


def explain(facts: Situation) -> list[str]:
    """The reasons why it waits, one sentence for each; at least one sentence."""
    return [*_instances(facts), *_reasons(facts)]


def holders(pool: PoolFacts, before: str) -> str:
    """The holders of slots by name, after the words `before`; empty if there are none."""
    if not pool.holders:
        return ""
    named = pool.holders[:MOST_NAMES]
    shown, more = ", ".join(map(_holder, named)), pool.holder_count - len(named)
    return f"{before}{shown}{f' and {more} more' if more > 0 else ''}"


def backfill_paused(number: int) -> str:
    """The reason why no run of a paused backfill starts."""
    return f"Backfill {number} is paused: `paceline backfill resume {number}` lets its runs start."


def running_runs(limit: LimitFacts, backfill: int | None = None) -> str:
    """The running runs of a DAG or of its backfill, and their limit: the end of a sentence."""
    owner = "the DAG" if backfill is None else f"backfill {backfill}"
    return f"{owner} has {many(limit.active, 'running run', 'running runs')} and {limit.name} is {limit.limit}"


def many(number: int, singular: str, plural: str) -> str:
    """A number with its noun."""
    return f"{number} {singular if number == 1 else plural}"


def slots(number: int) -> str:
    """A number of slots."""
    return many(number, "slot", "slots")


def _reasons(facts: Situation) -> list[str]:
    if facts.state in WITH_WORKER:
        return WITH_WORKER[facts.state](facts)
    if facts.state in FINISHED or facts.run.state in RUN_FINISHED:
        return [_ended(facts)]
    reasons = _run_not_started(facts) if facts.run.state is RunState.QUEUED else [*_waits(facts), *_paused(facts.run)]
    return [*_undecidable(facts.run), *reasons, *_import_error(facts.run), *_no_scheduler(facts)] or [
        "Nothing blocks it: a scheduler moves it in its next pass, within about a second."
    ]


def _waits(facts: Situation) -> list[str]:
    """The reasons of a task instance that no worker has, in a running run."""
    if facts.state is S.NONE:
        return _undecided(facts)
    if facts.state is S.SCHEDULED:
        return _scheduled(facts)
    if facts.state is S.DEFERRED:
        return _deferred(facts)
    assert facts.due_at is not None
    if facts.state is S.UP_FOR_RETRY:
        cause = f" ({facts.reason})" if facts.reason else ""
        what = f"Try {facts.try_number} of {facts.max_tries + 1} failed{cause}; the next one"
    else:
        what = "It checks its condition again and again; the next check"
    return [f"{what} is due {_when(facts.due_at, facts.now)}."]


# Task instances that have ended, run, or are with a worker.


def _ended(facts: Situation) -> str:
    if facts.state not in FINISHED:
        return f"Its run has ended as {facts.run.state}, so nothing moves it any more; clear it to run it."
    if facts.state is S.REMOVED:
        why = facts.reason or "the run's version of the DAG has no such task"
        return f"It is removed{_because(why)}."
    tries = f" on try {facts.try_number} of {facts.max_tries + 1}" if facts.try_number else ""
    at = f" at {facts.ended_at.isoformat(timespec='seconds')}" if facts.ended_at else ""
    return f"It has ended as {facts.state}{tries}{at}{_because(facts.reason)}."


def _running(facts: Situation) -> list[str]:
    since = f" since {facts.started_at.isoformat(timespec='seconds')}" if facts.started_at else ""
    return [f"It runs{since}, try {facts.try_number} of {facts.max_tries + 1}; {_with_worker(facts)}"]


def _stopping(facts: Situation) -> list[str]:
    return [f"A stop was requested, and its state will be {facts.asked}; {_with_worker(facts)}"]


def _with_worker(facts: Situation) -> str:
    if facts.worker_alive:
        return f"it is with worker {facts.worker}."
    return f"its worker {facts.worker} sends no heartbeats, so a scheduler will recover it."


def _queued(facts: Situation) -> list[str]:
    assert facts.queued_at is not None
    ago = _span(facts.now - facts.queued_at)
    if facts.dispatched_at is None:
        sent = f"It was queued {ago} ago and its message is not sent yet: a scheduler sends it again if the broker was unavailable."
    else:
        place = many(facts.queue.ahead if facts.queue else 0, "message was", "messages were")
        name = facts.queue.name if facts.queue else "?"
        sent = f"No worker has taken its message from queue {name!r} yet: it was queued {ago} ago, and {place} queued before it."
    return [sent, *_busy(facts), *_no_worker(facts), *_no_scheduler(facts)]


def _deferred(facts: Situation) -> list[str]:
    if facts.deferral is None:
        return ["Its trigger has fired or timed out; a scheduler continues the task in its next pass."]
    until = f"; it times out {_when(facts.due_at, facts.now)}" if facts.due_at else ""
    sentences = [f"It waits for its trigger {facts.deferral.classpath}{until}."]
    if facts.deferral.waiters == 0:
        sentences.append("No waiter is alive to await triggers: start one with `paceline waiter`.")
    elif facts.deferral.waiter is None:
        sentences.append("No waiter has taken up its trigger yet.")
    return sentences


# The run and its DAG.


def _run_not_started(facts: Situation) -> list[str]:
    run = facts.run
    sentences = []
    if run.run_after > facts.now:
        sentences.append(f"Its run may start {_when(run.run_after, facts.now)}.")
    if run.backfill is not None:
        number, limit = run.backfill.id, run.backfill.limit
        if run.backfill.is_paused:
            sentences.append(backfill_paused(number))
        if limit.reached:
            sentences.append(f"Its run has not started: {running_runs(limit, number)}.{_runs_ahead(run)}")
    elif run.running_runs is not None and run.running_runs.reached:
        sentences.append(f"Its run has not started: {running_runs(run.running_runs)}.{_runs_ahead(run)}")
    return [*sentences, *_paused(run)] or ["Its run is queued and starts in a scheduler's next pass, within about a second."]


def _runs_ahead(run: RunFacts) -> str:
    return f" {many(run.runs_ahead, 'queued run comes', 'queued runs come')} before it." if run.runs_ahead else ""


def _paused(run: RunFacts) -> list[str]:
    return [f"DAG {run.dag_id!r} is paused: `paceline dags unpause {run.dag_id}` resumes it."] if run.is_paused else []


def _undecidable(run: RunFacts) -> list[str]:
    if run.scheduling_error is None:
        return []
    error = run.scheduling_error.rstrip(".")
    return [f"The schedulers cannot decide its run, and try again about every second: {error}."]


def _import_error(run: RunFacts) -> list[str]:
    if run.import_error is None:
        return []
    line = f", line {run.import_error_line}" if run.import_error_line else ""
    error = run.import_error.rstrip(".")
    return [f"The DAG's file {run.file}{line} has an import error, so the last version that loaded is used: {error}."]


def _no_scheduler(facts: Situation) -> list[str]:
    return [] if facts.schedulers else ["No scheduler is alive: start one with `paceline scheduler`."]


def _instances(facts: Situation) -> list[str]:
    if not facts.instances:
        return []
    number = sum(facts.instances.values())
    instances = many(number, "instance", "instances")
    return [f"It has {instances} ({_mix(facts.instances)}); this is about index {facts.map_index}."]


# Undecided: upstream tasks, setups, the run before, an expansion to come.


def _undecided(facts: Situation) -> list[str]:
    if open_tasks := _open(facts.expands_over or ()):
        return [f"How many instances it becomes is not known yet: it waits for the result of {_names(open_tasks)}."]
    if facts.loop_gate is not None and _open([facts.loop_gate]):
        return [_iteration(facts, facts.loop_gate)]
    return [*_upstream(facts), *_setups(facts), *_scope(facts), *_past(facts)]


def _iteration(facts: Situation, gate: Counted) -> str:
    """For a task in a loop. Iterations start at 1, and map indexes at 0."""
    before = facts.map_index
    name = f"{gate.task_id}[{before - 1}] ({_of_states(gate.states, mapped=False)})"
    return f"It is in iteration {before + 1} of its loop and waits for {name}, which ends iteration {before}."


def _upstream(facts: Situation) -> list[str]:
    counts: Counter[S] = Counter()
    for task in facts.upstream:
        counts.update(task.states)
    if decide(facts.trigger_rule, Upstream.counted(counts)).state is not None:
        return []
    open_tasks = _open(facts.upstream)
    if not open_tasks:
        return [f"Its trigger rule {facts.trigger_rule} can never be met: upstream, {_names(facts.upstream)}."]
    return [f"It waits for upstream {_tasks(open_tasks)} {_names(open_tasks)}; its trigger rule is {facts.trigger_rule}."]


def _setups(facts: Situation) -> list[str]:
    setups = _open_indirect(facts, facts.setups)
    return [f"It waits for its setup {_tasks(setups)} {_names(setups)}."] if setups else []


def _scope(facts: Situation) -> list[str]:
    scope = _open_indirect(facts, facts.scope)
    return [f"It is a teardown and waits for {_names(scope)} between its setup and itself."] if scope else []


def _open_indirect(facts: Situation, tasks: Iterable[Counted]) -> list[Counted]:
    direct = {task.task_id for task in facts.upstream}
    return _open(task for task in tasks if task.task_id not in direct)


def _past(facts: Situation) -> list[str]:
    return [f"It waits for the run before: {facts.past}."] if facts.past else []


# Scheduled: its pool, limits, its queue, others before it in line.


def _scheduled(facts: Situation) -> list[str]:
    return [*_pool(facts), *_limits(facts.limits), *_queue_full(facts), *_no_worker(facts)] or _in_line(facts.pool)


def _pool(facts: Situation) -> list[str]:
    pool, needs = facts.pool, facts.pool_slots
    if pool is None:
        return [f"There is no pool {facts.pool_name!r}: make it with `paceline pools set {facts.pool_name} SLOTS`."]
    if pool.slots < 0:
        return []
    needed, name = slots(needs), f"pool {pool.name!r}"
    if needs > pool.slots:
        return [f"It needs {needed} and {name} has {pool.slots} in all, so it can never run: enlarge the pool."]
    free = max(0, pool.slots - pool.used)
    if needs > free:
        full = "is full" if free == 0 else f"has {free} free, and it needs {needs}"
        return [f"P{name[1:]} {full}: {pool.used} of {slots(pool.slots)} are in use{holders(pool, ', held by ')}."]
    return _reserved(pool, free)


def _reserved(pool: PoolFacts, free: int) -> list[str]:
    first = pool.reserved_for
    if first is None:
        return []
    name = "A task of another DAG" if first.name is None else f"{first.name} of run {first.run_id!r}"
    return [
        f"{name} ranks higher, needs {slots(first.slots)} of pool {pool.name!r} and holds "
        f"its place in line while {free} are free (scheduler.pool_reservation)."
    ]


def _holder(holder: Holder) -> str:
    name = "a task of another DAG" if holder.name is None else f"{holder.name} of run {holder.run_id!r}"
    return f"{name}{f' ({slots(holder.slots)})' if holder.slots > 1 else ''}"


def _limits(limits: Iterable[LimitFacts]) -> list[str]:
    return [f"The limit {limit.name} is reached: {limit.active} of {limit.limit}." for limit in limits if limit.reached]


def _queue_full(facts: Situation) -> list[str]:
    queue = facts.queue
    if queue is None or queue.queued + queue.running < queue.places + queue.headroom:
        return []
    return [
        f"Queue {queue.name!r} holds all that its workers can take soon: {queue.queued} queued and {queue.running} running "
        f"for {many(queue.places, 'place', 'places')}."
    ]


def _busy(facts: Situation) -> list[str]:
    queue = facts.queue
    if queue is None or queue.workers == 0 or queue.running < queue.places:
        return []
    places = "The only place" if queue.places == 1 else f"All {queue.places} places"
    return [f"{places} of the workers on queue {queue.name!r} {'is' if queue.places == 1 else 'are'} taken."]


def _no_worker(facts: Situation) -> list[str]:
    if facts.queue is None or facts.queue.workers > 0:
        return []
    name = facts.queue.name
    return [f"No live worker listens to queue {name!r}: start one with `paceline worker -q {name}`."]


def _in_line(pool: PoolFacts | None) -> list[str]:
    if pool is None or pool.ahead == 0:
        return []
    wait = many(pool.ahead, "task instance of higher rank waits", "task instances of higher rank wait")
    return [f"{wait} in pool {pool.name!r} before it."]


# Names, states, numbers and moments in words.


def _open(tasks: Iterable[Counted]) -> list[Counted]:
    return [task for task in tasks if not FINISHED.issuperset(task.states)]


def _tasks(tasks: Sequence[Counted]) -> str:
    return "task" if len(tasks) == 1 else "tasks"


def _names(tasks: Sequence[Counted]) -> str:
    shown = ", ".join(f"{task.task_id} ({_of_states(task.states, mapped=task.mapped)})" for task in tasks[:MOST_NAMES])
    return shown if len(tasks) <= MOST_NAMES else f"{shown} and {len(tasks) - MOST_NAMES} more"


def _of_states(states: Mapping[S, int], *, mapped: bool) -> str:
    if not mapped:
        return next(iter(states)).value if states else S.NONE.value
    ended = sum(count for state, count in states.items() if state in FINISHED)
    return f"{ended} of {many(sum(states.values()), 'instance', 'instances')} ended: {_mix(states)}"


def _mix(states: Mapping[S, int]) -> str:
    return ", ".join(f"{states[state]} {state}" for state in S if states.get(state))


def _because(reason: str | None) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def _when(moment: datetime, now: datetime) -> str:
    text = moment.isoformat(timespec="seconds")
    return f"at {text} (in {_span(moment - now)})" if moment > now else f"since {text}"


def _span(length: timedelta) -> str:
    seconds = max(0, round(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


WITH_WORKER = {S.QUEUED: _queued, S.RUNNING: _running, S.SHUTDOWN: _stopping}
