"""OpenLineage events of a scenario: written to a file, and sent to an unreachable server."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.store.worker.claims import Claim, Ending
from scheduler.telemetry.follower import Follower

from .conftest import observed_by

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
