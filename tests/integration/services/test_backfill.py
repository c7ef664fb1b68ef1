"""Backfills: requests and refusals, their runs with order and limits, and how they are paused, canceled and finished."""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.backfills import HOURLY, START, add, complete, counts, hour, made, wanted
from support.scenario import Scenario, chain

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
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

    done = Backfill(scenario.engine, scenario.settings, Versions()).run_once()

    (failed,) = (line for level, line in done.log if level == logging.ERROR)
    assert (failed.startswith("Backfill 1 cannot continue: "), len(done.runs)) == (True, 1)


def test_nothing_is_made_while_another_scheduler_holds_it(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=1))
    with scenario.engine.begin() as other:
        other.exec_driver_sql("select 1 from backfill for no key update")
        done = Backfill(scenario.engine, scenario.settings, Versions()).run_once()
        assert done.runs == []

    assert len(Backfill(scenario.engine, scenario.settings, Versions()).run_once().runs) == 1


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


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"schedule": {"kind": "never"}}, {}, "has no periodic schedule .*trigger its runs instead"),
    ({"schedule": {"kind": "once"}}, {}, "has no periodic schedule"),
    ({}, {"first": hour(5), "last": hour(4)}, "is later than --to"),
    ({}, {"first": datetime(2999, 1, 1, tzinfo=UTC), "last": datetime(2999, 1, 2, tzinfo=UTC)}, "is in the future"),
    ({}, {"first": START + timedelta(minutes=1), "last": START + timedelta(minutes=59)}, "has no run due from"),
    ({}, {"first": datetime(1900, 1, 1, tzinfo=UTC)}, "has more than 20 runs"),
    ({"task": {"depends_on_past": True}}, {"reverse": True, "reprocess": "failed"}, "in reverse: its task 't000' depends"),
    ({"task": {"depends_on_past": True}}, {}, "choose --reprocess failed or --reprocess completed"),
    ({"allowed_run_types": ("scheduled", "manual")}, {}, "allows no backfills: its allowed_run_types are scheduled, manual"),
    ({"params": {"day": {"schema": {"type": "integer"}, "description": None}}}, {}, "needs a value for param 'day'"),
    ({"params": {"day": {"value": 1, "schema": {"type": "integer"}}}}, {"conf": {"day": "x"}}, "Param 'day' .* cannot be \"x\""),
]


@pytest.mark.parametrize(("of_dag", "of_backfill", "sentence"), REFUSED)
def test_it_refuses_invalid_requests_in_one_sentence(
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
    of_dag: dict[str, Any],
    of_backfill: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.setattr(backfills, "MOST_RUNS", 20)
    add(scenario, **of_dag)
    backfill_request = replace(wanted(), **of_backfill)

    for attempt in (backfills.create, backfills.dry_run):
        with pytest.raises(PacelineError, match=sentence) as refusal:
            transact(scenario.engine, attempt, backfill_request)
        assert "\n" not in str(refusal.value)
    assert scenario.rows("select count(*) from backfill") == [(0,)]


def test_dates_that_are_not_due_are_left_to_the_schedule(scenario: Scenario) -> None:
    add(scenario)
    now = scenario.rows("select date_trunc('hour', clock_timestamp())")[0][0]

    backfill = transact(
        scenario.engine, backfills.create, BackfillRequest(dag_id="c", first=now - timedelta(hours=1), last=now + timedelta(days=9))
    )

    assert backfill["total"] in (2, 3)  # the hour may turn meanwhile


def test_it_refuses_a_second_backfill_and_an_empty_one(scenario: Scenario) -> None:
    add(scenario)
    add(scenario, "other")
    transact(scenario.engine, backfills.create, wanted(hours=2))
    transact(scenario.engine, backfills.create, wanted("other", hours=2))
    for attempt in (backfills.create, backfills.dry_run):
        with pytest.raises(
            ConflictError, match=r"already has an active backfill \(1\): wait for its end, or `paceline backfills can"
        ):
            transact(scenario.engine, attempt, wanted(hours=20))
    scenario.run_to_end()
    scenario.turn()

    with pytest.raises(ConflictError, match="Nothing to do: each of the 2 dates has a run, which `reprocess` none leaves as it is"):
        transact(scenario.engine, backfills.create, wanted(hours=2))
    with pytest.raises(NotFoundError, match="There is no DAG 'nope'"):
        transact(scenario.engine, backfills.create, wanted("nope"))
    with pytest.raises(NotFoundError, match="There is no backfill 7"):
        transact(scenario.engine, backfills.backfill, 7)


def test_a_dry_run_shows_every_date_and_changes_nothing(scenario: Scenario) -> None:
    add(scenario)
    scenario.trigger("c", run_id="mine", logical_date=hour(1))

    rows = transact(scenario.engine, backfills.dry_run, wanted(hours=3, reverse=True))

    assert [(row["ordinal"], row["logical_date"], row["state"], row["reason"]) for row in rows] == [
        (1, hour(2), "waiting", None),
        (2, hour(1), "left_out", "in flight"),
        (3, hour(0), "waiting", None),
    ]
    assert scenario.rows("select (select count(*) from backfill), (select count(*) from dag_run)") == [(0, 1)]


def existing_runs(scenario: Scenario) -> None:
    """Hour 0 has succeeded, 1 failed, 2 runs, 3 is queued; 4 is missing."""
    for number in (0, 1, 2):
        scenario.trigger("c", run_id=f"r{number}", logical_date=hour(number))
    scenario.turn()
    scenario.work(outcome=lambda claim: TaskState.FAILED if claim.run_id == "r1" else TaskState.SUCCESS)
    scenario.sql("update dag_run set state = 'running', ended_at = null where run_id = 'r2'")
    scenario.sql("update task_instance t set state = null from dag_run r where r.id = t.dag_run_id and r.run_id = 'r2'")
    scenario.turn()
    scenario.trigger("c", run_id="r3", logical_date=hour(3))
    scenario.sql("update dag_run set run_after = 'infinity' where run_id = 'r3'")
    assert [row[0] for row in scenario.rows("select state from dag_run order by logical_date")] == [
        "success", "failed", "running", "queued",
    ]  # fmt: skip


@pytest.mark.parametrize(("reprocess", "again"), [("none", []), ("failed", ["r1"]), ("completed", ["r0", "r1"])])
def test_reprocess_chooses_the_runs_that_run_again(scenario: Scenario, reprocess: str, again: list[str]) -> None:
    add(scenario, max_active_runs=10)
    existing_runs(scenario)

    transact(scenario.engine, backfills.create, wanted(hours=5, reprocess=reprocess))
    scenario.turn()

    reasons = {"r0": "already has a run (success)", "r1": "already has a run (failed)", "r2": "in flight", "r3": "in flight"}
    for name in again:
        del reasons[name]
    shown = transact(scenario.engine, backfills.backfill, 1)["runs"]
    assert [run["reason"] for run in shown if run["state"] == "left_out"] == list(reasons.values())
    assert [run["run_id"] for run in shown if run["state"] == "running"] == [*again, "backfill__2026-03-01T04:00:00+00:00"]
    assert scenario.rows("select run_id from dag_run where clear_number = 1 and run_type = 'backfill' order by 1") == [
        (name,) for name in again
    ]
    scenario.sql("delete from dag_run where run_id in ('r2', 'r3')")
    scenario.run_to_end()
    scenario.turn()
    repeated = scenario.rows(
        "select r.run_id, r.state, t.try_number, t.rank < 0, (select count(*) from task_try k where k.task_instance_id = t.id)"
        "  from dag_run r join task_instance t on t.dag_run_id = r.id where r.clear_number = 1 order by 1"
    )
    assert repeated == [(name, "success", 2, True, 1) for name in again]
    assert counts(scenario) == {"left_out": len(reasons), "success": 1 + len(again)}
    assert transact(scenario.engine, backfills.backfill, 1)["state"] == "completed"


def test_after_a_cancelled_backfill_another_repeats_its_failed_runs(scenario: Scenario) -> None:
    add(scenario, length=2)
    transact(scenario.engine, backfills.create, wanted(hours=2, max_active_runs=1))
    scenario.turn()
    scenario.sql("update dag_run set state = 'queued', started_at = null")
    transact(scenario.engine, backfills.cancel, 1)

    transact(scenario.engine, backfills.create, wanted(hours=2, reprocess="failed", conf={"again": True}))
    complete(scenario)

    assert scenario.rows("select run_id, state, conf from dag_run order by 1") == [
        (f"backfill__2026-03-01T0{number}:00:00+00:00", "success", {"again": True}) for number in (0, 1)
    ]


def test_a_run_that_another_source_creates_meanwhile_is_left_alone(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=3, max_active_runs=1))
    scenario.trigger("c", run_id="mine", logical_date=hour(1))
    scenario.trigger("c", run_id="backfill__2026-03-01T02:00:00+00:00", logical_date=hour(50))

    complete(scenario)

    assert [run["reason"] for run in transact(scenario.engine, backfills.backfill, 1)["runs"]] == [
        None,
        "already has a run (success)",
        "a run of another date has the run ID backfill__2026-03-01T02:00:00+00:00",
    ]
    assert scenario.rows("select state, run_type from dag_run where run_id = 'mine'") == [("success", "manual")]


def test_paused_it_makes_and_starts_nothing_until_resumed(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=2))
    scenario.turn()
    assert counts(scenario) == {"waiting": 8, "running": 2}
    scenario.sql("update dag_run set state = 'queued', started_at = null where id = (select max(id) from dag_run)")

    assert transact(scenario.engine, backfills.pause, 1)
    assert not transact(scenario.engine, backfills.pause, 1)
    scenario.work()
    scenario.turn()
    scenario.turn()
    assert counts(scenario) == {"waiting": 8, "queued": 1, "success": 1}
    assert transact(scenario.engine, backfills.backfill, 1)["state"] == "paused"

    assert transact(scenario.engine, backfills.resume, 1)
    assert not transact(scenario.engine, backfills.resume, 1)
    scenario.run_to_end()
    scenario.turn()
    assert counts(scenario) == {"success": 10}


def test_a_paused_dag_keeps_its_backfill_waiting(scenario: Scenario) -> None:
    add(scenario)
    scenario.sql("update dag_schedule set is_paused = true")
    transact(scenario.engine, backfills.create, wanted(hours=2))
    scenario.turn()
    assert counts(scenario) == {"waiting": 2}

    scenario.sql("update dag_schedule set is_paused = false")
    scenario.run_to_end()
    assert counts(scenario) == {"success": 2}


def test_queued_runs_of_a_cancelled_backfill_fail_and_running_runs_continue(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(max_active_runs=2))
    scenario.turn()
    scenario.sql("update dag_run set state = 'queued', started_at = null where id = (select max(id) from dag_run)")
    scenario.sql("update task_instance set state = null where dag_run_id = (select max(id) from dag_run)")

    done = transact(scenario.engine, backfills.cancel, 1)

    assert (done["state"], done["ended_at"] is not None) == ("cancelled", True)
    assert counts(scenario) == {"left_out": 8, "running": 1, "failed": 1}
    scenario.run_to_end()
    scenario.turn()
    assert counts(scenario) == {"left_out": 8, "success": 1, "failed": 1}
    assert scenario.rows("select t.state, t.reason from task_instance t order by id desc limit 1") == [
        ("skipped", "its backfill was cancelled")
    ]
    for refused in (backfills.cancel, backfills.pause, backfills.resume):
        with pytest.raises(ConflictError, match="Backfill 1 was cancelled already"):
            transact(scenario.engine, refused, 1)
    assert transact(scenario.engine, backfills.create, wanted(hours=20))["id"] == 2


def test_a_run_cleared_after_the_end_starts_within_the_same_limit(scenario: Scenario) -> None:
    add(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=3, max_active_runs=1))
    complete(scenario)
    transact(scenario.engine, backfills.create, wanted(hours=5))
    transact(scenario.engine, backfills.pause, 2)
    transact(scenario.engine, backfills.cancel, 2)
    scenario.sql("update task_instance set state = null")
    scenario.sql("update dag_run set state = 'queued', started_at = null, ended_at = null")

    scenario.turn()
    assert scenario.rows("select logical_date from dag_run where state = 'running'") == [(hour(0),)]
    scenario.run_to_end()
    assert counts(scenario) == {"success": 3}
