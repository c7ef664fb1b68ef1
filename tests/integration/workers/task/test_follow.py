"""Fast-follow: which tasks a worker queues after a finished task, and which it leaves to the scheduler."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.run_actions import running as claim_one
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.store.worker.claims import Ending
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import Follower

SUCCESS = Ending(TaskState.SUCCESS)


def queued_by(scenario: Scenario) -> list[str]:
    return [row[0].split("#")[0] for row in scenario.rows("select queued_by from task_instance order by id")]


def test_a_chain_is_queued_by_its_worker_after_the_first_task(scenario: Scenario) -> None:
    scenario.add(chain("c", 100))
    run = scenario.trigger("c")

    scenario.run_to_end()

    assert scenario.run_state(run) == "success"
    assert queued_by(scenario) == ["s0"] + ["w"] * 99
    assert scenario.rows("select distinct try_number, state from task_instance") == [(1, "success")]


def test_with_following_off_the_scheduler_queues_everything(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(follow=False)
    scenario.add(chain("c", 20))
    run = scenario.trigger("c")

    scenario.run_to_end()

    assert scenario.run_state(run) == "success"
    assert set(queued_by(scenario)) == {"s0"}


def test_the_last_of_two_siblings_queues_the_join(scenario: Scenario) -> None:
    scenario.add(dag("j", {"a": [], "b": [], "join": ["a", "b"]}))
    scenario.trigger("j")
    scenario.turn()
    first, second = (scenario.claim(message) for message in scenario.messages())
    assert first and second

    scenario.follower.report(first, SUCCESS)
    assert scenario.states()["join"] == "none"
    scenario.follower.report(second, SUCCESS)

    assert scenario.states()["join"] == "queued"


def test_an_error_while_following_leaves_the_report_and_wakes_a_scheduler(scenario: Scenario, tmp_path: Path) -> None:
    scenario.add(dag("j", {"a": [], "b": [], "join": ["a", "b"]}))
    run = scenario.trigger("j")
    scenario.turn()
    first, second = (scenario.claim(message) for message in scenario.messages())
    assert first and second
    scenario.follower.report(first, SUCCESS)
    wakeups = Wakeups(scenario.settings)
    wakeups.wait(0.0)
    faults = {fault_points.FAULTS: "follow.commit=raise", fault_points.FOLDER: str(tmp_path)}
    fault_points.arm(faults, scenario.settings.database_url)
    try:
        assert scenario.follower.report(second, SUCCESS).is_stored
    finally:
        fault_points.arm({}, scenario.settings.database_url)

    assert (tmp_path / "struck").exists()
    assert scenario.states() == {"a": "success", "b": "success", "join": "none"}
    assert wakeups.wait(1.0) == {"queue", "plan", "notify", f"run:{run}", f"next:{run}"}


def test_two_last_siblings_at_once_queue_the_join_exactly_once(scenario: Scenario) -> None:
    """Each reports on its own connection; neither may think the other unfinished for good, and the join is queued once."""
    scenario.add(dag("j", {"a": [], "b": [], "join": ["a", "b"]}))
    followers = [
        Follower(HotPath(scenario.settings, "w"), Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
        for _ in range(2)
    ]
    for number in range(25):
        run = scenario.trigger("j", run_id=f"r{number}")
        scenario.turn()
        claims = [scenario.claim(message) for message in scenario.messages()]
        barrier = threading.Barrier(2)

        def report(index: int, claims: list = claims, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            followers[index].report(claims[index], SUCCESS)

        threads = [threading.Thread(target=report, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert scenario.states(run)["join"] == "queued"
        assert scenario.work() == 1
        assert scenario.states(run)["join"] == "success"


def test_a_successor_needs_the_same_pool_and_no_more_slots(scenario: Scenario) -> None:
    scenario.pool("other", 10)
    big = chain("big", 2)
    scenario.add(big)
    scenario.add(chain("elsewhere", 2))
    scenario.trigger("big")
    scenario.trigger("elsewhere")
    second = "where task_id = 't001' and dag_run_id = (select id from dag_run where dag_id = %s)"
    scenario.sql(f"update task_instance set pool_slots = 2 {second}", "big")
    scenario.sql(f"update task_instance set pool = 'other' {second}", "elsewhere")
    scenario.turn()

    scenario.work()

    assert scenario.rows("select distinct state from task_instance where task_id = 't001'") == [("scheduled",)]
    scenario.run_to_end()
    assert set(queued_by(scenario)) == {"s0"}


def test_a_waiting_task_of_the_pool_that_outranks_the_successor_goes_first(scenario: Scenario) -> None:
    scenario.pool("narrow", 1)
    scenario.add(chain("first", 3, task={"pool": "narrow", "priority_weight": 1}))
    scenario.add(chain("urgent", 1, task={"pool": "narrow", "priority_weight": 9}))
    scenario.trigger("first")
    running = claim_one(scenario)
    urgent = scenario.trigger("urgent")
    scenario.turn()

    scenario.follower.report(running, SUCCESS)
    scenario.turn()

    assert scenario.states(urgent) == {"t000": "queued"}
    assert scenario.rows("select state from task_instance where task_id = 't001'") == [("scheduled",)]


def test_a_lower_ranked_waiting_task_does_not_stop_the_successor(scenario: Scenario) -> None:
    scenario.pool("narrow", 1)
    scenario.add(chain("first", 2, task={"pool": "narrow", "priority_weight": 5}))
    scenario.add(chain("later", 1, task={"pool": "narrow", "priority_weight": 5}))
    scenario.trigger("first")
    running = claim_one(scenario)
    scenario.trigger("later")
    scenario.turn()

    scenario.follower.report(running, SUCCESS)

    assert scenario.rows("select state from task_instance where task_id = 't001'") == [("queued",)]


def test_nothing_follows_in_a_paused_dag(scenario: Scenario) -> None:
    scenario.add(chain("c", 2))
    scenario.trigger("c")
    scenario.turn()
    scenario.sql("update dag_schedule set is_paused = true")

    scenario.work()
    scenario.turn()

    assert scenario.states() == {"t000": "success", "t001": "scheduled"}


def test_a_report_of_another_dispatch_is_refused_and_follows_nothing(scenario: Scenario) -> None:
    scenario.add(chain("c", 2))
    scenario.trigger("c")
    claim = claim_one(scenario)
    scenario.sql("update task_instance set dispatch_id = gen_random_uuid() where task_id = 't000'")

    assert scenario.follower.report(claim, SUCCESS).is_stored is False

    assert scenario.states() == {"t000": "running", "t001": "none"}


def test_a_report_repeated_after_a_lost_answer_counts_as_stored(scenario: Scenario) -> None:
    scenario.add(chain("c", 2))
    scenario.trigger("c")
    claim = claim_one(scenario)

    assert scenario.follower.report(claim, SUCCESS).is_stored is True
    assert scenario.follower.report(claim, SUCCESS).is_stored is True

    assert scenario.states() == {"t000": "success", "t001": "queued"}


def test_a_failure_settles_a_join_at_once_and_the_rest_travels_through_the_scheduler(scenario: Scenario) -> None:
    scenario.add(dag("f", {"a": [], "b": [], "join": ["a", "b"], "end": ["join"]}))
    run = scenario.trigger("f")
    scenario.turn()
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}

    scenario.follower.report(claims["a"], Ending(TaskState.FAILED))
    assert scenario.states() == {"a": "failed", "b": "running", "join": "upstream_failed", "end": "none"}

    assert f"run:{run}" in Wakeups(scenario.settings).wait(1)
    scenario.turn()
    assert scenario.states()["end"] == "upstream_failed"
    scenario.follower.report(claims["b"], SUCCESS)
    scenario.turn()
    assert scenario.run_state(run) == "failed"


def test_the_duplicate_of_a_message_finds_nothing_to_claim(scenario: Scenario) -> None:
    scenario.add(chain("c", 1))
    scenario.trigger("c")
    scenario.turn()
    message = scenario.messages()[0]

    assert scenario.claim(message) is not None
    assert scenario.claim(message) is None


def test_a_fan_in_reads_the_index_once_and_decides_only_at_its_end(scenario: Scenario) -> None:
    width = 300
    names = [f"m{number:04}" for number in range(width)]
    scenario.add(dag("fan", {**{name: [] for name in names}, "join": names}, max_active_tasks=2000))
    run = scenario.trigger("fan")

    scenario.run_to_end()

    assert scenario.run_state(run) == "success"
    assert scenario.rows("select queued_by like 'w#%%', try_number from task_instance where task_id = 'join'") == [(True, 1)]


def test_a_task_that_its_runs_new_version_has_not_is_reported_and_followed_by_nothing(scenario: Scenario) -> None:
    scenario.add(chain("d", 1))
    run = scenario.trigger("d")
    scenario.turn()
    scenario.sql("update task_instance set task_no = 1")  # where a switch of the version puts a task that is gone
    claim = scenario.claim(scenario.messages()[0])
    assert claim

    assert scenario.follower.report(claim, Ending(TaskState.FAILED, reason="no such task")).is_stored

    assert scenario.states(run) == {"t000": "failed"}


@pytest.mark.parametrize("below", [{"join": ["a", "b"]}, {}])
def test_the_report_that_is_stored_last_wakes_the_scheduler_if_no_other_report_could(
    scenario: Scenario, below: dict[str, list[str]]
) -> None:
    """Task b starts and ends while the report of a waits for its lock. That report then sees the end of b, and decides the join."""
    scenario.add(dag("j", {"a": [], "b": [], **below}))
    run = scenario.trigger("j")
    scenario.turn()
    messages = scenario.messages()
    first = scenario.claim(messages[0])
    assert first
    other = Follower(HotPath(scenario.settings, "w"), Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
    report = threading.Thread(target=other.report, args=(first, SUCCESS))
    wakeups = Wakeups(scenario.settings)
    with scenario.engine.begin() as holder:
        holder.exec_driver_sql("select from task_instance where id = %s for update", (first.id,))
        report.start()
        eventually(lambda: scenario.rows("select 1 from pg_locks where not granted"))
        second = scenario.claim(messages[1])
        assert second
        scenario.follower.report(second, SUCCESS)
        wakeups.wait(0.0)
    report.join(20)

    assert scenario.states() == {"a": "success", "b": "success", **dict.fromkeys(below, "queued")}
    assert (f"run:{run}" in wakeups.wait(0.0)) == (not below)
