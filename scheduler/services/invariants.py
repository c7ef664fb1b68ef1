"""invariants: find what contradicts itself in the database and the broker, and put it right by the ordinary transitions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import redis
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher
from scheduler.services.backfill import Backfill
from scheduler.services.promote import Promote, facts_of
from scheduler.services.queue import send
from scheduler.services.rescue import dispatch_ids_in_broker
from scheduler.settings import Settings
from scheduler.states import FINISHED, RUN_FINISHED, TaskState
from scheduler.store.dags import files, schedules
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transaction
from scheduler.store.runs import instances, selection
from scheduler.store.upkeep import invariants, notices, requeue
from scheduler.store.upkeep.invariants import Broken, Limits, RunningRun
from scheduler.store.worker import deferrals
from scheduler.store.worker.deferrals import Fired

#: Seconds in which schedulers put right what ordinary failures leave behind.
GRACE_S = 15.0
MOST_MESSAGES = 100_000
UNDECIDED = "undecided although it can be decided"
UNCLOSED = "run that can only end"
UNREADABLE = "run that cannot be decided"
UNSENT = "queued without a message"
TRIGGER_LOST = {"error": "The trigger of this task was lost; it is told so that it can decide what to do."}


@dataclass(frozen=True, slots=True)
class Tools:
    """What finding and repairing take hold of."""

    engine: Engine
    settings: Settings
    broker: redis.Redis
    publisher: Publisher
    grace_s: float = GRACE_S
    versions: Versions = field(default_factory=Versions)


def find(tools: Tools) -> list[Broken]:
    """All that breaks an invariant and has for longer than the grace. redis.RedisError if the broker does not answer."""
    found = invariants.find(tools.engine, _limits(tools))
    found += _unsent(tools)
    for run in _running(tools.engine, tools.grace_s):
        found += _of_run(tools.engine, run, tools)
    return found


def _limits(tools: Tools) -> Limits:
    return Limits(
        grace_s=tools.grace_s,
        worker_timeout_s=tools.settings.worker.heartbeat_timeout,
        waiter_timeout_s=tools.settings.waiter.heartbeat_timeout,
        parallelism=tools.settings.core.parallelism,
    )


def repair(tools: Tools, broken: list[Broken]) -> list[Broken]:
    """Put right what can be; what still breaks an invariant after it."""
    for one in broken:
        if one.name in REPAIRS:
            REPAIRS[one.name](tools, one)
    return find(tools)


def _unsent(tools: Tools) -> list[Broken]:
    suspects = _queued(tools.engine, max(tools.grace_s, tools.settings.scheduler.task_queued_timeout))
    present = dispatch_ids_in_broker(tools.broker, {one.queue for one in suspects})
    missing = [one for one in suspects if one.dispatch_id not in present]
    return [
        Broken(
            name=UNSENT, dag_id=one.dag_id, run_id=one.run_id, task_id=one.task_id, map_index=one.map_index, since=None,
            what=f"queued, and the broker has no message of it in queue {one.queue}", ti_id=one.ti_id, dispatch_id=one.dispatch_id,
        )
        for one in missing
    ]  # fmt: skip


@transaction
def _queued(connection: Connection, seconds: float) -> list[Message]:
    return instances.queued_longer_than(connection, seconds, limit=MOST_MESSAGES)


@transaction
def _running(connection: Connection, grace_s: float) -> list[RunningRun]:
    return invariants.running_runs(connection, grace_s=grace_s)


@transaction
def _of_run(connection: Connection, run: RunningRun, tools: Tools) -> list[Broken]:
    """What promote would do with a run, if that could have been done for longer than the grace."""
    try:
        return list(_undone(connection, run, tools))
    except DBAPIError:
        raise
    except Exception as error:
        return [_broken(run, UNREADABLE, f"it cannot be decided: {type(error).__name__}: {error}", run.started_at)]


def _undone(connection: Connection, run: RunningRun, tools: Tools) -> Iterator[Broken]:
    dag = tools.versions.dag(connection, run.version_id)
    states = instances.states_of(connection, [run.id]).get(run.id, {})
    known = facts_of(connection, dag, run.id)
    ended = invariants.last_ended(connection, run.id)
    late = schedules.clock(connection) - timedelta(seconds=tools.grace_s)
    evaluation = evaluate(dag, states, known)
    for no, index, becomes in [
        *((one.task_no, one.map_index, f"it is to be {one.state}: {one.reason}") for one in evaluation.decisions),
        *((no, -1, "it is to be expanded: all it maps over has ended") for no in evaluation.expand),
    ]:
        since = max((ended[above] for above in dag.upstream[no] if above in ended), default=run.started_at)
        if since < late:
            yield _broken(run, UNDECIDED, f"undecided, and {becomes}", since, task_id=dag.tasks[no].task_id, map_index=index)
    since = max(ended.values(), default=run.started_at)
    open_states = {state for of_task in states.values() for state in of_task.values()} - FINISHED
    if since < late and open_states <= {TaskState.NONE} and not evaluation.decisions and not evaluation.expand:
        ends = run_state(dag, states, waiting_for_past=any(no in known.past for no, _ in evaluation.waiting))
        if ends is not None:
            how = "nothing in it can move any more" if open_states else "all its task instances have ended"
            yield _broken(run, UNCLOSED, f"running although {how}: it is to be {ends}", since)


def _broken(
    run: RunningRun, name: str, what: str, since: datetime, *, task_id: str | None = None, map_index: int | None = None
) -> Broken:
    return Broken(
        name=name, dag_id=run.dag_id, run_id=run.run_id, task_id=task_id, map_index=map_index, what=what, since=since,
        dag_run_id=run.id,
    )  # fmt: skip


@transaction
def _lose(connection: Connection, one: Broken) -> None:
    instances.lose(connection, ti_id=one.ti_id, dispatch_id=one.dispatch_id, reason=f"worker {one.key} is dead", at_once=True)


@transaction
def _end(connection: Connection, one: Broken) -> None:
    assert one.dag_run_id is not None
    run = selection.hold_run(connection, one.dag_run_id)
    if run is not None and run.state in RUN_FINISHED:
        instances.end_rest(connection, run.id, running_becomes="skipped", reason="its run had ended")


@transaction
def _due(connection: Connection) -> None:
    instances.due(connection, limit=MOST_MESSAGES)


def _send(tools: Tools, one: Broken) -> None:
    waiting = _queued(tools.engine, 0.0)
    send(tools.engine, tools.publisher, [message for message in waiting if message.dispatch_id == one.dispatch_id], step="rescue")


def _fire(tools: Tools, one: Broken) -> None:
    assert one.ti_id is not None and one.dispatch_id is not None
    deferrals.fire(tools.engine, [Fired(ti_id=one.ti_id, dispatch_id=one.dispatch_id, outcome=TRIGGER_LOST)])


def _forget_trigger(tools: Tools, one: Broken) -> None:
    assert one.ti_id is not None and one.dispatch_id is not None
    deferrals.still_awaited(tools.engine, one.key or "", [(one.ti_id, one.dispatch_id)])


def _promote(tools: Tools, one: Broken) -> None:
    assert one.dag_run_id is not None
    Promote(tools.engine, tools.settings, tools.versions).run_once(_now(tools.engine), [one.dag_run_id])


def _backfill(tools: Tools, _: Broken) -> None:
    Backfill(tools.engine, tools.settings, tools.versions).run_once(_now(tools.engine))


def _release_notice(tools: Tools, one: Broken) -> None:
    assert one.key is not None and one.dispatch_id is not None
    notices.release(tools.engine, one.key, [int(one.dispatch_id)])


@transaction
def _requeue(connection: Connection, one: Broken, limits: Limits) -> None:
    requeue.requeue(connection, one, limits)


@transaction
def _now(connection: Connection) -> datetime:
    return schedules.clock(connection)


#: By the name of the invariant. Of what is over a limit that which is queued is taken back; what runs is left to end, as are runs
#: over max_active_runs and workers over their concurrency.
REPAIRS: Mapping[str, Callable[[Tools, Broken], object]] = {
    "dead worker": lambda tools, one: _lose(tools.engine, one),
    "open in a finished run": lambda tools, one: _end(tools.engine, one),
    "overdue": lambda tools, _: _due(tools.engine),
    "deferred without a trigger": _fire,
    "trigger without a deferred task": _forget_trigger,
    "trigger of a dead waiter": lambda tools, one: deferrals.leave(tools.engine, one.key or ""),
    "stale notice": _release_notice,
    "stale DAG file": lambda tools, one: files.release(tools.engine, claimed_by=one.key or ""),
    "backfill without an end": _backfill,
    UNSENT: _send,
    UNDECIDED: _promote,
    UNCLOSED: _promote,
    **dict.fromkeys(requeue.LIMITS, lambda tools, one: _requeue(tools.engine, one, _limits(tools))),
}
