"""A DAG changes while its runs are open: pinned runs keep their version, and other runs are adapted to the newest."""

from datetime import UTC, datetime
from typing import Any

import pytest
from support.run_actions import ALL, brief, clear_, end, push, running
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import clear
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.read import instances, reads, runs
from scheduler.store.runs import integrity
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Ending

S = TaskState
FREE = {"disable_bundle_versioning": True}


def follow(scenario: Scenario, run: int) -> int | None:
    """The call of promote for a run that it has locked."""
    return transact(scenario.engine, integrity.follow_newest, run, Versions(), default_queue="default")


def shape(scenario: Scenario) -> list[tuple[int, str, int, str]]:
    return scenario.rows("select task_no, task_id, map_index, coalesce(state, 'none') from task_instance order by 1, 3")


def literal(length: int, **options: Any) -> SerializedDag:
    each = {"expand": {"kind": "product", "inputs": [{"literal": length}]}}
    return dag("d", {"each": [], "after": ["each"]}, options={"each": each}, **options)


def version_of(scenario: Scenario) -> int:
    return scenario.rows("select v.number from dag_run r join dag_version v on v.id = r.version_id")[0][0]


def test_a_pinned_run_keeps_its_version(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"]}), run_id="r")
    scenario.add(dag("d", {"a": []}))

    assert follow(scenario, run) is None

    scenario.run_to_end()
    assert scenario.states() == {"a": "success", "b": "success"}


def test_a_run_with_the_newest_version_is_left_alone(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": []}, **FREE), run_id="r")

    assert follow(scenario, run) is None


def test_tasks_go_come_and_change_places(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "gone": ["a"], "c": ["gone"]}, **FREE), run_id="r")
    push(scenario, running(scenario))
    scenario.messages()  # of `gone`: no worker takes it
    scenario.add(dag("d", {"c": [], "new": ["c"], "a": ["new"]}, **FREE))

    assert follow(scenario, run) is not None

    assert shape(scenario) == [
        (0, "c", -1, "none"), (1, "new", -1, "none"), (2, "a", -1, "success"), (3, "gone", -1, "removed"),
    ]  # fmt: skip
    scenario.run_to_end()
    assert scenario.states() == {"a": "success", "gone": "removed", "c": "success", "new": "success"}
    assert scenario.run_state(run) == "success"


def test_a_task_that_comes_back_is_decided_again(scenario: Scenario) -> None:
    both = {"a": [], "b": ["a"]}
    run = scenario.triggered(dag("d", both, **FREE), run_id="r")
    scenario.add(dag("d", {"a": []}, **FREE))
    follow(scenario, run)
    assert scenario.states() == {"a": "none", "b": "removed"}

    scenario.add(dag("d", both, description="again", **FREE))
    follow(scenario, run)

    assert scenario.states() == {"a": "none", "b": "none"}
    scenario.run_to_end()
    assert scenario.states() == {"a": "success", "b": "success"}


def test_tasks_that_a_worker_has_are_left_to_end(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"]}, **FREE), run_id="r")
    claim = running(scenario)
    scenario.add(dag("d", {"new": [], "b": ["new"]}, **FREE))

    follow(scenario, run)

    assert shape(scenario) == [(0, "new", -1, "none"), (1, "b", -1, "none"), (2, "a", -1, "running")]
    assert end(scenario, claim), "the report of a task that is gone is taken"
    assert scenario.states()["b"] == "none", "the old version's edges are not followed"
    scenario.run_to_end()
    assert scenario.states() == {"a": "success", "b": "success", "new": "success"}
    assert scenario.run_state(run) == "success"


def test_a_branch_that_is_gone_when_it_ends_skips_nothing(scenario: Scenario) -> None:
    branches = {"branch": {"branches": True}, "other": {"branches": True}}
    run = scenario.triggered(dag("d", {"branch": [], "b": ["branch"]}, options=branches, **FREE), run_id="r")
    claim = running(scenario)
    scenario.add(dag("d", {"other": [], "b": ["other"]}, options=branches, **FREE))
    follow(scenario, run)

    assert scenario.follower.report(claim, Ending(state=S.SUCCESS, skip=("b",))).is_stored

    scenario.run_to_end(turns=20)
    assert scenario.states() == {"branch": "success", "other": "success", "b": "success"}


def test_a_new_task_outside_its_dates_is_not_created(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": []}, **FREE), run_id="r", logical_date=datetime(2025, 1, 10, tzinfo=UTC))
    dates = {
        "early": {"end_date": "2025-01-09T00:00:00+00:00"},
        "late": {"start_date": "2025-01-11T00:00:00+00:00"},
        "now": {"start_date": "2025-01-09T00:00:00+00:00", "end_date": "2025-01-11T00:00:00+00:00"},
    }
    scenario.add(dag("d", {"a": [], "early": [], "late": [], "now": []}, options=dates, **FREE))

    follow(scenario, run)

    assert set(scenario.states()) == {"a", "now"}


def test_a_waiting_task_takes_over_queue_pool_priority_limits_and_retries(scenario: Scenario) -> None:
    scenario.pool("other", 4, queue="theirs")
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"]}, **FREE), run_id="r")
    claim = running(scenario)
    changed = {"pool": "other", "pool_slots": 2, "priority_weight": 7, "retries": 3, "max_active_tis_per_dag": 5}
    scenario.add(dag("d", {"a": [], "b": ["a"]}, task=changed | {"notify": ("on_failure",)}, **FREE))

    follow(scenario, run)

    columns = "pool, queue, pool_slots, priority_weight, rank, max_tries, max_active_tis_per_dag, notify"
    assert scenario.rows(f"select {columns} from task_instance order by id") == [
        ("default_pool", "default", 1, 1, 1, 0, None, None),
        ("other", "theirs", 2, 7, 7, 3, 5, ["on_failure"]),
    ], "what runs holds the slots it has"
    end(scenario, claim)


def test_a_literal_map_shrinks_and_grows(scenario: Scenario) -> None:
    scenario.add(literal(3, **FREE))
    run = scenario.trigger("d", run_id="r")
    push(scenario, running(scenario))
    scenario.sql("update task_instance set state = 'scheduled' where state = 'queued'")  # their messages were taken
    assert shape(scenario)[0][1:] == ("each", 0, "success")

    scenario.add(literal(2, **FREE))
    follow(scenario, run)
    assert [row[3] for row in shape(scenario) if row[1] == "each"][2] == "removed"

    scenario.add(literal(5, **FREE))
    follow(scenario, run)
    assert [row[2] for row in shape(scenario) if row[1] == "each"] == [0, 1, 2, 3, 4]
    scenario.run_to_end()
    assert {row[3] for row in shape(scenario)} == {"success"}
    assert scenario.rows("select sum(try_number) from task_instance where map_index = 0") == [(1,)]


def test_a_mapped_task_becomes_a_plain_task_and_back(scenario: Scenario) -> None:
    scenario.add(literal(3, **FREE))
    run = scenario.trigger("d", run_id="r")
    scenario.turn()
    scenario.messages()

    scenario.add(dag("d", {"each": [], "after": ["each"]}, **FREE))
    follow(scenario, run)
    assert [row[1:3] for row in shape(scenario)] == [("each", -1), ("after", -1)]

    clear_(scenario)
    scenario.add(literal(2, **FREE))
    follow(scenario, run)
    scenario.run_to_end()
    assert [row[1:] for row in shape(scenario)] == [
        ("each", 0, "success"), ("each", 1, "success"), ("after", -1, "success"),
    ]  # fmt: skip


def test_deadlines_go_along_with_their_tasks(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": []}, **FREE), run_id="r")
    scenario.sql(
        "insert into deadline (dag_run_id, task_no, kind, due_at) select %s, n, 'sla', now() from generate_series(0, 1) n", run
    )
    scenario.sql("update deadline set number = task_no")
    scenario.add(dag("d", {"b": [], "a": []}, **FREE))

    follow(scenario, run)

    assert scenario.rows("select task_no, number from deadline order by 1") == [(0, 1), (1, 0)]


def test_clear_runs_the_version_of_the_run_by_default(scenario: Scenario) -> None:
    scenario.finish(dag("d", {"a": []}), run_id="r")
    scenario.add(dag("d", {"a": [], "b": ["a"]}))

    clear_(scenario)
    assert version_of(scenario) == 1
    scenario.run_to_end()

    planned = clear_(scenario, Tasks(task_ids=("b",)), latest=True, dry_run=True)
    assert brief(planned) == [("b", -1, None, "created")]
    assert version_of(scenario) == 1, "a dry run switches nothing"

    assert clear_(scenario, Tasks(task_ids=("b",)), latest=True) == planned
    assert version_of(scenario) == 2
    scenario.run_to_end()
    assert scenario.states() == {"a": "success", "b": "success"}
    assert scenario.rows("select try_number from task_instance order by id") == [(2,), (1,)]


@pytest.mark.parametrize(
    ("bundle", "of_dag", "of_core", "asked", "number"),
    [
        ("dags-folder", None, None, None, 2),
        ("dags-folder", None, None, False, 1),
        ("dags-folder", None, False, None, 1),
        ("dags-folder", False, True, None, 1),
        ("sales", None, None, None, 1),
        ("sales", None, None, True, 2),
        ("sales", None, True, None, 2),
        ("sales", True, False, None, 2),
        (None, None, None, None, 1),
    ],
)
def test_a_cleared_run_of_the_dags_folder_takes_the_newest_version(
    scenario: Scenario, bundle: str | None, of_dag: bool | None, of_core: bool | None, asked: bool | None, number: int
) -> None:
    scenario.finish(dag("d", {"a": []}, rerun_with_latest_version=of_dag), run_id="r")
    scenario.add(dag("d", {"a": [], "b": ["a"]}, rerun_with_latest_version=of_dag))
    if bundle is not None:
        columns = "bundle, number, digest, file_count, byte_count, created_by"
        scenario.sql("insert into bundle (name) values (%s)", bundle)
        scenario.sql(f"insert into bundle_version ({columns}) values (%s, 1, '', 0, 0, '')", bundle)
        scenario.sql("update dag_version set bundle_version_id = (select id from bundle_version)")
    core = scenario.settings.core.model_copy(update={"rerun_with_latest_version": of_core})
    runs = Runs(dag_id="d", run_id="r")

    changes = transact(scenario.engine, clear.clear, runs, ALL, core=core, latest=asked)

    assert version_of(scenario) == number
    assert changes.moved == ({"r": (1, 2)} if number == 2 else {})
    scenario.run_to_end()
    assert scenario.states() == {"a": "success"} | ({"b": "success"} if number == 2 else {})


def test_each_try_shows_the_version_that_it_executed(scenario: Scenario) -> None:
    edges = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
    scenario.triggered(dag("d", edges), run_id="r")
    scenario.run_to_end(outcome=lambda claim: S.FAILED if claim.task_id == "b" else S.SUCCESS)
    scenario.add(dag("d", edges, description="second"))
    clear_(scenario, Tasks(task_ids=("b",), downstream=True), latest=True)
    scenario.turn()
    (running,) = [claim for claim in map(scenario.claim, scenario.messages()) if claim]
    assert (running.task_id, running.try_number) == ("b", 2)
    scenario.add(dag("d", edges, description="third"))
    clear_(scenario, Tasks(task_ids=("c",)), latest=True)

    def executed(name: str) -> list[int]:
        row = transact(scenario.engine, instances.instance, "d", "r", name)
        tries = transact(scenario.engine, instances.tries, row["id"])
        assert tries[-1]["version_number"] == row["version_number"]
        return [one["version_number"] for one in tries]

    assert executed("b") == [1, 2], "its claim has the second version, and the run has the third"
    end(scenario, running)
    scenario.run_to_end()

    assert {name: executed(name) for name in edges} == {"a": [1], "b": [1, 2], "c": [1, 3], "d": [3]}
    shown = transact(scenario.engine, runs.run, "d", "r")
    assert ([row["version_number"] for row in shown["earlier_versions"]], shown["version_number"]) == ([1, 2], 3)
    listed = transact(scenario.engine, reads.task_instances, "d", "r")
    assert {row["task_id"]: row["dag_version"] for row in listed} == {"a": 1, "b": 2, "c": 3, "d": 3}


def test_the_dag_and_then_the_settings_choose_the_version_that_clear_runs(make_scenario: Any) -> None:
    scenario = make_scenario(core={"rerun_with_latest_version": True})
    for dag_id, option in (("yes", True), ("no", False), ("unset", None)):
        scenario.add(dag(dag_id, {"a": []}))
        scenario.trigger(dag_id, run_id="r")
        scenario.run_to_end()
        scenario.add(dag(dag_id, {"a": []}, rerun_with_latest_version=option, description="new"))
        clear_(scenario, dag_id=dag_id)
    numbers = scenario.rows("select r.dag_id, v.number from dag_run r join dag_version v on v.id = r.version_id order by r.id")
    assert dict(numbers) == {"yes": 2, "no": 1, "unset": 2}
    clear_(scenario, dag_id="no", latest=True)
    scenario.run_to_end()


def test_a_failed_task_that_is_gone_no_longer_stands_in_the_way(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "bad": ["a"], "c": ["bad"]}), run_id="r")
    scenario.run_to_end(outcome=lambda claim: S.FAILED if claim.task_id == "bad" else S.SUCCESS)
    scenario.add(dag("d", {"a": [], "c": ["a"]}))

    changes = clear_(scenario, Tasks(states={S.FAILED, S.UPSTREAM_FAILED}), latest=True)

    assert brief(changes) == [("bad", -1, "failed", "removed"), ("c", -1, "upstream_failed", "none")]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"
    assert scenario.states() == {"a": "success", "bad": "removed", "c": "success"}
