"""The Spark properties with which traces and lineage of Spark join those of the try."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.settings import Settings
from workers.process import progress, trace_properties

TI: Any = SimpleNamespace(run_key=7, dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=2)


def on(**sections: dict[str, object]) -> Settings:
    return Settings.model_validate(sections)


def test_nothing_is_passed_without_a_collector_or_server() -> None:
    assert trace_properties.for_spark(Settings(), TI) == trace_properties.for_executors(Settings(), TI) == {}


def test_an_application_has_the_trace_context_in_its_properties_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)
    settings = on(tracing={"otlp_endpoint": "http://localhost:4318"})
    found = trace_properties.for_executors(settings, TI)
    trace_properties.enter(settings, TI)

    assert set(found) == {"spark.paceline.traceparent", "spark.executorEnv.TRACEPARENT", "spark.yarn.appMasterEnv.TRACEPARENT"}
    assert set(found.values()) == {os.environ["TRACEPARENT"]}
    version, trace, span, flags = os.environ["TRACEPARENT"].split("-")
    assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")
    monkeypatch.delenv("TRACEPARENT")


def test_the_listener_of_openlineage_gets_its_parent_and_transport() -> None:
    settings = on(lineage={"url": "http://marquez:5000", "api_key": "k", "namespace": "ns"})
    found = trace_properties.for_spark(settings, TI)

    assert found["spark.openlineage.parentJobName"] == "d.t"
    assert found["spark.openlineage.parentJobNamespace"] == found["spark.openlineage.namespace"] == "ns"
    assert found["spark.openlineage.transport.url"] == "http://marquez:5000"
    assert found["spark.openlineage.transport.endpoint"] == "/api/v1/lineage"
    assert found["spark.openlineage.transport.auth.apiKey"] == "k"
    assert found["spark.openlineage.parentRunId"] != found["spark.openlineage.rootParentRunId"]
    other = SimpleNamespace(**{**vars(TI), "try_number": 3})
    assert trace_properties.for_spark(settings, other)["spark.openlineage.parentRunId"] != found["spark.openlineage.parentRunId"]


def test_jobs_of_the_rest_api_and_of_the_store_have_the_same_form() -> None:
    of_store = {"jobId": 1, "name": "count", "status": "SUCCEEDED", "submissionTime": 1_000, "completionTime": 2_500}
    of_rest = of_store | {"submissionTime": "1970-01-01T00:00:01.000GMT", "completionTime": "1970-01-01T00:00:02.500GMT"}

    assert progress.of_jobs([of_store]) == progress.of_jobs([of_rest])
    assert progress.of_jobs([of_store | {"submissionTime": None}]) == ()
    assert progress.of_jobs([of_store | {"completionTime": None}])[0].ended_ms is None
    assert "jobs" not in progress.Progress().as_json()
