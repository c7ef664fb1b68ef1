"""Turns events into samples. It reads nothing and writes nothing."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping

from paceline.states import RUN_FINISHED, STARTED, TRY_FAILED, RunState, TaskState
from scheduler.store.read.event_feed import Event, Started
from scheduler.telemetry.catalog import CATALOG
from scheduler.telemetry.recorder import Sample

#: The start of the reason of a try whose process was killed, and of one whose worker was declared lost.
KILLED, LOST = ("the process was killed", "the process exited"), "worker "
#: Classes in the reason of a failure: `ValueError: ...`.
LONGEST_CLASS = 60
#: Returns the operator of the task of an event.
Operator = Callable[[Event], str]


def of_starts(started: Collection[Started | Event]) -> Iterator[Sample]:
    """The metrics of the starts of some tries, or of their dispatches."""
    for event in started:
        if event.task_id is None or event.dag_id is None or event.started_at is None:
            continue
        task = (event.dag_id, event.task_id)
        yield CATALOG["ti.start"], task, 1
        celery = _celery(event)
        for name in ("celery_task_sent", "celery_task_received", "celery_task_started"):
            yield CATALOG[name], celery, 1
        if event.queued_at is not None:
            yield CATALOG["task.queued_duration"], task, max(event.started_at - event.queued_at, 0.0)
            if event.scheduled_at is not None and event.scheduled_at <= event.queued_at:
                yield CATALOG["task.scheduled_duration"], task, event.queued_at - event.scheduled_at


def of_event(event: Event, operator: Operator) -> Iterator[Sample]:
    """The metrics of an event, without the start of its dispatch."""
    if event.dag_id is None:
        return
    if event.task_instance_id is None:
        yield from _of_run(event, event.dag_id)
    elif event.task_id is not None:
        yield from _of_task(event, event.dag_id, event.task_id, operator)


def of_new_run(operators: Mapping[str, int], deadlines: int) -> Iterator[Sample]:
    """The metrics of a new run: `operators` has the number of its task instances by operator."""
    if deadlines:
        yield CATALOG["deadline_alerts.deadline_created"], (), deadlines
    for operator, number in operators.items():
        yield CATALOG["task_instance_created"], (operator,), number


def _of_run(event: Event, dag_id: str) -> Iterator[Sample]:
    if event.from_state is None and event.run_type == "asset_triggered":
        yield CATALOG["asset.triggered_dagruns"], (), 1
    is_scheduled = event.run_type == "scheduled" and event.run_after is not None
    if event.to_state == RunState.RUNNING and event.from_state != event.to_state and is_scheduled:
        yield CATALOG["dagrun.schedule_delay"], (dag_id,), max(event.at - (event.run_after or 0.0), 0.0)
    if event.to_state not in RUN_FINISHED:
        return
    if event.run_started_at is not None:
        yield CATALOG[f"dagrun.duration.{event.to_state}"], (dag_id,), max(event.at - event.run_started_at, 0.0)
    if event.first_task_at is not None:
        if is_scheduled:
            delay_s = event.first_task_at - (event.run_after or 0.0)
            yield CATALOG["dagrun.first_task_scheduling_delay"], (dag_id,), max(delay_s, 0.0)
        if event.run_queued_at is not None:
            yield CATALOG["dagrun.first_task_start_delay"], (dag_id,), max(event.first_task_at - event.run_queued_at, 0.0)


def _of_task(event: Event, dag_id: str, task_id: str, operator: Operator) -> Iterator[Sample]:
    before, after = event.from_state, event.to_state
    if after == TaskState.REMOVED:
        yield CATALOG["task_removed_from_dag"], (dag_id,), 1
    elif before == TaskState.REMOVED:
        yield CATALOG["task_restored_to_dag"], (dag_id,), 1
    if before == TaskState.QUEUED and after == TaskState.SCHEDULED:
        yield CATALOG["scheduler.orphaned_tasks.cleared"], (), 1
    if before not in STARTED or after in STARTED:
        return
    yield CATALOG["ti.finish"], (dag_id, task_id, after or "none"), 1
    if before == TaskState.SHUTDOWN:
        yield CATALOG["celery_task_revoked"], _celery(event), 1
    if event.started_at is not None:
        took_s = max(event.at - event.started_at, 0.0)
        yield CATALOG["task.duration"], (dag_id, task_id), took_s
        yield CATALOG["celery_task_runtime"], _celery(event), took_s
    if after == TaskState.SUCCESS:
        yield CATALOG["ti_successes"], (), 1
        yield CATALOG["operator_successes"], (operator(event),), 1
        yield CATALOG["celery_task_succeeded"], _celery(event), 1
    elif after in TRY_FAILED:
        yield from _of_failure(event, operator)


def _of_failure(event: Event, operator: Operator) -> Iterator[Sample]:
    reason = event.reason or ""
    yield CATALOG["ti_failures"], (), 1
    yield CATALOG["operator_failures"], (operator(event),), 1
    if event.to_state == TaskState.UP_FOR_RETRY:
        yield CATALOG["celery_task_retried"], _celery(event), 1
    else:
        yield CATALOG["celery_task_failed"], (*_celery(event), _exception(reason)), 1
    if reason.startswith(LOST) and event.actor != event.worker:
        yield CATALOG["task_instances_without_heartbeats_killed"], (), 1
        return
    yield CATALOG["celery.execute_command.failure"], (), 1
    if reason.startswith(KILLED):
        yield CATALOG["scheduler.tasks.killed_externally"], (), 1


def _exception(reason: str) -> str:
    name = reason.partition(":")[0].rpartition(".")[2]
    return name if name.isidentifier() and len(name) <= LONGEST_CLASS else "unknown"


def _celery(event: Started | Event) -> tuple[str, str, str]:
    return _celery_labels(event.dag_id, event.task_id, event.worker, event.queue)


@functools.lru_cache(maxsize=4096)
def _celery_labels(dag_id: str | None, task_id: str | None, worker: str | None, queue: str | None) -> tuple[str, str, str]:
    return f"{dag_id}.{task_id}", (worker or "").partition("#")[0], queue or ""
