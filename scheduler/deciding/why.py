"""Explains why a task instance waits: facts in, sentences out. Pure. store/read/why reads the facts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from paceline.states import FINISHED, RUN_FINISHED, RunState
from paceline.states import TaskState as S
from scheduler.deciding.rules import Upstream, decide
from scheduler.deciding.waits import MOST_NAMES, Contention, LimitFacts, busy, in_line, many, no_worker, running_runs, span


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A task that is waited for, with the number of its instances in each state."""

    task_id: str
    states: Mapping[S, int]
    #: More than one instance, or the instance of a mapped task.
    mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillFacts:
    """The backfill that created the run."""

    id: int
    is_paused: bool
    limit: LimitFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run, its DAG, and the conditions of its start."""

    dag_id: str
    run_id: str
    state: RunState
    run_after: datetime
    is_paused: bool = False
    #: Of the DAG's newest version.
    running_runs: LimitFacts | None = None
    #: Queued runs of the same DAG that start before this one.
    runs_ahead: int = 0
    backfill: BackfillFacts | None = None
    file: str = ""
    #: Why the schedulers cannot decide the run.
    scheduling_error: str | None = None
    #: The import error of the DAG's file.
    import_error: str | None = None
    import_error_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralFacts:
    """The trigger a deferred task instance waits for."""

    classpath: str
    #: The waiter that awaits it, None if none has taken it.
    waiter: str | None = None
    waiters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation(Contention):
    """Everything that can hold a task instance back. The defaults hold nothing back."""

    now: datetime
    run: RunFacts
    task_id: str
    map_index: int
    state: S
    try_number: int = 0
    max_tries: int = 0
    #: Why it is in its state, as the change to it recorded.
    reason: str | None = None
    due_at: datetime | None = None
    queued_at: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    worker_alive: bool = True
    #: The state that follows a shutdown.
    requested_state: str | None = None
    schedulers: int = 1
    trigger_rule: str = "all_success"
    #: Direct upstream tasks; of a task in a mapped group, the instance of the same index.
    upstream: tuple[Counted, ...] = ()
    setups: tuple[Counted, ...] = ()
    #: Of a teardown: the tasks between its setups and itself.
    scope: tuple[Counted, ...] = ()
    #: Mapped and not expanded yet: the tasks whose results give the number of instances.
    expands_over: tuple[Counted, ...] | None = None
    #: Of a task in a loop, after the first iteration: the gate that ends the iteration before.
    loop_gate: Counted | None = None
    #: The task instances that it waits for in the previous run, see rules.past_waits.
    past: str | None = None
    deferral: DeferralFacts | None = None
    #: Its instances by state, if the question is about the whole task.
    instances: Mapping[S, int] = field(default_factory=dict)


def explain(facts: Situation) -> list[str]:
    """The reasons why it waits, one sentence for each; at least one sentence."""
    return [*_instances(facts), *_reasons(facts)]


def backfill_paused(number: int) -> str:
    """The reason why no run of a paused backfill starts."""
    return f"Backfill {number} is paused: `paceline backfills resume {number}` lets its runs start."


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
        return in_line(facts)
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
    running = f"has been running since {facts.started_at.isoformat(timespec='seconds')}" if facts.started_at else "is running"
    worker = f", on worker {facts.worker}." if facts.worker_alive else f"; {_with_worker(facts)}"
    return [f"It {running}, try {facts.try_number} of {facts.max_tries + 1}{worker}"]


def _stopping(facts: Situation) -> list[str]:
    return [f"A stop was requested, and its state will be {facts.requested_state}; {_with_worker(facts)}"]


def _with_worker(facts: Situation) -> str:
    if facts.worker_alive:
        return f"it is with worker {facts.worker}."
    return f"its worker {facts.worker} sends no heartbeats, so a scheduler will recover it."


def _queued(facts: Situation) -> list[str]:
    assert facts.queued_at is not None
    ago = span((facts.now - facts.queued_at).total_seconds(), tenths=False)
    if facts.dispatched_at is None:
        sent = f"It was queued {ago} ago and no worker has taken it: if its message was lost, a scheduler sends it again."
    else:
        place = many(facts.queue.ahead if facts.queue else 0, "message was", "messages were")
        name = facts.queue.name if facts.queue else "?"
        sent = f"No worker has taken its message from queue {name!r} yet: it was queued {ago} ago, and {place} queued before it."
    return [sent, *busy(facts.queue), *no_worker(facts.queue), *_no_scheduler(facts)]


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


# Undecided: upstream tasks, setups, the previous run, an expansion to come.


def _undecided(facts: Situation) -> list[str]:
    if open_tasks := _open(facts.expands_over or ()):
        return [f"It is not expanded yet: it waits for the result of {_names(open_tasks)}."]
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
    return [f"It waits for the previous run: {facts.past}."] if facts.past else []


# Names, states and moments in words.


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
    return f"at {text} (in {span((moment - now).total_seconds(), tenths=False)})" if moment > now else f"since {text}"


WITH_WORKER = {S.QUEUED: _queued, S.RUNNING: _running, S.SHUTDOWN: _stopping}
