"""Traces, OpenLineage events and metrics of a scenario, received over real HTTP."""

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.api import app as apps
from scheduler.process import measures, trace_context
from scheduler.process.health import Health, HealthServer, StepHealth
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact
from scheduler.store.worker.claims import Claim, Ending
from scheduler.telemetry import parts
from scheduler.telemetry.follower import Follower
from workers.process.progress import Progress, of_jobs

from .conftest import observed_by

collecting = pytest.importorskip("support.collector")
tracing = pytest.importorskip("scheduler.telemetry.tracing")


@pytest.fixture
def collector() -> Iterator[Any]:
    collector = collecting.Collector()
    yield collector
    collector.close()


@pytest.fixture
def traced(scenario: Scenario, collector: Any) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Calls a function, and waits until the collector has all its spans."""
    values = scenario.settings.tracing.model_copy(update={"otlp_endpoint": collector.url})
    settings = scenario.settings.model_copy(update={"tracing": values})
    with observed_by(tracing.Tracing, settings) as observe:
        yield observe


def test_a_run_is_one_trace_with_its_tries_and_their_steps(
    scenario: Scenario, collector: Any, traced: Callable[[Callable[[], None]], None]
) -> None:
    scenario.add(chain("c", 2, task={"retries": 1}))

    def outcome(claim: Claim) -> Any:
        first = claim.task_id == "t001" and claim.try_number == 1
        return Ending(TaskState.UP_FOR_RETRY, delay_s=0.0, reason="ValueError: no") if first else TaskState.SUCCESS

    def work() -> None:
        scenario.trigger("c", run_id="r")
        scenario.run_to_end(outcome=outcome)

    traced(work)
    (run,) = collector.named("run c")
    spans = [span for span in collector.spans if span.trace_id == run.trace_id]
    tries = collector.named("task c.t001")

    assert {span.name for span in spans} >= {"run c", "start", "task c.t000", "task c.t001", "queue", "execute"}
    assert not run.parent_span_id and len(tries) == 2
    assert {span.parent_span_id for span in [*collector.named("task c.t000"), *tries]} == {run.span_id}
    assert [span.status.message for span in tries] == ["ValueError: no", ""]
    by_id = {span.span_id: span for span in spans}
    assert all(by_id[span.parent_span_id].name.startswith("task c.") for span in spans if span.name in {"queue", "execute"})
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    assert len({span.span_id for span in spans}) == len(spans)


def test_the_trace_context_of_a_task_is_that_of_its_span(
    scenario: Scenario, collector: Any, traced: Callable[[Callable[[], None]], None]
) -> None:
    scenario.add(chain("c", 1))
    run_key = 0

    def work() -> None:
        nonlocal run_key
        run_key = scenario.trigger("c", run_id="r")
        scenario.run_to_end()

    traced(work)
    (span,) = collector.named("task c.t000")
    ti: Any = SimpleNamespace(run_key=run_key, dag_id="c", run_id="r", task_id="t000", map_index=-1, try_number=1)

    assert trace_context.traceparent("paceline", ti) == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


def test_a_deferred_try_has_a_span_for_its_wait_and_one_for_each_execution(
    scenario: Scenario, collector: Any, traced: Callable[[Callable[[], None]], None]
) -> None:
    scenario.add(dag("d", {"a": ()}))

    def outcome(claim: Claim) -> Any:
        if claim.resume is None:
            return Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=0.0, resume={"poke": 1})
        return TaskState.SUCCESS

    def work() -> None:
        scenario.trigger("d", run_id="r")
        scenario.run_to_end(outcome=outcome)

    traced(work)

    assert len(collector.named("execute")) == 2
    assert len(collector.named("wait")) == 1
    assert len(collector.named("task d.a")) == 1


def test_jobs_of_spark_are_below_their_try(
    scenario: Scenario, collector: Any, traced: Callable[[Callable[[], None]], None]
) -> None:
    scenario.add(dag("s", {"a": ()}, task={"runtime": "pyspark"}))
    jobs = [
        {"jobId": 3, "name": "count", "status": "SUCCEEDED", "submissionTime": 1000, "completionTime": 2500},
        {"jobId": 4, "name": "save", "status": "FAILED", "submissionTime": 3000, "completionTime": 3500},
    ]
    progress = Progress(application_id="app-1", jobs=of_jobs(jobs)).as_json()

    def work() -> None:
        scenario.trigger("s", run_id="r")
        scenario.turn()
        for message in scenario.messages():
            claim = scenario.claim(message)
            assert claim is not None
            scenario.sql(
                "insert into task_progress (task_instance_id, try_number, progress) values (%s, %s, %s)",
                claim.id, claim.try_number, json.dumps(progress),
            )  # fmt: skip
            scenario.follower.report(claim, Ending(TaskState.SUCCESS))
        scenario.run_to_end()

    traced(work)
    (job,), (failed,) = collector.named("Spark job 3"), collector.named("Spark job 4")
    (task,) = collector.named("task s.a")

    assert (job.trace_id, job.parent_span_id) == (task.trace_id, task.span_id)
    assert (job.end_time_unix_nano - job.start_time_unix_nano) == 1_500_000_000
    assert (job.status.message, failed.status.message) == ("", "it failed")


def test_an_unreachable_collector_delays_nothing(scenario: Scenario) -> None:
    values = scenario.settings.tracing.model_copy(update={"otlp_endpoint": "http://127.0.0.1:9", "queue_size": 10})
    settings = scenario.settings.model_copy(update={"tracing": values})
    observer = tracing.Tracing(settings)
    follower = Follower(settings, [observer])
    follower.read_once()
    scenario.finish(chain("c", 20))

    while follower.read_once():
        pass
    follower._leave()
    assert len(observer._provider._active_span_processor._span_processors) == 1


lineage = pytest.importorskip("scheduler.telemetry.lineage")
FRAME = {
    "__dataframe__": 1, "url": "s3a://bucket/data/x", "format": "parquet", "rows": 3, "bytes": 40,
    "schema": {"type": "struct", "fields": [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}]},
}  # fmt: skip
Recorded = list[dict[str, Any]]


@pytest.fixture
def recorded(scenario: Scenario, tmp_path: Path) -> Iterator[Callable[[Callable[[], None]], Recorded]]:
    """Calls a function, and returns its lineage events."""
    file = tmp_path / "events.json"
    values = scenario.settings.lineage.model_copy(update={"url": f"file://{file}", "namespace": "ns"})
    settings = scenario.settings.model_copy(update={"lineage": values})

    with observed_by(lineage.Lineage, settings) as observe:

        def record(work: Callable[[], None]) -> Recorded:
            observe(work)
            found = [json.loads(line) for line in file.read_text().splitlines()]
            _validate(found)
            return found

        yield record


def _validate(events: Recorded) -> None:
    """With the published schema, OpenLineage.json, if a file is named: it is not part of this repository."""
    if path := os.environ.get("OPENLINEAGE_SCHEMA"):
        schema = json.loads(Path(path).read_text())
        for event in events:
            jsonschema.Draft202012Validator(schema).validate(event)
    assert all(event["schemaURL"].split("/")[-2:-1] for event in events)


def of_job(events: Recorded, name: str) -> dict[str, dict[str, Any]]:
    return {event["eventType"]: event for event in events if event["job"]["name"] == name}


def test_runs_and_tries_start_and_end_with_their_parents(
    scenario: Scenario, recorded: Callable[[Callable[[], None]], Recorded]
) -> None:
    scenario.add(dag("d", {"a": (), "b": ("a",)}, task={"outlets": ("s3://bucket/out", "plain")}))

    def work() -> None:
        scenario.trigger("d")
        scenario.run_to_end(outcome=lambda claim: _failed(claim) if claim.task_id == "b" else TaskState.SUCCESS)

    events = recorded(work)
    run, a, b = of_job(events, "d"), of_job(events, "d.a"), of_job(events, "d.b")

    assert (run.keys(), a.keys(), b.keys()) == ({"START", "FAIL"}, {"START", "COMPLETE"}, {"START", "FAIL"})
    assert {event["job"]["namespace"] for event in events} == {"ns"}
    for one in (*a.values(), *b.values()):
        parent = one["run"]["facets"]["parent"]
        assert (parent["run"]["runId"], parent["job"]["name"]) == (run["START"]["run"]["runId"], "d")
        assert parent["root"]["run"]["runId"] == run["START"]["run"]["runId"]
    assert a["START"]["run"]["runId"] == a["COMPLETE"]["run"]["runId"] != b["START"]["run"]["runId"]
    assert [(output["namespace"], output["name"]) for output in a["COMPLETE"]["outputs"]] == [
        ("s3://bucket", "/out"),
        ("asset", "plain"),
    ]
    assert b["FAIL"]["run"]["facets"]["errorMessage"]["message"] == "ValueError: no"
    assert b["FAIL"]["outputs"] == []
    assert b["FAIL"]["job"]["facets"]["jobType"]["jobType"] == "TASK"


def test_data_frames_are_datasets_with_their_schema(scenario: Scenario, recorded: Callable[[Callable[[], None]], Recorded]) -> None:
    scenario.add(dag("f", {"a": (), "b": ("a",)}, task={"runtime": "pyspark"}))

    def work() -> None:
        scenario.trigger("f")
        scenario.run_to_end(
            outcome=lambda claim: Ending(TaskState.SUCCESS, result=json.dumps(FRAME) if claim.task_id == "a" else None)
        )

    events = recorded(work)
    (written,), (read,) = of_job(events, "f.a")["COMPLETE"]["outputs"], of_job(events, "f.b")["COMPLETE"]["inputs"]

    assert (written["namespace"], written["name"]) == (read["namespace"], read["name"]) == ("s3a://bucket", "/data/x")
    assert [(field["name"], field["type"]) for field in read["facets"]["schema"]["fields"]] == [("a", "integer")]
    assert (written["outputFacets"]["outputStatistics"]["rowCount"], written["outputFacets"]["outputStatistics"]["size"]) == (3, 40)


def test_an_unreachable_server_delays_nothing_and_its_queue_is_bounded(scenario: Scenario) -> None:
    values = scenario.settings.lineage.model_copy(update={"url": "http://127.0.0.1:9", "queue_size": 3})
    settings = scenario.settings.model_copy(update={"lineage": values})

    class Stuck:
        def emit(self, event: object) -> None:
            raise ConnectionError("away")

    observer = lineage.Lineage(settings, client=Stuck())
    follower = Follower(settings, [observer])
    follower.read_once()
    scenario.finish(dag("d", {f"t{number}": () for number in range(10)}))

    while follower.read_once():
        pass
    observer.close()
    follower._leave()
    assert observer._waiting.qsize() <= 3


def _failed(claim: Claim) -> Ending:
    return Ending(TaskState.FAILED, reason="ValueError: no")


def on(settings: Settings) -> Settings:
    return settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"prometheus": True, "interval": 0.05})})


def value(text: str, name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found[0] if found else None


def test_a_scheduler_serves_counters_of_events_and_gauges(scenario: Scenario, short_folder: Path) -> None:
    settings = on(scenario.settings)
    health = Health("scheduler", lambda: "s#1", {"loop": StepHealth("The loop hangs", 10.0)})
    with contextlib.ExitStack() as ending:
        pages = parts.start(settings, health, ending)
        server = HealthServer(health, path=short_folder / "s", pages=pages)
        ending.callback(server.close)
        client = ending.enter_context(httpx.Client(transport=httpx.HTTPTransport(uds=str(short_folder / "s"))))

        def page() -> str:
            return client.get("http://local/metrics").raise_for_status().text

        eventually(lambda: value(page(), "paceline_events_behind_seconds") is not None)
        scenario.finish(chain("c", 2))
        measures.count("scheduler_heartbeat")
        eventually(lambda: value(page(), "airflow_dagrun_duration_success_seconds_count", dag_id="c") == 1)

        text = page()
        assert value(text, "airflow_ti_finish_total", dag_id="c", task_id="t001", state="success") == 1
        assert (value(text, "airflow_scheduler_heartbeat_total") or 0) >= 1
        assert value(text, "airflow_job_name_start_total", job_name="schedulerjob") == 1
        eventually(lambda: value(page(), "airflow_dagbag_size") == 1)
        assert (value(text, "paceline_health", part="loop"), value(text, "paceline_database_up")) == (1, 1)
        assert client.get("http://local/health").status_code == 200
        assert client.get("http://local/other").json() == {"error": "There is only /health, /alive, /metrics here."}
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


@pytest.mark.parametrize("is_on", [True, False])
def test_a_web_process_serves_gauges_to_accounts_that_may_view(scenario: Scenario, is_on: bool) -> None:
    settings = on(scenario.settings) if is_on else scenario.settings
    account = transact(scenario.engine, accounts.create, "prometheus", "correct horse battery", role="viewer")
    token, _ = transact(scenario.engine, logins.issue, account.id, "token", lasts_s=600.0, name="test")
    other = transact(scenario.engine, accounts.create, "other", "correct horse battery", role=None, tags={"nightly": "admin"})
    limited, _ = transact(scenario.engine, logins.issue, other.id, "token", lasts_s=600.0, name="test")
    with TestClient(apps.create(settings)) as client:
        assert client.get("/metrics").status_code == 401
        answer = client.get("/metrics", headers={"Authorization": f"Bearer {token}"})
        assert client.get("/metrics", headers={"Authorization": f"Bearer {limited}"}).status_code == 403

        if not is_on:
            assert answer.status_code == 404
            return
        assert answer.status_code == 200
        assert value(answer.text, "paceline_processes", kind="scheduler", state="alive") == 1
        assert value(answer.text, "paceline_web_requests_total", method="GET", status="401") == 1
