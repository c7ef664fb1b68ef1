"""The observer that turns events into metrics, and the thread that sends the metrics of processes that read no events."""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from sqlalchemy import Connection

from paceline.states import RUN_FINISHED, STARTED, TRY_FAILED, RunState, TaskState
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from scheduler.store.read import gauges
from scheduler.store.read.event_feed import Event, Started
from scheduler.telemetry.catalog import CATALOG, Kind, Labels, Metric
from scheduler.telemetry.follower import Batch, Observer
from scheduler.telemetry.recorder import Recorder, Sample

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


FLUSH_S, STOP_S = 1.0, 5.0
UNKNOWN = "unknown"


class EventMetrics(Observer):
    """Records the metrics of each batch and, for StatsD, the gauges at that time."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder

    def observe_batch(self, batch: Batch) -> None:
        def operator(event: Event) -> str:
            task = batch.task(event)
            return UNKNOWN if task is None else task.operator

        samples: list[Sample] = list(of_starts(batch.starts))
        for event in batch.events:
            samples += of_event(event, operator)
            if event.task_instance_id is None and event.from_state is None:
                samples += of_new_run(_operators(batch, event), _deadlines(batch, event))
        samples.append((CATALOG["paceline.events_read"], (), len(batch.events)))
        samples.append((CATALOG["paceline.events_behind_seconds"], (), batch.behind_s))
        for metric, labels, value in _added_up(samples):
            self._recorder.add(metric, labels, value)
        if self._recorder.statsd is not None:
            self._recorder.statsd.gauges(self._recorder.summed(read_gauges(batch.connection, self._settings)))

    def flush(self) -> None:
        self._recorder.flush()

    def reader_left(self) -> None:
        self._recorder.add(CATALOG["paceline.events_behind_seconds"], (), 0.0)


class Flusher(VitalThread):
    """Sends the metrics of a process without events to StatsD."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(name="telemetry", daemon=True)
        self._recorder = recorder
        self._ended = threading.Event()

    def end(self) -> None:
        """End the thread, after it has sent the waiting metrics."""
        self._ended.set()
        self.join(STOP_S)

    def work(self) -> None:
        while not self._ended.wait(FLUSH_S):
            self._recorder.flush()
        self._recorder.flush()


def read_gauges(connection: Connection, settings: Settings) -> list[Sample]:
    """The gauges of the installation, from one query."""
    rows = gauges.read(
        connection,
        worker_s=settings.worker.heartbeat_timeout,
        waiter_s=settings.waiter.heartbeat_timeout,
        scheduler_s=settings.scheduler.scheduler_health_check_threshold,
    )
    return [(CATALOG[gauge.metric], tuple(gauge.labels), gauge.value) for gauge in rows]


def _added_up(samples: Iterable[Sample]) -> Iterator[Sample]:
    """The samples of a batch, with one for each counter and labels: recording is most of the CPU time of a task's metrics."""
    counts: dict[tuple[Metric, Labels], float] = {}
    for metric, labels, value in samples:
        if metric.kind is Kind.COUNTER:
            counts[metric, labels] = counts.get((metric, labels), 0.0) + value
        else:
            yield metric, labels, value
    for (metric, labels), value in counts.items():
        yield metric, labels, value


def _operators(batch: Batch, event: Event) -> Counter[str]:
    dag = batch.dag(event.version_id)
    return Counter() if dag is None else Counter(task.operator for task in dag.tasks if not task.is_mapped)


def _deadlines(batch: Batch, event: Event) -> int:
    """The number of SLAs and deadlines of a new run. One by the average time of runs exists only if there were enough of them."""
    dag = batch.dag(event.version_id)
    if dag is None:
        return 0
    slas = [task for task in dag.tasks if task.sla_s is not None and event.run_type == "scheduled"]
    return len(slas) + len([deadline for deadline in dag.deadlines if deadline["reference"] != "average_runtime"])
