"""OpenLineage events of runs and of tries, with the assets and the DataFrames that they read and write.

Events wait in a bounded queue for a thread that sends them, so a server that is away or slow delays nothing.
"""

import contextlib
import logging
import queue
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    error_message_run,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
)
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport

from paceline.authoring.asset import TABLE
from paceline.authoring.frames import DataFrameReference, revived
from paceline.states import RunState as DagRunState
from paceline.states import TaskState
from scheduler.process import measures, trace_context
from scheduler.process.health import VitalThread
from scheduler.serialized.tasks import traits
from scheduler.settings import Settings
from scheduler.store.read import event_feed
from scheduler.store.read.event_feed import Event, Started
from scheduler.telemetry.follower import Batch, Observer, ends_try, index_of

log = logging.getLogger("paceline.telemetry")

PRODUCER = "https://paceline/openlineage"
#: Seconds that a request to the server may take, and for which `close` waits for events that are left.
REQUEST_S, CLOSE_S = 5.0, 2.0
ENDS = {TaskState.SUCCESS.value: RunState.COMPLETE, TaskState.SKIPPED.value: RunState.COMPLETE}
RUN_ENDS = {DagRunState.SUCCESS.value: RunState.COMPLETE, DagRunState.FAILED.value: RunState.FAIL}
Facets = dict[str, Any]


class Lineage(Observer):
    """Sends the OpenLineage events of each batch."""

    def __init__(self, settings: Settings, client: OpenLineageClient | None = None) -> None:
        config = settings.lineage
        self._namespace = config.namespace
        self._client = client or OpenLineageClient(transport=_transport(settings))
        self._waiting: queue.Queue[RunEvent | None] = queue.Queue(config.queue_size)
        self._failing = False
        self._thread = VitalThread(target=self._send_all, name="lineage", daemon=True)
        self._thread.start()

    def observe_batch(self, batch: Batch) -> None:
        runs = [event for event in batch.events if event.task_instance_id is None and event.dag_id is not None]
        times = event_feed.run_times(batch.connection, [event.dag_run_id for event in runs]) if runs else {}
        for event in runs:
            if event.from_state != event.to_state:
                self._run(event, times.get(event.dag_run_id))
        for start in batch.starts:
            self._put(RunState.START, start.started_at or 0.0, self._try(start), self._task_job(start))
        for event in batch.events:
            if ends_try(event) and event.task_id is not None:
                self._task_end(batch, event)

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(CLOSE_S)

    def _run(self, event: Event, times: event_feed.RunTimes | None) -> None:
        facets: Facets = {}
        if times is not None and times.nominal_from is not None:
            facets["nominalTime"] = nominal_time_run.NominalTimeRunFacet(times.nominal_from, times.nominal_to)
        run = Run(runId=self._run_id(event), facets=facets)
        if event.to_state == DagRunState.RUNNING:
            self._put(RunState.START, event.at, run, self._dag_job(event))
        elif event.to_state in RUN_ENDS:
            self._put(RUN_ENDS[event.to_state], event.at, run, self._dag_job(event))

    def _task_end(self, batch: Batch, event: Event) -> None:
        """The end of a try, with what it read and wrote."""
        run = self._try(event)
        state = ENDS.get(event.to_state or "", RunState.FAIL)
        if event.from_state == TaskState.SHUTDOWN:
            state = RunState.ABORT
        if state is RunState.FAIL:
            run.facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(event.reason or "It failed.", "PYTHON")
        inputs, outputs = self._datasets(batch, event) if event.to_state == TaskState.SUCCESS else ([], [])
        self._put(state, event.at, run, self._task_job(event), inputs, outputs)

    def _datasets(self, batch: Batch, event: Event) -> tuple[list[InputDataset], list[OutputDataset]]:
        """The tables that it reads and the DataFrames of its upstream tasks, and its own with the assets that it updates."""
        task, dag = batch.task(event), batch.dag(event.version_id)
        if task is None or dag is None:
            return [], []
        lineage = task.lineage or {}
        inputs = [InputDataset(*_of_uri(uri)) for uri in lineage.get("inputs", ())]
        columns = lineage.get("columns", {})
        outputs = [OutputDataset(*_of_uri(uri), facets=_columns(columns.get(uri.removeprefix(TABLE)))) for uri in task.outlets]
        if any(traits(node.runtime).returns_frames for node in dag.tasks):
            for row in event_feed.frames(batch.connection, event.dag_run_id, [*task.upstream, task.task_id]):
                references = _references(revived(row.value))
                if row.task_instance_id == event.task_instance_id:
                    outputs += map(_output, references)
                elif row.task_id != task.task_id:
                    inputs += map(_input, references)
        return inputs, outputs

    def _put(self, state: RunState, at: float, run: Run, job: Job, *datasets: Any) -> None:
        """Let the thread send an event; `datasets` are its inputs and its outputs."""
        inputs, outputs = datasets or ([], [])
        moment = datetime.fromtimestamp(at, UTC).isoformat()
        event = RunEvent(eventType=state, eventTime=moment, run=run, job=job, inputs=inputs, outputs=outputs, producer=PRODUCER)
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            measures.count("ol.emit.failed")

    def _send_all(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._client.emit(event)
                self._failing = False
            except Exception as error:  # the library raises whatever its transport raises
                measures.count("ol.emit.failed")
                if not self._failing:
                    log.warning("OpenLineage events are lost until the server takes them: %s", error)
                self._failing = True

    def _run_id(self, event: Event | Started) -> str:
        return trace_context.run_uuid(self._namespace, event.dag_run_id, event.dag_id or "", event.run_id or "")

    def _try(self, event: Event | Started) -> Run:
        """The run of a try, whose parent is the DAG run."""
        own = trace_context.try_uuid(self._namespace, event.dag_run_id, event.task_id or "", index_of(event), event.try_number or 0)
        parent = parent_run.ParentRunFacet(
            run=parent_run.Run(self._run_id(event)), job=parent_run.Job(self._namespace, event.dag_id or ""),
            root=parent_run.Root(
                run=parent_run.RootRun(self._run_id(event)), job=parent_run.RootJob(self._namespace, event.dag_id or "")
            ),
        )  # fmt: skip
        return Run(runId=own, facets={"parent": parent})

    def _dag_job(self, event: Event | Started) -> Job:
        return Job(self._namespace, event.dag_id or "", facets={"jobType": _job_type("DAG")})

    def _task_job(self, event: Event | Started) -> Job:
        return Job(self._namespace, f"{event.dag_id}.{event.task_id}", facets={"jobType": _job_type("TASK")})


def _transport(settings: Settings) -> HttpTransport | FileTransport:
    config = settings.lineage
    if config.url.startswith("file://"):
        return FileTransport(FileConfig(log_file_path=config.url.removeprefix("file://"), append=True))
    key = {"auth": ApiKeyTokenProvider({"api_key": config.api_key})} if config.api_key else {}
    return HttpTransport(HttpConfig(url=config.url, endpoint=config.endpoint, timeout=REQUEST_S, **key))


def _job_type(kind: str) -> job_type_job.JobTypeJobFacet:
    return job_type_job.JobTypeJobFacet(processingType="BATCH", integration="PACELINE", jobType=kind)


def _of_uri(uri: str) -> tuple[str, str]:
    """The namespace and the name of a dataset, by the naming rules of OpenLineage: scheme and authority, then the path."""
    parts = urlsplit(uri)
    if not parts.scheme:
        return "asset", uri
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else parts.scheme, parts.path or "/"


def _columns(sources: Mapping[str, list[list[str]]] | None) -> Facets:
    """The facet that says what each column of a table comes from."""
    if not sources:
        return {}
    fields = {
        column: column_lineage_dataset.Fields(
            [column_lineage_dataset.InputField(*_of_uri(TABLE + table), field=name) for table, name in inputs]
        )
        for column, inputs in sources.items()
    }
    return {"columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet(fields)}


def _references(value: Any) -> list[DataFrameReference]:
    if isinstance(value, DataFrameReference):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [reference for item in items for reference in _references(item)]


def _schema(reference: DataFrameReference) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in reference.columns.items()]
    return schema_dataset.SchemaDatasetFacet(fields=fields)


def _input(reference: DataFrameReference) -> InputDataset:
    return InputDataset(*_of_uri(reference.url), facets={"schema": _schema(reference)})


def _output(reference: DataFrameReference) -> OutputDataset:
    size = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=reference.rows, size=reference.bytes)
    return OutputDataset(*_of_uri(reference.url), facets={"schema": _schema(reference)}, outputFacets={"outputStatistics": size})
