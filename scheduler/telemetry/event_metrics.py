"""The observer that turns events into metrics, and the thread that sends the metrics of processes that read no events."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from sqlalchemy import Connection

from scheduler.process.vital_thread import VitalThread
from scheduler.settings import Settings
from scheduler.store.read import gauges
from scheduler.store.read.event_feed import Event
from scheduler.telemetry import from_events
from scheduler.telemetry.batch import Batch, Observer
from scheduler.telemetry.catalog import CATALOG, Kind, Metric
from scheduler.telemetry.recorder import Recorder, Sample
from scheduler.telemetry.totals import Labels

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

        samples: list[Sample] = list(from_events.of_starts(batch.starts))
        for event in batch.events:
            samples += from_events.of_event(event, operator)
            if event.task_instance_id is None and event.from_state is None:
                samples += from_events.of_new_run(_operators(batch, event), _deadlines(batch, event))
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
