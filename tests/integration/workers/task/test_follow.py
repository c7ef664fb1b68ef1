"""Fast-follow: which tasks a worker queues after a finished task, and which it leaves to the scheduler."""

import threading
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
    run = scenario.triggered(chain("c", 100))

    scenario.run_to_end()

    assert scenario.run_state(run) == "success"
    assert queued_by(scenario) == ["s0"] + ["w"] * 99
    assert scenario.rows("select distinct try_number, state from task_instance") == [(1, "success")]


def test_an_error_while_following_leaves_the_report_and_wakes_a_scheduler(scenario: Scenario, tmp_path: Path) -> None:
    run = scenario.start(dag("j", {"a": [], "b": [], "join": ["a", "b"]}))
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


def test_a_report_of_another_dispatch_is_refused_and_follows_nothing(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 2))
    claim = claim_one(scenario)
    scenario.sql("update task_instance set dispatch_id = gen_random_uuid() where task_id = 't000'")

    assert scenario.follower.report(claim, SUCCESS).is_stored is False

    assert scenario.states() == {"t000": "running", "t001": "none"}


def test_a_report_repeated_after_a_lost_answer_counts_as_stored(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 2))
    claim = claim_one(scenario)

    assert scenario.follower.report(claim, SUCCESS).is_stored is True
    assert scenario.follower.report(claim, SUCCESS).is_stored is True

    assert scenario.states() == {"t000": "success", "t001": "queued"}


def test_the_duplicate_of_a_message_finds_nothing_to_claim(scenario: Scenario) -> None:
    scenario.start(chain("c", 1))
    message = scenario.messages()[0]

    assert scenario.claim(message) is not None
    assert scenario.claim(message) is None


@pytest.mark.parametrize("below", [{"join": ["a", "b"]}, {}])
def test_the_report_that_is_stored_last_wakes_the_scheduler_if_no_other_report_could(
    scenario: Scenario, below: dict[str, list[str]]
) -> None:
    """Task b starts and ends while the report of a waits for its lock. That report then sees the end of b, and decides the join."""
    run = scenario.start(dag("j", {"a": [], "b": [], **below}))
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
