"""Teardowns run whenever their setup succeeded, also after a mark, a timeout or a cancelled backfill ended the work."""

from collections.abc import Callable
from typing import Any

import pytest
from support.run_actions import brief, clear_, end, mark_, running
from support.scenario import Scenario, dag

from paceline.exceptions import ConflictError
from paceline.states import RunState, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import backfills, delete, mark
from scheduler.store.dags.dags import pause
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import rehearse, transact
from scheduler.store.runs.selection import Changes, Tasks
from scheduler.store.worker.claims import Claim

S = TaskState
TEARDOWN = {"is_teardown": True, "trigger_rule": "all_done_setup_success"}


def cluster(**options: Any) -> SerializedDag:
    """up -> work -> after -> down, where down tears up down."""
    own = {
        "up": {"is_setup": True},
        "work": {"setups": ("up",)},
        "after": {"setups": ("up",)},
        "down": TEARDOWN | {"setups": ("up",), "scope": ("work", "after")} | options.pop("down", {}),
    }
    return dag("d", {"up": [], "work": ["up"], "after": ["work"], "down": ["after"]}, options=own, **options)


def at_work(scenario: Scenario, new: SerializedDag | None = None) -> tuple[int, Claim]:
    """A run whose setup has succeeded, and the claim of its running work."""
    scenario.add(new or cluster())
    run = scenario.trigger("d", run_id="r")
    assert end(scenario, running(scenario))
    return run, running(scenario)


def mark_run(scenario: Scenario, state: RunState) -> Changes:
    return transact(scenario.engine, mark.mark_run, "d", "r", state)


def time_out(scenario: Scenario) -> None:
    scenario.sql("update dag_run set timeout_at = clock_timestamp() - interval '1 second'")
    scenario.turn()


def pause_and_mark(scenario: Scenario) -> None:
    transact(scenario.engine, pause, "d")
    mark_run(scenario, RunState.FAILED)


def mark_all_rows(scenario: Scenario, state: S) -> None:
    keys = [row[0] for row in scenario.rows("select id from task_instance where state is null or state = 'running'")]
    ((run,),) = scenario.rows("select id from dag_run")
    transact(scenario.engine, mark.mark_keys, run, keys, state, Versions(), dry_run=False)


def cancel(scenario: Scenario) -> None:
    """Cancel the backfill of a run that waits again, as after a clear of an earlier run."""
    scenario.sql("insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess, reverse, created_by)"
                 " select dag_id, version_id, now(), now(), 1, 'none', false, 'cli' from dag_run")  # fmt: skip
    scenario.sql("update dag_run set state = 'queued', started_at = null, backfill_id = (select id from backfill),"
                 " backfill_ordinal = 1")  # fmt: skip
    ((backfill,),) = scenario.rows("select id from backfill")
    transact(scenario.engine, backfills.cancel, backfill)


#: How the work ends, with the state of `work` and of the run afterwards.
ENDS: dict[str, tuple[Callable[[Scenario], object], str, str]] = {
    "run failed": (lambda scenario: mark_run(scenario, RunState.FAILED), "failed", "failed"),
    "run success": (lambda scenario: mark_run(scenario, RunState.SUCCESS), "success", "success"),
    "run failed in a paused DAG": (pause_and_mark, "failed", "failed"),
    "timeout": (time_out, "skipped", "failed"),
    "cancelled backfill": (cancel, "failed", "failed"),
    "downstream failed": (lambda scenario: mark_(scenario, S.FAILED, tasks=Tasks(task_ids=("work",), downstream=True)),
                          "failed", "failed"),
    "downstream success": (lambda scenario: mark_(scenario, S.SUCCESS, tasks=Tasks(task_ids=("work",), downstream=True)),
                           "success", "success"),
    "upstream failed": (lambda scenario: mark_(scenario, S.FAILED, tasks=Tasks(task_ids=("after",), upstream=True)),
                        "failed", "failed"),
    "group": (lambda scenario: mark_(scenario, S.FAILED, "up", "work", "after", "down"), "failed", "failed"),
    "filter": (lambda scenario: mark_all_rows(scenario, S.FAILED), "failed", "failed"),
}  # fmt: skip


@pytest.mark.parametrize("who", ENDS)
def test_the_teardown_runs_and_the_run_keeps_its_state(scenario: Scenario, who: str) -> None:
    ends, work, state = ENDS[who]
    run, claim = at_work(scenario)

    ends(scenario)

    assert scenario.states(run)["work"] == "shutdown", "it is stopped at once"
    assert not end(scenario, claim)
    scenario.run_to_end()
    states = scenario.states(run)
    assert (states["up"], states["work"], states["down"]) == ("success", work, "success")
    assert scenario.rows("select try_number from task_instance where task_id = 'down'") == [(1,)], "it ran"
    assert scenario.rows("select state, requested_state, ended_at is null from dag_run") == [(state, None, False)]


@pytest.mark.parametrize("state", [RunState.SUCCESS, RunState.FAILED])
def test_a_run_whose_setup_did_not_succeed_ends_at_once(scenario: Scenario, state: RunState) -> None:
    scenario.add(cluster())
    run = scenario.trigger("d", run_id="r")

    changes = mark_run(scenario, state)

    becomes = "success" if state is RunState.SUCCESS else "skipped"
    assert brief(changes) == [(name, -1, None, becomes) for name in ("up", "work", "after", "down")]
    assert changes.teardowns == []
    assert scenario.run_state(run) == state.value


def test_a_running_setup_is_stopped_and_its_teardown_runs_only_after_a_mark_as_success(scenario: Scenario) -> None:
    scenario.add(cluster())
    run = scenario.trigger("d", run_id="r")
    claim = running(scenario)

    assert rehearse(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED).teardowns == []
    assert mark_run(scenario, RunState.SUCCESS).teardowns == ["down"], "it may have made something"

    end(scenario, claim)
    scenario.run_to_end()
    assert scenario.rows("select try_number from task_instance where task_id = 'down'") == [(1,)]
    assert scenario.run_state(run) == "success"


def test_meanwhile_the_run_is_running_counts_and_cannot_time_out_again(scenario: Scenario) -> None:
    run, claim = at_work(scenario, cluster(max_active_runs=1, dagrun_timeout_s=60))
    following = scenario.trigger("d", run_id="next")

    changes = mark_run(scenario, RunState.SUCCESS)
    assert changes.teardowns == ["down"]
    assert mark_run(scenario, RunState.SUCCESS) == [], "a second mark changes nothing"
    end(scenario, claim)
    scenario.turn()
    assert (scenario.run_state(run), scenario.run_state(following)) == ("running", "queued")

    mark_run(scenario, RunState.FAILED)
    time_out(scenario)
    assert scenario.run_state(run) == "running"
    scenario.run_to_end()
    assert (scenario.run_state(run), scenario.run_state(following)) == ("failed", "success")


@pytest.mark.parametrize(("strict", "state"), [(False, "success"), (True, "failed")])
def test_a_failing_teardown_changes_the_state_only_with_on_failure_fail_dagrun(
    scenario: Scenario, strict: bool, state: str
) -> None:
    run, claim = at_work(scenario, cluster(down={"on_failure_fail_dagrun": strict}))

    mark_run(scenario, RunState.SUCCESS)
    end(scenario, claim)
    scenario.run_to_end(outcome=lambda claim: S.FAILED)

    assert scenario.states(run)["down"] == "failed"
    assert scenario.run_state(run) == state


def test_a_teardown_that_hangs_ends_by_a_mark_of_its_own(scenario: Scenario) -> None:
    run, claim = at_work(scenario)
    mark_run(scenario, RunState.SUCCESS)
    end(scenario, claim)
    teardown = running(scenario)

    assert brief(mark_(scenario, S.FAILED, "down")) == [("down", -1, "running", "shutdown")]

    end(scenario, teardown)
    scenario.turn()
    assert scenario.states(run)["down"] == "failed"
    assert scenario.run_state(run) == "success"


def test_a_run_and_its_dag_are_deleted_only_after_the_teardown(scenario: Scenario) -> None:
    scenario.add(cluster())
    scenario.trigger("d", run_id="r")
    assert end(scenario, running(scenario))

    for what, names in ((delete.delete_run, ("d", "r")), (delete.delete_dag, ("d",))):
        with pytest.raises(ConflictError, match=r"cannot be deleted before its teardowns have ended \(down\): mark"):
            transact(scenario.engine, what, *names)

    mark_run(scenario, RunState.FAILED)
    scenario.run_to_end()
    transact(scenario.engine, delete.delete_run, "d", "r")
    assert scenario.rows("select 1 from dag_run") == []


def test_clearing_meanwhile_starts_the_run_again(scenario: Scenario) -> None:
    run, claim = at_work(scenario, cluster(dagrun_timeout_s=60))
    time_out(scenario)
    end(scenario, claim)

    clear_(scenario, Tasks(task_ids=("work",), downstream=True))

    assert scenario.rows("select state, requested_state, timeout_at from dag_run") == [("queued", None, None)]
    scenario.run_to_end()
    assert set(scenario.states(run).values()) == {"success"}
    assert scenario.run_state(run) == "success"


def test_each_instance_of_a_mapped_group_and_each_nested_scope_is_torn_down_if_it_was_set_up(scenario: Scenario) -> None:
    group: dict[str, Any] = {"mapped_group": "one", "expand": {"kind": "product", "inputs": [{"literal": 2}]}}
    own = {
        "outer": {"is_setup": True},
        "one.up": group | {"is_setup": True, "setups": ("outer",)},
        "one.work": group | {"setups": ("outer", "one.up")},
        "one.down": group | TEARDOWN | {"setups": ("one.up",), "scope": ("one.work",)},
        "end": TEARDOWN | {"setups": ("outer",), "scope": ("one.up", "one.work", "one.down")},
    }
    edges: dict[str, list[str]] = {
        "outer": [], "one.up": ["outer"], "one.work": ["one.up"], "one.down": ["one.work"], "end": ["one.down"],
    }  # fmt: skip
    run = scenario.triggered(dag("d", edges, options=own), run_id="r")
    assert end(scenario, running(scenario))
    scenario.turn()
    claims = {claim.map_index: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert end(scenario, claims[1])

    changes = mark_run(scenario, RunState.FAILED)
    assert changes.teardowns == ["end", "one.down"]
    assert ("one.down", 0, None, "skipped") in brief(changes)

    end(scenario, claims[0])
    scenario.run_to_end()
    states = scenario.states(run)
    assert {name: states[name] for name in ("one.down[0]", "one.down[1]", "end")} == {
        "one.down[0]": "skipped", "one.down[1]": "success", "end": "success",
    }  # fmt: skip
    assert scenario.run_state(run) == "failed"


def test_a_new_version_adds_nothing_to_a_run_with_only_teardowns_left(scenario: Scenario) -> None:
    run, claim = at_work(scenario, cluster(disable_bundle_versioning=True))
    mark_run(scenario, RunState.FAILED)
    newer = cluster(disable_bundle_versioning=True)
    scenario.add(SerializedDag.from_json(newer.to_json().replace('"after"', '"new"')))

    end(scenario, claim)
    scenario.run_to_end()

    assert scenario.states(run)["down"] == "success"
    assert "new" not in scenario.states(run)
    assert scenario.run_state(run) == "failed"


def test_a_teardown_that_waits_in_a_paused_dag_runs_when_its_run_is_marked(scenario: Scenario) -> None:
    _, work = at_work(scenario)
    transact(scenario.engine, pause, "d")
    assert end(scenario, work, S.FAILED)
    for _ in range(3):
        scenario.turn()
    assert (scenario.states()["down"], scenario.messages()) == ("scheduled", [])

    mark_run(scenario, RunState.FAILED)
    scenario.run_to_end()

    assert scenario.states()["down"] == "success"
    assert scenario.rows("select state from dag_run") == [("failed",)]
