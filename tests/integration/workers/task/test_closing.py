"""The pool process that reports the last task of a run closes the run, or leaves that to a scheduler."""

import threading
from collections.abc import Callable

import pytest
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import FAILURES, FINISHED, RunState, TaskState
from scheduler.deciding.evaluate import run_state
from scheduler.deciding.following import NO_MOVES
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import KEY, QUEUE_KEY, Wakeups
from scheduler.store.worker.claims import Claim, Ending
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import Follower

SUCCESS = Ending(TaskState.SUCCESS)
ONE = chain("c", 1)


def last(scenario: Scenario) -> Claim:
    """The claim of the only task that has a message."""
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    return claim


def woken(scenario: Scenario) -> set[str]:
    """The wakeups that were sent since the last call."""
    tokens = {token.decode() for key in (KEY, QUEUE_KEY) for token in scenario.broker.zrange(key, 0, -1)}
    scenario.broker.delete(KEY, QUEUE_KEY)
    return tokens


def test_the_last_report_closes_the_run_and_wakes_nobody(scenario: Scenario) -> None:
    run = scenario.start(dag("c", {"a": []}, notify=("dag_success",)))
    claim = last(scenario)
    woken(scenario)

    scenario.follower.report(claim, SUCCESS)

    assert scenario.run_state(run) == "success"
    assert woken(scenario) == set()
    assert scenario.rows("select kind, state from notice") == [("dag_success", "success")]
    (actor,) = scenario.rows("select actor from event where task_instance_id is null and to_state = 'success'")
    assert actor == (scenario.worker_id,)


def test_a_skipped_end_is_a_success(scenario: Scenario) -> None:
    run = scenario.start(ONE)

    scenario.follower.report(last(scenario), Ending(TaskState.SKIPPED))

    assert scenario.run_state(run) == "success"


def a_task_has_failed(scenario: Scenario, run: int) -> None:
    scenario.sql("update task_instance set state = 'failed', ended_at = clock_timestamp() where task_id = 'b'")


def it_ends_as_requested(scenario: Scenario, run: int) -> None:
    scenario.sql("update dag_run set requested_state = 'failed'")


def it_cannot_be_decided(scenario: Scenario, run: int) -> None:
    scenario.sql("update dag_run set scheduling_error = 'odd'")


def it_may_get_a_newer_version(scenario: Scenario, run: int) -> None:
    scenario.add(dag("c", {"a": [], "b": [], "new": []}))


def it_is_of_a_backfill(scenario: Scenario, run: int) -> None:
    scenario.sql(
        "with made as (insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess)"
        " select dag_id, version_id, now(), now(), 1, 'none' from dag_run returning id)"
        " update dag_run set backfill_id = made.id, run_type = 'backfill' from made"
    )


@pytest.mark.parametrize(
    "case", [a_task_has_failed, it_ends_as_requested, it_cannot_be_decided, it_may_get_a_newer_version, it_is_of_a_backfill]
)
def test_other_ends_are_left_to_a_scheduler(scenario: Scenario, case: Callable[[Scenario, int], None]) -> None:
    run = scenario.start(dag("c", {"a": [], "b": []}))
    first, second = (scenario.claim(message) for message in scenario.messages())
    assert first is not None and second is not None
    scenario.follower.report(second, SUCCESS)
    case(scenario, run)
    woken(scenario)

    scenario.follower.report(first, SUCCESS)

    assert scenario.run_state(run) == "running"
    assert f"run:{run}" in woken(scenario)


def test_a_run_that_another_process_holds_is_left_to_a_scheduler_without_waiting(scenario: Scenario) -> None:
    run = scenario.start(ONE)
    claim = last(scenario)
    with scenario.engine.begin() as other:
        other.exec_driver_sql("select from dag_run where id = %s for no key update", (run,))

        scenario.follower.report(claim, SUCCESS)

        assert f"run:{run}" in woken(scenario)
    assert scenario.run_state(run) == "running"
    scenario.turn()
    assert scenario.run_state(run) == "success"


def test_a_run_goes_on_while_a_task_is_running_and_nobody_is_woken(scenario: Scenario) -> None:
    run = scenario.start(dag("c", {"a": [], "b": []}))
    first, second = (scenario.claim(message) for message in scenario.messages())
    assert first is not None and second is not None
    woken(scenario)

    scenario.follower.report(first, SUCCESS)

    assert (scenario.run_state(run), woken(scenario)) == ("running", set())
    scenario.follower.report(second, SUCCESS)
    assert (scenario.run_state(run), woken(scenario)) == ("success", set())


def test_two_last_reports_at_once_close_the_run_without_a_scheduler(scenario: Scenario) -> None:
    """Both are stored before one of them looks for the end of the run."""
    run = scenario.start(dag("c", {"a": [], "b": []}))
    claims = [scenario.claim(message) for message in scenario.messages()]
    followers = [
        Follower(
            HotPath(scenario.settings, scenario.worker_id), Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True
        )
        for _ in claims
    ]
    reports = [
        threading.Thread(target=follower.report, args=(claim, SUCCESS)) for follower, claim in zip(followers, claims, strict=True)
    ]
    with scenario.engine.begin() as holder:
        holder.exec_driver_sql("select from task_instance order by id for update")
        for report in reports:
            report.start()
        eventually(lambda: scenario.rows("select count(*) from pg_locks where not granted")[0][0] >= 2)
    for report in reports:
        report.join(20)

    assert scenario.run_state(run) == "success"


def test_a_run_that_waited_for_the_end_begins_at_once(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, max_active_runs=1))
    first, second = (scenario.trigger("c", run_id=name) for name in ("first", "second"))
    scenario.turn()
    claim = last(scenario)
    assert scenario.run_state(second) == "queued"
    woken(scenario)

    scenario.follower.report(claim, SUCCESS)

    assert scenario.run_state(first) == "success"
    tokens = woken(scenario)
    assert tokens == {f"run:{first}", "plan"}
    scenario.schedulers[0].wake(tokens)
    scenario.turn(poll=False)
    assert scenario.run_state(second) == "running"


def test_a_run_whose_process_ended_before_it_closed_the_run_is_closed_by_the_next_sweep(scenario: Scenario) -> None:
    run = scenario.start(ONE)
    assert scenario.hot.report(last(scenario), SUCCESS, NO_MOVES).is_stored
    assert scenario.run_state(run) == "running"

    scenario.turn()

    assert scenario.run_state(run) == "success"


@pytest.mark.parametrize("state", sorted(FINISHED - FAILURES))
def test_what_a_worker_closes_as_a_success_is_one_for_a_scheduler(state: TaskState) -> None:
    assert run_state(ONE, {0: {-1: state}}) is RunState.SUCCESS
