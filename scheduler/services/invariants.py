"""Invariants: finds rows of the database and messages of the broker that contradict each other. It changes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import redis
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from paceline.states import FINISHED, TaskState
from scheduler.deciding.evaluate import evaluate, run_state
from scheduler.messaging.publisher import dispatch_ids_in_broker
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import clock
from scheduler.store.db.database import transact
from scheduler.store.runs import instances, run_facts
from scheduler.store.upkeep import invariants
from scheduler.store.upkeep.invariants import Bounds, Broken, RunningRun

#: Seconds in which schedulers repair the effects of ordinary failures.
GRACE_S = 15.0
MOST_MESSAGES = 100_000
UNDECIDED = "undecided although it can be decided"
UNCLOSED = "run that can only end"
UNREADABLE = "run that cannot be decided"
UNSENT = "queued without a message"


@dataclass(frozen=True, slots=True)
class Tools:
    """The sources of the check, and its grace period."""

    engine: Engine
    settings: Settings
    broker: redis.Redis
    grace_s: float = GRACE_S
    versions: Versions = field(default_factory=Versions)


def find(tools: Tools) -> list[Broken]:
    """Everything that has broken an invariant for longer than the grace period. redis.RedisError if Redis does not answer."""
    bounds = Bounds(
        grace_s=tools.grace_s,
        worker_timeout_s=tools.settings.worker.heartbeat_timeout,
        waiter_timeout_s=tools.settings.waiter.heartbeat_timeout,
        parallelism=tools.settings.core.parallelism,
    )
    broken = transact(tools.engine, invariants.find, bounds)
    broken += _unsent(tools)
    for run in transact(tools.engine, invariants.running_runs, grace_s=tools.grace_s):
        broken += transact(tools.engine, _of_run, run, tools)
    return broken


def _unsent(tools: Tools) -> list[Broken]:
    age_s = max(tools.grace_s, tools.settings.scheduler.task_queued_timeout)
    suspects = transact(tools.engine, instances.queued_longer_than, age_s, limit=MOST_MESSAGES)
    present = dispatch_ids_in_broker(tools.broker, {message.queue for message in suspects})
    missing = [message for message in suspects if message.dispatch_id not in present]
    return [
        Broken(
            name=UNSENT, dag_id=message.dag_id, run_id=message.run_id, task_id=message.task_id, map_index=message.map_index,
            since=None, what=f"queued, and the broker has no message for it in queue {message.queue}",
        )
        for message in missing
    ]  # fmt: skip


def _of_run(connection: Connection, run: RunningRun, tools: Tools) -> list[Broken]:
    """The decisions that promote has left undone in a run for longer than the grace period."""
    try:
        return list(_undone(connection, run, tools))
    except DBAPIError:
        raise
    except Exception as error:
        return [_broken(run, UNREADABLE, f"it cannot be decided: {type(error).__name__}: {error}", run.started_at)]


def _undone(connection: Connection, run: RunningRun, tools: Tools) -> Iterator[Broken]:
    dag = tools.versions.dag(connection, run.version_id)
    states = instances.states_of(connection, [run.id]).get(run.id, {})
    known = run_facts.read(connection, dag, run.id)
    ended = invariants.last_ended(connection, run.id)
    late = clock.now(connection) - timedelta(seconds=tools.grace_s)
    evaluation = evaluate(dag, states, known)
    for no, index, becomes in [
        *((each.task_no, each.map_index, f"it should be {each.state}: {each.reason}") for each in evaluation.decisions),
        *((no, -1, "it should be expanded: every task that it is mapped over has ended") for no in evaluation.expand),
    ]:
        since = max((ended[above] for above in dag.upstream[no] if above in ended), default=run.started_at)
        if since < late:
            yield _broken(run, UNDECIDED, f"undecided, and {becomes}", since, task_id=dag.tasks[no].task_id, map_index=index)
    since = max(ended.values(), default=run.started_at)
    open_states = {state for of_task in states.values() for state in of_task.values()} - FINISHED
    if since < late and open_states <= {TaskState.NONE} and not evaluation.decisions and not evaluation.expand:
        ends = run_state(dag, states, waiting_for_past=evaluation.waits_for_past(known))
        if ends is not None:
            how = "none of its task instances can change any more" if open_states else "all its task instances have ended"
            yield _broken(run, UNCLOSED, f"running although {how}: it should be {ends}", since)


def _broken(
    run: RunningRun, name: str, what: str, since: datetime, *, task_id: str | None = None, map_index: int | None = None
) -> Broken:
    return Broken(
        name=name, dag_id=run.dag_id, run_id=run.run_id, task_id=task_id, map_index=map_index, what=what, since=since
    )  # fmt: skip
