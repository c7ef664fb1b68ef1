"""Traces of a scenario, received by a collector over real HTTP in OTLP."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.scenario import Scenario, chain, dag

from paceline.states import TaskState
from scheduler.process import trace_context
from scheduler.store.worker.claims import Claim, Ending
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
