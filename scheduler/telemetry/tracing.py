"""Traces for OpenTelemetry: one for each run, with a span for each try and for each step of it.

Spans are made from events after a step has ended, so no process that decides or runs a task waits for a collector. The SDK's
queue is bounded, and its thread sends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags

from paceline.states import RUN_FINISHED, STARTED, SUSPENDED, TRY_FAILED, TaskState
from scheduler.process import trace_context
from scheduler.serialized.tasks import traits
from scheduler.settings import Settings
from scheduler.store.read import event_feed
from scheduler.store.read.event_feed import Event, SparkWork
from scheduler.telemetry.follower import Batch, Observer, ends_try, index_of

#: Seconds that a request to the collector may take, and between two requests.
REQUEST_S, PAUSE_S = 10, 2.0
#: Steps of unfinished tries that are remembered at most.
MOST_REMEMBERED = 100_000


class _Given(IdGenerator):  # type: ignore[misc]
    """Gives the IDs of the next span."""

    trace_id = span_id = 1

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """A span to send. Times are seconds since 1970; `error` is its reason if it failed."""

    name: str
    id: int
    start: float
    end: float
    parent: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    links: Sequence[Link] = ()


class Tracing(Observer):
    """Sends the spans of each batch."""

    def __init__(self, settings: Settings) -> None:
        config = settings.tracing
        self._namespace = config.service_name
        exporter = OTLPSpanExporter(endpoint=f"{config.otlp_endpoint.rstrip('/')}/v1/traces", timeout=REQUEST_S)
        processor = BatchSpanProcessor(
            exporter,
            max_queue_size=config.queue_size,
            max_export_batch_size=min(512, config.queue_size),
            schedule_delay_millis=PAUSE_S * 1000,
        )
        self._ids = _Given()
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(config.sample_ratio),
            resource=Resource.create({"service.name": config.service_name}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("paceline")
        #: By task instance: since when its try waits without a worker, or when its last dispatch began to run again.
        self._since: dict[int, float] = {}
        self._resumed: dict[int, float] = {}
        self._versions: set[int] = set()

    def observe_batch(self, batch: Batch) -> None:
        ended: list[Event] = []
        for event in batch.events:
            if event.dag_id is None or event.run_id is None:
                continue
            if event.task_instance_id is None:
                if event.to_state in RUN_FINISHED:
                    self._run(batch, event)
            elif event.task_id is not None:
                self._step(event)
                if ends_try(event):
                    ended.append(event)
        on_spark = [event for event in ended if (task := batch.task(event)) is not None and traits(task.runtime).on_spark]
        if on_spark:
            self._spark(batch, on_spark)
        if len(self._since) + len(self._resumed) > MOST_REMEMBERED:
            self._since.clear()
            self._resumed.clear()

    def close(self) -> None:
        self._provider.shutdown()

    def _run(self, batch: Batch, event: Event) -> None:
        """The root span of a run that ended, with its steps before its first task."""
        created, started = event.run_queued_at or event.at, event.run_started_at or event.at
        self._send(event, _Span(
            name=f"run {event.dag_id}", id=self._root(event), start=created, end=event.at, error=_error(event),
            attributes=_names(event) | {"paceline.run_type": event.run_type, "paceline.state": event.to_state},
            links=self._parse(batch, event.version_id),
        ))  # fmt: skip
        due = event.run_after or created
        for name, start, end in (("plan", due, created), ("start", created, started)):
            if start <= end:
                span = trace_context.span_id(self._namespace, event.dag_run_id, name, event.run_started_at)
                self._send(event, _Span(name=name, id=span, start=start, end=end, parent=self._root(event)))

    def _step(self, event: Event) -> None:
        """The spans that this event ends."""
        ti = event.task_instance_id
        assert ti is not None
        before, after = event.from_state, event.to_state
        if after in SUSPENDED and before in STARTED:
            self._execution(event, ti)
            self._since[ti] = event.at
        elif before in SUSPENDED:
            since = self._since.pop(ti, None)
            if since is not None:
                self._part(event, "wait", since, event.at, waits_as=before)
        elif after == TaskState.RUNNING:
            self._resumed[ti] = event.at
        elif before in STARTED and after not in STARTED:
            self._execution(event, ti)
            self._try(event)

    def _execution(self, event: Event, ti: int) -> None:
        """The steps of one dispatch: waiting for a slot, waiting in the queue, and running."""
        resumed = self._resumed.pop(ti, None)
        started = resumed or event.started_at
        if started is None:
            return
        if event.queued_at is not None and event.queued_at <= started:
            if event.scheduled_at is not None and event.scheduled_at <= event.queued_at:
                self._part(event, "promote", event.scheduled_at, event.queued_at)
            self._part(event, "queue", event.queued_at, started)
        self._part(event, "execute", started, event.at, worker=event.worker)

    def _try(self, event: Event) -> None:
        begun = [at for at in (event.started_at, event.queued_at, event.scheduled_at) if at is not None and at <= event.at]
        about = {"state": event.to_state, "worker": event.worker, "queue": event.queue, "reason": event.reason}
        self._send(event, _Span(
            name=f"task {event.dag_id}.{event.task_id}", id=self._try_id(event), start=min(begun, default=event.at), end=event.at,
            parent=self._root(event), error=_error(event),
            attributes=_names(event) | {f"paceline.{name}": value for name, value in about.items()},
        ))  # fmt: skip

    def _spark(self, batch: Batch, events: Sequence[Event]) -> None:
        """A span for each Spark job of these tries, and for each application that one submitted."""
        by_id = {event.task_instance_id: event for event in events if event.task_instance_id is not None}
        tries = [(ti, event.try_number or 0) for ti, event in by_id.items()]
        for work in event_feed.spark_work(batch.connection, tries):
            event = by_id[work.task_instance_id]
            parent = self._try_id(event)
            if work.submitted_at is not None:
                self._send(event, _Span(
                    name=f"Spark application {work.application_id or ''}".strip(), id=self._part_id(event, "application"),
                    start=work.submitted_at, end=work.ended_at or event.at, parent=parent,
                    error="it failed or was killed" if work.state in {"failed", "killed"} else None,
                    attributes={"spark.application_id": work.application_id, "spark.master": work.master},
                ))  # fmt: skip
                parent = self._part_id(event, "application")
            self._jobs(event, work, parent)

    def _jobs(self, event: Event, work: SparkWork, parent: int) -> None:
        progress = work.progress or {}
        for job in progress.get("jobs", ()):
            self._send(event, _Span(
                name=f"Spark job {job['id']}", id=self._part_id(event, "job", job["id"]), start=job["submitted_ms"] / 1000,
                end=event.at if job["ended_ms"] is None else job["ended_ms"] / 1000, parent=parent,
                error="it failed" if job["status"] == "FAILED" else None,
                attributes={
                    "spark.application_id": progress.get("application_id"), "spark.job_id": job["id"], "spark.job_name": job["name"]
                },
            ))  # fmt: skip

    def _parse(self, batch: Batch, version_id: int | None) -> list[Link]:
        """A link to the span of the parse that made a version, in a trace of its own, since it may be days older than a run."""
        if version_id is None:
            return []
        trace_id = trace_context.trace_id(self._namespace, version_id, "parse", "")
        span = trace_context.span_id(self._namespace, version_id, "parse")
        if version_id not in self._versions:
            if len(self._versions) > MOST_REMEMBERED:
                self._versions.clear()
            self._versions.add(version_id)
            found = event_feed.parsed(batch.connection, version_id)
            if found is not None:
                self._record(trace_id, _Span(
                    name=f"parse {found.file or ''}".strip(), id=span, start=found.stored_at - (found.duration_s or 0.0),
                    end=found.stored_at, attributes={"paceline.file": found.file, "paceline.dag_version": found.number},
                ))  # fmt: skip
        return [Link(_context(trace_id, span))]

    def _part(self, event: Event, name: str, start: float, end: float, **about: Any) -> None:
        """The span of a step of a try."""
        attributes = {f"paceline.{key}": value for key, value in about.items()}
        span, parent = self._part_id(event, name, start), self._try_id(event)
        self._send(event, _Span(name=name, id=span, start=start, end=end, parent=parent, attributes=attributes))

    def _part_id(self, event: Event, *parts: object) -> int:
        return trace_context.span_id(self._namespace, event.dag_run_id, event.task_instance_id, event.try_number, *parts)

    def _send(self, event: Event, span: _Span) -> None:
        """A span of the trace of a run."""
        self._record(trace_context.trace_id(self._namespace, event.dag_run_id, event.dag_id or "", event.run_id or ""), span)

    def _record(self, trace_id: int, span: _Span) -> None:
        self._ids.trace_id, self._ids.span_id = trace_id, span.id
        above = Context()
        if span.parent is not None:
            above = trace.set_span_in_context(trace.NonRecordingSpan(_context(trace_id, span.parent)), above)
        recorded = self._tracer.start_span(
            span.name, above, start_time=int(span.start * 1e9), links=span.links,
            attributes={key: value for key, value in span.attributes.items() if value is not None},
        )  # fmt: skip
        if span.error is not None:
            recorded.set_status(Status(StatusCode.ERROR, span.error))
        recorded.end(int(max(span.end, span.start) * 1e9))

    def _root(self, event: Event) -> int:
        # A cleared run starts again, in the same trace.
        return trace_context.span_id(self._namespace, event.dag_run_id, "run", event.run_started_at)

    def _try_id(self, event: Event) -> int:
        return trace_context.try_span_id(
            self._namespace, event.dag_run_id, event.task_id or "", index_of(event), event.try_number or 0
        )


def _context(trace_id: int, span_id: int) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _error(event: Event) -> str | None:
    return (event.reason or "failed") if event.to_state in TRY_FAILED else None


def _names(event: Event) -> dict[str, Any]:
    names = {"dag_id": event.dag_id, "run_id": event.run_id}
    if event.task_id is not None:
        names |= {"task_id": event.task_id, "map_index": str(index_of(event)), "try": str(event.try_number)}
    return {f"paceline.{name}": value for name, value in names.items()}
