"""What rules do after retention has deleted earlier runs: each row of the last table of docs/reference/what-counts.md."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Scenario, chain, dag

from paceline.authoring.triggers import Target
from scheduler.deciding import past
from scheduler.store.dags import dags
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.runs import deadlines, run_facts
from scheduler.store.upkeep import retention
from scheduler.store.worker import external_runs

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "what-counts.md"


def meaning(rule: str) -> str:
    """The cell of a rule in the last table of the page."""
    lines = PAGE.read_text(encoding="utf-8").partition("## Runs that retention has deleted")[2].splitlines()
    [line] = [line for line in lines if line.startswith(f"| {rule}")]
    return line.split("|")[2].strip()


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def old(scenario: Scenario, number: int, state: str = "success", run_type: str = "scheduled", took_s: int = 10) -> int:
    """A run of `d` on a day of a past month, which ended on that day."""
    run = scenario.trigger("d", run_id=f"r{number}", logical_date=day(number))
    scenario.run_to_end()
    scenario.sql(
        "update dag_run set state = %s, run_type = %s, started_at = %s, ended_at = %s where id = %s",
        state, run_type, day(number), day(number) + timedelta(seconds=took_s), run,
    )  # fmt: skip
    return run


def left(scenario: Scenario) -> list[str]:
    """The runs that retention leaves."""
    transact(scenario.engine, retention.delete_runs, datetime(2026, 3, 1, tzinfo=UTC))
    return [row[0] for row in scenario.rows("select run_id from dag_run order by logical_date")]


@pytest.mark.parametrize("run_type", ["scheduled", "manual"])
def test_a_dag_that_fails_seldom_is_paused_after_its_last_runs_failed(scenario: Scenario, run_type: str) -> None:
    scenario.add(chain("d", 1, max_consecutive_failed_dag_runs=3))
    for number, state in enumerate(["failed", "success", "failed", "failed", "failed"], 1):
        if number == 5:
            assert [run for run in left(scenario) if run != "r2"] == ["r3", "r4"], "r1 failed before a success"
        last = old(scenario, number, state, run_type)

    assert transact(scenario.engine, dags.pause_if_failing, [last]) == {"d": 3}
    assert meaning("`max_consecutive").startswith("kept")


def test_only_as_many_failed_runs_stay_as_count(scenario: Scenario) -> None:
    scenario.add(chain("d", 1, max_consecutive_failed_dag_runs=2))
    for number in range(1, 6):
        old(scenario, number, "failed", "manual")

    assert left(scenario) == ["r4", "r5"]


@pytest.mark.parametrize(("run_type", "found"), [("scheduled", day(1)), ("manual", None)])
def test_the_previous_success(scenario: Scenario, run_type: str, found: datetime | None) -> None:
    scenario.add(chain("d", 1))
    old(scenario, 1, run_type=run_type)
    for number in (2, 3):
        old(scenario, number, "failed")
    left(scenario)
    run = scenario.trigger("d", run_id="new", logical_date=day(9))

    with scenario.engine.begin() as connection:
        success = external_runs.previous_success(EngineReader(connection), run)

    assert (success and success[2]) == found
    assert meaning("`prev_start_date_success`").startswith("kept")


def test_the_average_of_the_runs_that_are_left(scenario: Scenario) -> None:
    average: dict[str, Any] = {"reference": "average_runtime", "interval_s": 0.0, "at": None, "max_runs": 9, "name": None}
    graph = dag("d", {"a": []}, deadlines=({**average, "min_runs": 1}, {**average, "min_runs": 2}))
    scenario.add(graph)
    for number, took_s in ((1, 1000), (2, 1000), (3, 20)):
        old(scenario, number, took_s=took_s)
    assert left(scenario) == ["r3"]
    run = scenario.trigger("d", run_id="new", logical_date=day(9))
    scenario.sql("delete from deadline")

    with scenario.engine.begin() as connection:
        deadlines.plan(connection, graph, run)

    due = scenario.rows("select d.number, d.due_at - r.queued_at from deadline d join dag_run r on r.id = d.dag_run_id")
    assert due == [(0, timedelta(seconds=20))]
    assert meaning("`AVERAGE_RUNTIME`").startswith("not kept: the average of the runs that are left")


@pytest.mark.parametrize("ignores_first", [True, False])
def test_a_task_whose_only_earlier_run_is_deleted(scenario: Scenario, ignores_first: bool) -> None:
    options = {"a": {"depends_on_past": True, "ignore_first_depends_on_past": ignores_first}, "b": {"depends_on_past": True}}
    graph = dag("d", {"a": [], "b": []}, options=options)
    scenario.add(graph)
    runs = [old(scenario, number) for number in (1, 2)]
    scenario.sql("update task_instance set state = 'failed' where dag_run_id = %s", runs[0])
    scenario.sql("update task_instance set state = 'removed' where dag_run_id = %s and task_id = 'a'", runs[1])
    assert left(scenario) == ["r2"]
    run = scenario.trigger("d", run_id="new", logical_date=day(9))

    with scenario.engine.begin() as connection:
        waits = past.waits(graph, run_facts.before(connection, run, past.relevant(graph), catchup=False))

    assert list(waits) == ([] if ignores_first else [0])
    assert "treated as in its first run" in meaning("`depends_on_past`")


def test_a_sensor_waits_for_a_deleted_run(scenario: Scenario) -> None:
    graph = chain("d", 1)
    scenario.add(graph)
    for number in (1, 2):
        old(scenario, number)
    assert left(scenario) == ["r2"]

    with scenario.engine.begin() as connection:
        answers = external_runs.states(
            EngineReader(connection), lambda _: graph, [Target(dag_id="d", logical_date=day(number)) for number in (1, 2)]
        )

    assert answers == [{}, {"success": 1}]
    assert meaning("ExternalTaskSensor").startswith("not kept: a deleted run is as one that does not exist yet")
