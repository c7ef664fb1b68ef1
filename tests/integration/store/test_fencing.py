"""A process that was away does no harm on return, and a dead process holds nothing."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.scenario import Scenario, chain
from support.waiting import eventually

from paceline.exceptions import StaleTryError
from paceline.states import TaskState
from scheduler.messaging.publisher import Publisher
from scheduler.services.rescue import Rescue
from scheduler.store.dags import files
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.worker import claims, xcoms
from scheduler.store.worker.claims import Ending

Make = Callable[..., Scenario]
LONG_AGO = "clock_timestamp() - interval '1 hour'"


def silent(scenario: Scenario, kind: str) -> None:
    scenario.sql(f"update process set heartbeat_at = {LONG_AGO} where kind = %s", kind)


def rescue_of(scenario: Scenario) -> Rescue:
    """Once the session's PostgreSQL, and the note that it has not crashed, are older than any timeout here."""
    transact(scenario.engine, claims.note_crash_free)
    old = "select clock_timestamp() > greatest(pg_postmaster_start_time(), (select since from crash_free)) + interval '0.5 s'"
    eventually(lambda: scenario.rows(old) == [(True,)])
    return Rescue(scenario.engine, scenario.settings, Publisher(scenario.settings), scenario.brokers)


def stopped(scenario: Scenario, kind: str) -> bool:
    return bool(scenario.rows("select bool_and(stopped_at is not null) from process where kind = %s", kind)[0][0])


def expire(scenario: Scenario, *, worker_timeout_s: float = 0.1, scheduler_timeout_s: float = 0.1) -> list[str]:
    return transact(
        scenario.engine,
        processes.expire_lost,
        worker_timeout_s=worker_timeout_s,
        scheduler_timeout_s=scheduler_timeout_s,
        waiter_timeout_s=0.1,
    )[0]


def test_a_scheduler_that_was_stopped_gives_other_processes_time(make_scenario: Make) -> None:
    scenario = make_scenario(worker={"heartbeat_timeout": 0.5})
    rescue, now = rescue_of(scenario), datetime(2030, 1, 1, tzinfo=UTC)
    rescue.rescue(now)
    silent(scenario, "worker")

    now += timedelta(minutes=1)
    rescue.rescue(now)
    assert not stopped(scenario, "worker")
    rescue.rescue(now + timedelta(seconds=0.4))
    assert not stopped(scenario, "worker")

    rescue.rescue(now + timedelta(seconds=0.6))
    assert stopped(scenario, "worker")


def test_a_scheduler_that_waited_for_the_database_at_its_start_gives_other_processes_time(make_scenario: Make) -> None:
    scenario = make_scenario(worker={"heartbeat_timeout": 0.5})
    rescue_of(scenario)
    minute_ago, now = time.monotonic() - 60, datetime(2030, 1, 1, tzinfo=UTC)
    rescue = Rescue(scenario.engine, scenario.settings, Publisher(scenario.settings), scenario.brokers, began=minute_ago)
    silent(scenario, "worker")

    rescue.rescue(now)
    assert not stopped(scenario, "worker")

    rescue.rescue(now + timedelta(seconds=0.6))
    assert stopped(scenario, "worker")


def test_a_scheduler_that_was_stopped_twice_in_a_short_time_gives_other_processes_time_both_times(make_scenario: Make) -> None:
    scenario = make_scenario(worker={"heartbeat_timeout": 0.5}, scheduler={"orphaned_tasks_check_interval": 0.1})
    rescue, now = rescue_of(scenario), datetime(2030, 1, 1, tzinfo=UTC)
    for at_s in (0.0, 0.4, 0.6, 0.8, 1.0):  # away until the second of these; no process is silent
        scenario.sql("update process set heartbeat_at = clock_timestamp()")
        rescue.rescue(now + timedelta(seconds=at_s))
    silent(scenario, "worker")

    for at_s in (1.4, 1.6, 1.8):
        rescue.rescue(now + timedelta(seconds=at_s))
        assert not stopped(scenario, "worker")

    rescue.rescue(now + timedelta(seconds=2.0))
    assert stopped(scenario, "worker")


def test_after_the_clock_of_the_database_is_set_forward_no_process_is_declared_lost(make_scenario: Make) -> None:
    scenario = make_scenario(worker={"heartbeat_timeout": 0.5}, scheduler={"orphaned_tasks_check_interval": 1.0})
    rescue, now = rescue_of(scenario), datetime(2030, 1, 1, tzinfo=UTC)
    rescue.rescue(now)
    silent(scenario, "worker")  # by a clock that is later now

    for at_s in (2.0, 2.4):
        rescue.rescue(now + timedelta(seconds=at_s))
        assert not stopped(scenario, "worker")

    rescue.rescue(now + timedelta(seconds=2.6))
    assert stopped(scenario, "worker")


def test_a_scheduler_that_is_always_slow_expires_workers_nevertheless(make_scenario: Make) -> None:
    scenario = make_scenario(worker={"heartbeat_timeout": 0.5})
    rescue, now = rescue_of(scenario), datetime(2030, 1, 1, tzinfo=UTC)
    silent(scenario, "worker")

    for turn in range(3):
        rescue.rescue(now + timedelta(minutes=turn))

    assert stopped(scenario, "worker")


def test_right_after_a_restart_of_the_database_no_process_is_declared_lost(make_scenario: Make) -> None:
    """The session's PostgreSQL has been up for less than an hour, and for more than a tenth of a second."""
    scenario = make_scenario()
    scenario.sql("update process set heartbeat_at = clock_timestamp() - interval '1 day'")

    assert expire(scenario, worker_timeout_s=3600, scheduler_timeout_s=3600) == []
    assert len(expire(scenario)) == 2


def test_a_lost_scheduler_holds_no_dag_file(make_scenario: Make) -> None:
    scenario = make_scenario()
    dead, now = scenario.schedulers[0].scheduler_id, datetime.now(UTC)
    transact(scenario.engine, files.sync, {"a.py": now}, complete=True)
    taken = {"lease_s": 3600, "limit": 1, "sort_mode": "alphabetical", "host": "h"}
    assert len(transact(scenario.engine, files.claim, claimed_by=dead, **taken)) == 1
    assert transact(scenario.engine, files.claim, claimed_by="other", **taken) == []
    silent(scenario, "scheduler")

    expire(scenario)

    assert len(transact(scenario.engine, files.claim, claimed_by="other", **taken)) == 1
    # Back again, it overwrites nothing of the other.
    late = files.ParsedFile(path="a.py", modified_at=now, duration_s=1.0)
    recorded = files.record(scenario.engine, late, claimed_by=dead, min_interval=timedelta(seconds=1))
    assert not recorded.accepted


@pytest.mark.parametrize("name", ["s", "odd/name%_"])
def test_a_lost_scheduler_holds_no_notice(make_scenario: Make, name: str) -> None:
    scenario = make_scenario()
    run = scenario.triggered(chain("c", 1))
    dead = processes.register(scenario.engine, kind="scheduler", name=name, host="h", pid=1)
    others = scenario.schedulers[0].scheduler_id
    for claimed_by in (f"{dead}/1", f"{others}/1"):
        scenario.sql(
            "insert into notice (kind, dag_run_id, claimed_by, claimed_until)"
            " values ('dag_success', %s, %s, clock_timestamp() + interval '1 hour')",
            run,
            claimed_by,
        )
    scenario.sql("update process set heartbeat_at = clock_timestamp() + interval '1 hour'")
    scenario.sql(f"update process set heartbeat_at = {LONG_AGO} where id = %s", dead)

    assert expire(scenario) == [dead]

    held = scenario.rows("select claimed_by from notice where claimed_by is not null")
    assert held == [(f"{others}/1",)]


def test_two_dispatches_of_a_task_instance_never_share_a_result(make_scenario: Make) -> None:
    """XComs and the result of the stale try are refused, before and after the other try has succeeded."""
    scenario = make_scenario()
    scenario.start(chain("c", 1))
    [first] = [scenario.claim(message) for message in scenario.messages()]
    assert first is not None
    xcoms.push(scenario.hot, first, "part", '"first"')
    scenario.sql("update task_instance set state = 'up_for_retry', due_at = clock_timestamp()")
    scenario.turn()
    [second] = [scenario.claim(message) for message in scenario.messages()]
    assert second is not None and second.try_number == first.try_number + 1
    stored = "select key, value #>> '{}' from xcom order by key"

    xcoms.clear(scenario.hot, second)
    with pytest.raises(StaleTryError):
        xcoms.push(scenario.hot, first, "part", '"first"')
    assert not scenario.follower.report(first, Ending(TaskState.SUCCESS, result='"first"')).is_stored
    assert scenario.rows(stored) == []
    xcoms.push(scenario.hot, second, "part", '"second"')
    assert scenario.follower.report(second, Ending(TaskState.SUCCESS, result='"second"')).is_stored
    with pytest.raises(StaleTryError):
        xcoms.push(scenario.hot, first, "part", '"first"')
    assert not scenario.follower.report(first, Ending(TaskState.SUCCESS, result='"first"')).is_stored

    assert scenario.rows(stored) == [("part", "second"), ("return_value", "second")]
