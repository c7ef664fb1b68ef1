"""Backfills: their runs, the order and the limits of these, and refused requests."""

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from support.backfills import HOURLY, add, complete, counts, hour, made, wanted
from support.scenario import Scenario, chain

from paceline.states import TaskState
from scheduler.services.backfill import Backfill
from scheduler.services.loop import SchedulerLoop
from scheduler.store.actions import backfills
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.worker.claims import Claim


def test_a_backfill_makes_every_run_of_its_dates_in_order_and_ends(scenario: Scenario) -> None:
    add(scenario, length=2)
    backfill = transact(scenario.engine, backfills.create, wanted(conf={"day": 1}))
    assert (backfill["state"], backfill["total"], backfill["waiting"]) == ("active", 10, 10)

    scenario.run_to_end()
    scenario.turn()

    assert made(scenario) == [(hour(number), "success") for number in range(10)]
    assert scenario.rows(
        "select distinct run_type, conf->>'day', triggered_by, data_interval_start = logical_date, backfill_id from dag_run"
    ) == [("backfill", "1", "backfill", True, backfill["id"])]
    assert scenario.rows("select run_id from dag_run order by id limit 1") == [("backfill__2026-03-01T00:00:00+00:00",)]
    done = transact(scenario.engine, backfills.backfill, backfill["id"])
    assert (done["state"], done["success"], [run["state"] for run in done["runs"]]) == ("completed", 10, ["success"] * 10)


def test_without_conf_new_runs_get_none(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=1))
    scenario.turn()

    assert scenario.rows("select conf from dag_run") == [({},)]


def test_reverse_begins_with_the_newest_date(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=4, reverse=True, max_active_runs=1))
    complete(scenario)

    assert [date for date, _ in made(scenario)] == [hour(3), hour(2), hour(1), hour(0)]


def test_runs_start_in_the_order_of_the_backfill(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=3, reverse=True))
    scenario.turn()
    scenario.sql("update dag_run set state = 'queued', started_at = null")
    scenario.sql("update backfill set max_active_runs = 1")
    scenario.turn()

    assert scenario.rows("select logical_date from dag_run where state = 'running'") == [(hour(2),)]


def test_its_runs_rank_below_all_other_runs(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=1))
    scenario.turn()
    scenario.trigger("c")

    ranks = scenario.rows("select r.run_type, t.rank from task_instance t join dag_run r on r.id = t.dag_run_id order by r.id")
    assert [kind for kind, _ in ranks] == ["backfill", "manual"]
    assert ranks[0][1] < -(2**31) < 0 < ranks[1][1]


def test_neither_limit_counts_the_runs_of_the_other(scenario: Scenario) -> None:
    add(scenario, max_active_runs=2)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=3))
    scenario.turn()
    for number in range(4):
        scenario.trigger("c", run_id=f"m{number}", logical_date=hour(100 + number))
    scenario.turn()
    scenario.turn()

    running = "select run_type, count(*) from dag_run where state = 'running' group by 1 order by 1"
    assert scenario.rows(running) == [("backfill", 3), ("manual", 2)]
    assert counts(scenario) == {"waiting": 7, "running": 3}


def test_depends_on_past_holds_inside_and_not_for_the_first_run(scenario: Scenario) -> None:
    add(scenario, task={"depends_on_past": True})
    scenario.trigger("c", run_id="before", logical_date=hour(-1))
    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED)
    transact(scenario.engine, backfills.create, wanted(hours=4, reprocess="failed"))

    def outcome(claim: Claim) -> TaskState:
        return TaskState.FAILED if "T01" in claim.run_id else TaskState.SUCCESS

    for _ in range(6):
        scenario.turn()
        scenario.work(outcome=outcome)

    runs = [(run["state"], run["logical_date"].hour) for run in transact(scenario.engine, backfills.backfill, 1)["runs"]]
    assert runs == [("success", 0), ("failed", 1), ("running", 2), ("running", 3)]
    assert scenario.rows("select count(*) from task_instance where state is null") == [(2,)]


def test_a_backfill_that_cannot_continue_stops_no_other(scenario: Scenario) -> None:
    add(scenario, "bad")
    add(scenario, "good")
    transact(scenario.engine, backfills.create, wanted("bad", hours=1))
    transact(scenario.engine, backfills.create, wanted("good", hours=1))
    scenario.sql("""update dag_version set data = '{"from": "the future"}' where dag_id = 'bad'""")

    done = Backfill(scenario.engine, scenario.settings, Versions()).advance()

    assert (list(done.broken), len(done.runs)) == ([1], 1)


def test_nothing_is_made_while_another_scheduler_holds_it(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=1))
    with scenario.engine.begin() as other:
        other.exec_driver_sql("select 1 from backfill for no key update")
        done = Backfill(scenario.engine, scenario.settings, Versions()).advance()
        assert done.runs == []

    assert len(Backfill(scenario.engine, scenario.settings, Versions()).advance().runs) == 1


def most_at_once(rows: list[tuple[datetime, datetime]]) -> int:
    """The largest number of these spans that share a moment."""
    moves = sorted([(start, 1) for start, _ in rows] + [(end, -1) for _, end in rows])
    return max(itertools.accumulate(move for _, move in moves))


def test_three_schedulers_keep_every_limit_at_every_moment(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=3, worker={"heartbeat_timeout": 300})  # its worker has no heartbeat
    now = scenario.rows("select date_trunc('hour', clock_timestamp())")[0][0]
    scenario.pool("small", 4)
    times = {"start_date": (now - timedelta(hours=20)).isoformat(), "end_date": (now - timedelta(hours=1)).isoformat()}
    scenario.add(chain("c", 2, **HOURLY, **times, catchup=True, task={"pool": "small"}))
    transact(
        scenario.engine,
        backfills.create,
        BackfillRequest(dag_id="c", first=now - timedelta(hours=120), last=now - timedelta(hours=21), max_active_runs=3),
    )
    ended = threading.Event()
    most_slots = 0

    def turn(scheduler: SchedulerLoop) -> None:
        while not ended.is_set():
            for timer in scheduler.timers.values():
                timer.due_at = 0.0
            scheduler.run_once()

    with ThreadPoolExecutor(3) as threads:
        turns = [threads.submit(turn, scheduler) for scheduler in scenario.schedulers]
        try:
            deadline = time.monotonic() + 240
            while scenario.rows("select count(*) from dag_run where state = 'success'") != [(120,)]:
                assert time.monotonic() < deadline, scenario.rows("select run_type, state, count(*) from dag_run group by 1, 2")
                slots = scenario.rows("select count(*) from task_instance where state in ('queued', 'running')")[0][0]
                most_slots = max(most_slots, slots)
                scenario.work()
        finally:
            ended.set()
        for one in turns:
            one.result(30)

    spans = "select started_at, ended_at from dag_run where run_type = %s"
    assert most_at_once(scenario.rows(spans, "backfill")) == 3
    assert most_at_once(scenario.rows(spans, "scheduled")) == 2
    assert 0 < most_slots <= 4
    assert counts(scenario) == {"success": 100}
