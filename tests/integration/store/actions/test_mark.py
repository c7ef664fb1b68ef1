"""Marking: a person sets the final state of task instances or runs."""

from datetime import UTC, datetime

import pytest
from support.run_actions import brief, clear_, end, failing, mark_, running
from support.scenario import Scenario, chain, dag

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from paceline.states import RunState, TaskState
from scheduler.store.actions import delete, mark
from scheduler.store.db.database import rehearse, transact
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Deferral, Ending

S = TaskState


def test_a_waiting_task_instance_takes_the_state_and_the_run_continues(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"], "c": ["b"]}), run_id="r")
    claim = running(scenario)

    assert brief(mark_(scenario, S.SUCCESS, "b")) == [("b", -1, None, "success")]

    assert end(scenario, claim)
    scenario.run_to_end()
    assert scenario.states(run) == {"a": "success", "b": "success", "c": "success"}
    assert scenario.rows("select try_number from task_instance order by id") == [(1,), (0,), (1,)]


def test_the_message_of_a_queued_task_instance_is_dropped(scenario: Scenario) -> None:
    scenario.start(chain("d", 1), run_id="r")
    (message,) = scenario.messages()

    mark_(scenario, S.SKIPPED, "t000")

    assert scenario.claim(message) is None
    scenario.run_to_end()
    assert scenario.states() == {"t000": "skipped"}


@pytest.mark.parametrize("state", mark.STATES)
def test_a_running_task_instance_is_stopped_first(scenario: Scenario, state: S) -> None:
    scenario.triggered(chain("d", 1), run_id="r")
    claim = running(scenario)

    assert brief(mark_(scenario, state, "t000")) == [("t000", -1, "running", "shutdown")]
    assert mark_(scenario, state, "t000") == []

    assert not end(scenario, claim, S.FAILED if state is S.SUCCESS else S.SUCCESS)
    assert scenario.states() == {"t000": state.value}


def test_of_a_clear_and_a_mark_the_last_counts(scenario: Scenario) -> None:
    run = scenario.triggered(chain("d", 1), run_id="r")
    claim = running(scenario)

    clear_(scenario)
    mark_(scenario, S.FAILED, "t000")
    mark_(scenario, S.SKIPPED, "t000")

    end(scenario, claim)
    scenario.run_to_end()
    assert scenario.states() == {"t000": "skipped"}
    assert scenario.run_state(run) == "success"


def test_a_run_that_ended_keeps_its_state_unless_its_failed_tasks_are_cleared(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"], "c": ["b"]}), run_id="r")
    scenario.run_to_end(outcome=failing("a"))

    mark_(scenario, S.SUCCESS, "a")
    assert scenario.run_state(run) == "failed"
    assert scenario.states() == {"a": "success", "b": "upstream_failed", "c": "upstream_failed"}

    changes = mark_(scenario, S.SUCCESS, "a", clear_downstream=True)
    assert brief(changes) == [("b", -1, "upstream_failed", "none"), ("c", -1, "upstream_failed", "none")]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_past_future_upstream_and_downstream(scenario: Scenario) -> None:
    scenario.add(dag("d", {"a": [], "b": ["a"], "c": ["b"]}))
    for day in (1, 2, 3):
        scenario.trigger("d", run_id=f"r{day}", logical_date=datetime(2025, 1, day, tzinfo=UTC))

    def dry(**options: object) -> list[str]:
        changes = mark_(scenario, S.FAILED, dry_run=True, **options)
        return [f"{change.run_id}{change.task_id}" for change in changes]

    only = Tasks(task_ids=("b",))
    assert dry(runs=Runs(dag_id="d", run_id="r2", past=True), tasks=only) == ["r1b", "r2b"]
    assert dry(runs=Runs(dag_id="d", run_id="r2", future=True), tasks=only) == ["r2b", "r3b"]
    assert dry(runs=Runs(dag_id="d", run_id="r2", past=True, future=True), tasks=only) == ["r1b", "r2b", "r3b"]
    assert dry(run_id="r1", tasks=Tasks(task_ids=("b",), upstream=True)) == ["r1a", "r1b"]
    assert dry(run_id="r1", tasks=Tasks(task_ids=("b",), downstream=True)) == ["r1b", "r1c"]
    assert scenario.rows("select count(*) from task_instance where state is not null") == [(0,)]


def test_a_run_marked_failed_stays_failed_when_its_last_task_ends(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": ["a"], "x": []}), run_id="r")
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert end(scenario, claims["x"])

    changes = transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)

    assert sorted(brief(changes)) == [("a", -1, "running", "shutdown"), ("b", -1, None, "skipped")]
    assert scenario.run_state(run) == "failed"
    end(scenario, claims["a"])
    scenario.turn()
    assert scenario.states() == {"a": "failed", "b": "skipped", "x": "success"}
    assert scenario.run_state(run) == "failed"


@pytest.mark.parametrize(
    ("ending", "becomes"),
    [
        (Ending(S.DEFERRED, delay_s=60, deferral=Deferral(classpath="x.Y", kwargs={})), "failed"),
        (Ending(S.UP_FOR_RESCHEDULE, delay_s=60), "failed"),
        (Ending(S.UP_FOR_RETRY, delay_s=60), "skipped"),
    ],
)
def test_a_task_that_waits_within_its_try_fails_with_its_run_as_a_running_one(
    scenario: Scenario, ending: Ending, becomes: str
) -> None:
    scenario.triggered(dag("d", {"a": []}, options={"a": {"retries": 1}}), run_id="r")
    assert scenario.follower.report(running(scenario), ending).is_stored

    changes = transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)

    assert brief(changes) == [("a", -1, ending.state.value, becomes)]
    assert scenario.states() == {"a": becomes}


def test_a_run_marked_success_has_succeeded_everywhere(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": ["a"], "x": []}), run_id="r")
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert end(scenario, claims["x"], S.FAILED)

    planned = rehearse(scenario.engine, mark.mark_run, "d", "r", RunState.SUCCESS)
    assert scenario.run_state(run) == "running"
    assert transact(scenario.engine, mark.mark_run, "d", "r", RunState.SUCCESS) == planned

    end(scenario, claims["a"], S.FAILED)
    scenario.turn()
    assert set(scenario.states().values()) == {"success"}
    assert scenario.run_state(run) == "success"


def test_marking_a_run_gives_its_place_to_the_next(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1, max_active_runs=1), run_id="r")
    following = scenario.trigger("d", run_id="next")
    scenario.turn()

    transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)
    scenario.turn()

    assert scenario.run_state(following) == "running"


def test_states_that_cannot_be_marked_are_refused(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1), run_id="r")

    with pytest.raises(PacelineError, match="cannot be marked running"):
        mark_(scenario, S.RUNNING, "t000")
    with pytest.raises(PacelineError, match="cannot be marked queued"):
        transact(scenario.engine, mark.mark_run, "d", "r", RunState.QUEUED)
    with pytest.raises(NotFoundError, match="has no run 'other'"):
        transact(scenario.engine, mark.mark_run, "d", "other", RunState.FAILED)


def test_a_run_is_deleted_once_nothing_of_it_runs(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 2), run_id="r")
    claim = running(scenario)

    with pytest.raises(ConflictError, match="1 task instance of it runs: stop them with `paceline runs mark d r failed`"):
        transact(scenario.engine, delete.delete_run, "d", "r")

    transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)
    end(scenario, claim)
    transact(scenario.engine, delete.delete_run, "d", "r")
    assert scenario.rows("select 1 from dag_run union all select 1 from task_instance") == []
    with pytest.raises(NotFoundError):
        transact(scenario.engine, delete.delete_run, "d", "r")
    scenario.turn()


def test_a_message_of_a_deleted_run_finds_nothing(scenario: Scenario) -> None:
    scenario.start(chain("d", 2), run_id="r")

    transact(scenario.engine, delete.delete_run, "d", "r")

    assert scenario.work() == 0


def test_a_dag_is_deleted_with_all_that_is_its_own(scenario: Scenario) -> None:
    scenario.add(chain("d", 2))
    scenario.add(chain("d", 3))
    scenario.add(chain("other", 1))
    scenario.trigger("d", run_id="r")
    scenario.trigger("other")
    scenario.sql("insert into dag_file (path, modified_at, next_parse_at) values ('d.py', now(), now() + interval '1 day')")

    deleted = transact(scenario.engine, delete.delete_dag, "d")

    assert ([run.run_id for run in deleted.runs], deleted.file) == (["r"], "d.py")
    assert scenario.rows("select next_parse_at <= now() from dag_file") == [(True,)], "its file is read again at once"
    for table in ("dag", "dag_version", "dag_schedule", "dag_run"):
        assert scenario.rows(f"select dag_id from {table}") == [("other",)]
    with pytest.raises(NotFoundError, match="There is no DAG 'd'"):
        transact(scenario.engine, delete.delete_dag, "d")


def test_a_dag_with_running_tasks_is_not_deleted(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1), run_id="r")
    running(scenario)

    with pytest.raises(ConflictError, match="DAG 'd' cannot be deleted"):
        transact(scenario.engine, delete.delete_dag, "d")

    assert scenario.rows("select dag_id from dag") == [("d",)]
