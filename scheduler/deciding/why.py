"""Why a task instance is not further than it is: facts in, sentences out. Pure."""

from scheduler.deciding import why_scheduled, why_undecided, wording
from scheduler.deciding.situation import Limit, RunFacts, Situation
from scheduler.states import FINISHED, RUN_FINISHED, RunState
from scheduler.states import TaskState as S


def explain(facts: Situation) -> list[str]:
    """What it waits for, one sentence for each reason; at least one sentence."""
    return [*_instances(facts), *_reasons(facts)]


def _reasons(facts: Situation) -> list[str]:
    if facts.state in WITH_WORKER:
        return WITH_WORKER[facts.state](facts)
    if facts.state in FINISHED or facts.run.state in RUN_FINISHED:
        return [_ended(facts)]
    reasons = _run_not_started(facts) if facts.run.state is RunState.QUEUED else [*_waits(facts), *_paused(facts.run)]
    return [*_undecidable(facts.run), *reasons, *_import_error(facts.run), *_no_scheduler(facts)] or [
        "Nothing holds it back: a scheduler moves it at its next look, within about a second."
    ]


def _waits(facts: Situation) -> list[str]:
    """Of one that is with no worker, in a running run."""
    if facts.state is S.NONE:
        return why_undecided.undecided(facts)
    if facts.state is S.SCHEDULED:
        return why_scheduled.scheduled(facts)
    if facts.state is S.DEFERRED:
        return _deferred(facts)
    assert facts.due_at is not None
    if facts.state is S.UP_FOR_RETRY:
        cause = f" ({facts.reason})" if facts.reason else ""
        what = f"Try {facts.try_number} of {facts.max_tries + 1} failed{cause}; the next one"
    else:
        what = "It looks again for what it waits for; the next look"
    return [f"{what} is due {wording.when(facts.due_at, facts.now)}."]


# What has ended, runs or is with a worker.


def _ended(facts: Situation) -> str:
    if facts.state not in FINISHED:
        return f"Its run has ended as {facts.run.state}, so nothing moves it any more; clear it to run it."
    if facts.state is S.REMOVED:
        return f"It is removed: the run's version of the DAG has no such task{wording.because(facts.reason)}."
    tries = f" on try {facts.try_number} of {facts.max_tries + 1}" if facts.try_number else ""
    at = f" {facts.ended_at.isoformat(timespec='seconds')}" if facts.ended_at else ""
    return f"It has ended as {facts.state}{tries}{at}{wording.because(facts.reason)}."


def _running(facts: Situation) -> list[str]:
    since = f" since {facts.started_at.isoformat(timespec='seconds')}" if facts.started_at else ""
    return [f"It runs{since}, try {facts.try_number} of {facts.max_tries + 1}; {_with_worker(facts)}"]


def _stopping(facts: Situation) -> list[str]:
    return [f"It was asked to stop and become {facts.asked}; {_with_worker(facts)}"]


def _with_worker(facts: Situation) -> str:
    if facts.worker_alive:
        return f"it is with worker {facts.worker}."
    return f"its worker {facts.worker} gives no sign of life, so a scheduler will take it back."


def _queued(facts: Situation) -> list[str]:
    assert facts.queued_at is not None
    ago = wording.span(facts.now - facts.queued_at)
    if facts.dispatched_at is None:
        sent = f"It was queued {ago} ago and its message is not sent yet: a scheduler sends it again if the broker was away."
    else:
        place = wording.many(facts.queue.ahead if facts.queue else 0, "message was", "messages were")
        name = facts.queue.name if facts.queue else "?"
        sent = f"No worker has taken its message from queue {name!r} yet: it was queued {ago} ago, and {place} queued before it."
    return [sent, *why_scheduled.busy(facts), *why_scheduled.no_worker(facts), *_no_scheduler(facts)]


def _deferred(facts: Situation) -> list[str]:
    if facts.deferral is None:
        return ["Its trigger has fired or was given up; a scheduler takes it on at its next look."]
    until = f"; it is given up {wording.when(facts.due_at, facts.now)}" if facts.due_at else ""
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
        sentences.append(f"Its run may start {wording.when(run.run_after, facts.now)}.")
    if run.backfill is not None:
        number, limit = run.backfill.id, run.backfill.limit
        if run.backfill.is_paused:
            sentences.append(f"Backfill {number} is paused: `paceline backfill resume {number}` lets its runs start.")
        if limit.reached:
            sentences.append(f"Its run has not started: backfill {number} has {_runs(limit)}.{_runs_ahead(run)}")
    elif run.running_runs is not None and run.running_runs.reached:
        sentences.append(f"Its run has not started: the DAG has {_runs(run.running_runs)}.{_runs_ahead(run)}")
    return [*sentences, *_paused(run)] or ["Its run is queued and starts at a scheduler's next look, within about a second."]


def _runs(limit: Limit) -> str:
    return f"{wording.many(limit.active, 'running run', 'running runs')} and {limit.name} is {limit.limit}"


def _runs_ahead(run: RunFacts) -> str:
    return f" {wording.many(run.runs_ahead, 'queued run comes', 'queued runs come')} before it." if run.runs_ahead else ""


def _paused(run: RunFacts) -> list[str]:
    return [f"DAG {run.dag_id!r} is paused: `paceline dags unpause {run.dag_id}` lets it go on."] if run.is_paused else []


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
    instances = wording.many(number, "instance", "instances")
    return [f"It has {instances} ({wording.mix(facts.instances)}); this is about index {facts.map_index}."]


WITH_WORKER = {S.QUEUED: _queued, S.RUNNING: _running, S.SHUTDOWN: _stopping}
