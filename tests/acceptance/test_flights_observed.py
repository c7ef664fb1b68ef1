"""A flights run on the embedded stack: one trace has all its tasks and Spark jobs, and its lineage events are complete."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.collector import Collector
from support.standalone import START_S, STOP_S, ask, environment_of, standalone
from support.waiting import eventually

pytestmark = [pytest.mark.on_demand, pytest.mark.stack, pytest.mark.spark, pytest.mark.timeout(900)]

DAGS = Path(__file__).parents[2] / "dags"
#: On a machine that is busy with other work. Alone, the run takes a minute.
RUN_S = 600.0


def test_the_flights_run_is_one_trace_and_has_its_lineage(short_folder: Path) -> None:
    collector = Collector()
    events = short_folder / "lineage.json"
    environment = environment_of(short_folder / "home", DAGS) | {
        "PACELINE_TRACING_OTLP_ENDPOINT": collector.url,
        "PACELINE_LINEAGE_URL": f"file://{events}",
        "PACELINE_METRICS_INTERVAL": "1",
    }
    with standalone(environment) as process:
        eventually(lambda: '"flights"' in ask(environment, "dags", "list", "--json"), timeout=START_S, interval=0.5)
        ask(environment, "dags", "trigger", "flights", "--run-id", "one")
        run: dict[str, Any] = {}

        def ended() -> bool:
            run.update(json.loads(ask(environment, "runs", "show", "flights", "one", "--json", ok=(0, 1))))
            return run["state"] in ("success", "failed")

        eventually(ended, timeout=RUN_S, interval=2.0, message=lambda: str(run))
        eventually(lambda: collector.named("run flights"), timeout=30)
        process.terminate()
        assert process.wait(STOP_S) == 0
    collector.close()
    assert run["state"] == "success"
    _check_trace(collector, run)
    _check_lineage([json.loads(line) for line in events.read_text().splitlines()], run)


def _check_trace(collector: Collector, run: dict[str, Any]) -> None:
    (root,) = collector.named("run flights")
    spans = [span for span in collector.spans if span.trace_id == root.trace_id]
    by_id = {span.span_id: span for span in spans}
    tries = [span for span in spans if span.parent_span_id == root.span_id and span.name.startswith("task ")]
    jobs = [span for span in spans if span.name.startswith("Spark job ")]
    executed = [task for task in run["tasks"] if task["started_at"] is not None]

    assert sorted(span.name for span in tries) == sorted(f"task flights.{task['task_id']}" for task in executed)
    assert len(jobs) >= 12 and {by_id[job.parent_span_id].name for job in jobs} >= {"task flights.month"}
    assert {span.name for span in spans} >= {"promote", "queue", "execute", "start"}
    assert all(span.parent_span_id in by_id for span in spans if span is not root)


def _check_lineage(events: list[dict[str, Any]], run: dict[str, Any]) -> None:
    """With the published schema, OpenLineage.json, if a file is named: it is not part of this repository."""
    events = [event for event in events if event["job"]["name"].partition(".")[0] == "flights"]
    if path := os.environ.get("OPENLINEAGE_SCHEMA"):
        validator = jsonschema.Draft202012Validator(json.loads(Path(path).read_text()))
        for event in events:
            validator.validate(event)
    ends = [event["job"]["name"] for event in events if event["eventType"] == "COMPLETE"]
    executed = [task for task in run["tasks"] if task["started_at"] is not None]

    assert sorted(ends) == sorted(["flights", *(f"flights.{task['task_id']}" for task in executed)])
    frames = [dataset for event in events for dataset in event["outputs"] if "schema" in dataset["facets"]]
    assert frames and all(frame["facets"]["schema"]["fields"] for frame in frames)
    assert any(event["inputs"] for event in events)
