"""The sweep finds runs that were not decided in time, at a bounded cost; a stored DAG that cannot be read stops its runs only."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event
from support.scenario import Scenario, chain, dag

from scheduler.services import sweep as sweep_service
from scheduler.services.plan import Plan
from scheduler.services.promote import Promote
from scheduler.services.sweep import Sweep
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.read import operations, reads, why
from scheduler.store.runs import runs
from scheduler.store.upkeep import processes

OPEN_RUNS = 1000
JOIN = {"left": [], "right": [], "join": ["left", "right"], "long": []}


def open_runs(scenario: Scenario, count: int) -> list[int]:
    """Runs of JOIN after a lost race, apart from `end`: `long` runs, and no process will examine `join`."""
    first = scenario.triggered(dag("d", JOIN), run_id="first")
    scenario.sql("update task_instance set max_tries = 0")
    scenario.sql(
        "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at)"
        " select dag_id, 'r' || n, run_type, 'queued', version_id, run_after, now()"
        " from dag_run, generate_series(2, %s) n where id = %s",
        count,
        first,
    )
    scenario.sql(
        "insert into task_instance (dag_run_id, task_no, task_id, queue, pool) select r.id, t.task_no, t.task_id, t.queue, t.pool"
        " from dag_run r, task_instance t where t.dag_run_id = %s and r.id <> %s order by r.id, t.task_no",
        first,
        first,
    )
    scenario.sql("update dag_run set state = 'running', started_at = now(), examined_at = now() - id * interval '1 s'")
    scenario.sql(
        "update task_instance set state = 'running', started_at = now(), dispatch_id = gen_random_uuid(), worker = %s"
        " where task_id = 'long' or task_id in ('left', 'right')",
        scenario.worker_id,
    )
    return [row[0] for row in scenario.rows("select id from dag_run order by id")]


def end(scenario: Scenario, run: int) -> None:
    """Both siblings end, and neither transaction sees the other's end."""
    scenario.sql(
        "update task_instance set state = 'success', ended_at = clock_timestamp()"
        " where dag_run_id = %s and task_id in ('left', 'right')",
        run,
    )


def sweep(scenario: Scenario) -> int:
    """How many statements a sweep makes."""
    queries = []
    event.listen(scenario.engine, "before_cursor_execute", note := lambda *arguments: queries.append(arguments[2]))
    scenario.schedulers[0].service(Sweep).run_once()
    event.remove(scenario.engine, "before_cursor_execute", note)
    return len(queries)


def test_of_1000_open_runs_the_undecided_run_is_found_by_the_next_sweep(scenario: Scenario) -> None:
    every = open_runs(scenario, OPEN_RUNS)
    sweep(scenario)
    idle = sweep(scenario)
    end(scenario, every[0])

    busy = sweep(scenario)

    assert scenario.states(every[0])["join"] == "scheduled"
    assert idle < 25
    assert busy < idle + 25


def test_a_scheduler_that_has_just_started_examines_all_runs(scenario: Scenario) -> None:
    every = open_runs(scenario, OPEN_RUNS)
    end(scenario, every[0])
    scenario.sql("update task_instance set ended_at = ended_at - interval '1 hour'")

    sweep(scenario)

    assert scenario.states(every[0])["join"] == "scheduled"


def test_runs_that_one_sweep_does_not_reach_come_first_in_the_next(
    make_scenario: Callable[..., Scenario], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario(scheduler={"max_dagruns_per_loop_to_schedule": 1})
    every = open_runs(scenario, 50)
    for run in every:
        end(scenario, run)
    monkeypatch.setattr(sweep_service, "MOST_INSTANCES", 100)
    monkeypatch.setattr(sweep_service, "RUNS_AT_ONCE", 5)

    def left() -> int:
        return scenario.rows("select count(*) from task_instance where task_id = 'join' and state is null")[0][0]

    lefts = []
    for _ in range(3):
        sweep(scenario)
        lefts.append(left())

    assert 20 <= lefts[0] <= 25
    assert lefts[1] == 0 == lefts[2]


def test_a_task_that_waits_for_the_run_before_is_found_although_the_wake_up_was_lost(
    make_scenario: Callable[..., Scenario],
) -> None:
    scenario = make_scenario(scheduler={"max_dagruns_per_loop_to_schedule": 1})
    scenario.add(dag("d", {"t": [], "long": []}, options={"t": {"depends_on_past": True}}))
    for day in range(1, 31):
        scenario.trigger("d", run_id=f"r{day:02}", logical_date=datetime(2024, 1, day, tzinfo=UTC))
    scenario.turn()
    scenario.turn()
    first, second, *_ = sorted(row[0] for row in scenario.rows("select id from dag_run where state = 'running'"))
    assert scenario.states(second)["t"] == "none"
    scenario.sql("update dag_run set examined_at = now() - id * interval '1 s'")
    scenario.schedulers[0].service(Promote).hints.clear()
    scenario.sql("update task_instance set state = 'success', ended_at = clock_timestamp() where dag_run_id = %s", first)

    sweep(scenario)

    assert scenario.states(second)["t"] == "scheduled"


def test_runs_in_which_nothing_moves_do_not_delay_other_runs(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    every = open_runs(scenario, 60)
    scenario.sql("update task_instance set state = null where dag_run_id <> %s", every[0])
    scenario.sql("update dag_run set examined_at = now() - interval '1 hour' where id = %s", every[0])

    found = transact(scenario.engine, runs.to_examine, limit=20)

    assert every[0] in found
    assert len(found) == 21


def test_a_thousand_runs_in_which_tasks_ended_are_not_compared_with_each_other(scenario: Scenario) -> None:
    open_runs(scenario, OPEN_RUNS)
    scenario.sql("update dag_run set logical_date = now() - id * interval '1 day'")
    scenario.sql("update task_instance set state = 'success', ended_at = clock_timestamp() where task_id = 'left'")
    executed: list[tuple[str, dict[str, object]]] = []
    event.listen(scenario.engine, "before_cursor_execute", note := lambda *arguments: executed.append(arguments[2:4]))
    _, found = transact(scenario.engine, runs.touched, datetime(2020, 1, 1, tzinfo=UTC))
    event.remove(scenario.engine, "before_cursor_execute", note)
    assert len(found) == OPEN_RUNS
    statement, values = executed[0]

    with scenario.engine.begin() as connection:
        plan = connection.exec_driver_sql(f"explain (analyze, format json) {statement}", values).scalar_one()

    assert rows_read(plan[0]["Plan"]) < 20 * OPEN_RUNS


def rows_read(node: Mapping[str, Any]) -> float:
    """The rows that a plan passed from node to node, and those that it compared in vain."""
    own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
    return float(own * node["Actual Loops"] + sum(map(rows_read, node.get("Plans", ()))))


HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
START = datetime(2026, 3, 1, tzinfo=UTC)


def break_versions(scenario: Scenario, dag_id: str) -> None:
    scenario.sql("update dag_version set data = '{}' where dag_id like %s", dag_id)


def test_runs_of_an_unreadable_version_stop_no_other_run(scenario: Scenario) -> None:
    scenario.add(chain("bad", 2))
    scenario.add(chain("good", 2))
    for number in range(5):
        scenario.trigger("bad", run_id=f"r{number}")
    break_versions(scenario, "bad")
    good = scenario.trigger("good")

    for _ in range(4):
        scenario.turn()
        scenario.work()

    assert scenario.run_state(good) == "success"
    assert scenario.rows("select distinct state from dag_run where dag_id = 'bad'") == [("running",)]


def test_a_duration_that_no_calendar_holds_stops_no_other_run(scenario: Scenario) -> None:
    """Of a version that was stored before such durations were refused."""
    endless = 86_400e9
    scenario.add(chain("bad", 1, dagrun_timeout_s=endless, task={"retries": 1, "retry_delay_s": endless}))
    scenario.add(chain("good", 2))
    bad, good = scenario.trigger("bad"), scenario.trigger("good")

    scenario.turn()
    assert (scenario.run_state(bad), scenario.run_state(good)) == ("running", "running")
    for message in scenario.messages():
        assert scenario.claim(message) is not None
        transact(scenario.engine, processes.fail_lost, *message, "its process died")

    assert set(scenario.states(bad).values()) == {"up_for_retry"}


def test_more_unreadable_dags_than_one_turn_plans_stop_no_other_dag(scenario: Scenario) -> None:
    limit = scenario.settings.scheduler.max_dagruns_to_create_per_loop
    options = {"schedule": HOURLY, "start_date": START.isoformat()}
    for number in range(limit + 2):
        scenario.add(chain(f"bad{number}", 1, **options))
    break_versions(scenario, "bad%")
    scenario.add(chain("good", 1, **options))
    plan = Plan(scenario.engine, scenario.settings, Versions())

    planned = [plan.plan(START + timedelta(minutes=90, seconds=second)) for second in range(3)]

    assert [made.run_id for one in planned for made in one.runs] == ["scheduled__2026-03-01T01:00:00+00:00"]
    assert sum(len(one.broken) for one in planned) == limit + 2

    again = plan.plan(START + timedelta(minutes=95))
    assert len(again.broken) == limit, "they are tried again, in case something was repaired"


@pytest.mark.parametrize("data", ["{}", "[]", '{"tasks": ["t"]}', '"text"'])
def test_a_run_that_cannot_be_decided_is_shown_and_continues_by_itself(scenario: Scenario, data: str) -> None:
    scenario.add(chain("bad", 1))
    scenario.add(chain("good", 1))
    bad, good = scenario.trigger("bad", run_id="r"), scenario.trigger("good")
    (stored,) = scenario.rows("select data::text from dag_version where dag_id = 'bad'")
    scenario.sql("update dag_version set data = %s where dag_id = 'bad'", data)

    scenario.turn()
    scenario.work()
    scenario.turn()

    assert scenario.run_state(good) == "success"
    error = transact(scenario.engine, reads.run, "bad", "r")["scheduling_error"]
    assert error.startswith("The stored DAG version ")
    assert [run["scheduling_error"] for run in transact(scenario.engine, reads.runs, dag_id="bad")] == [error]
    assert [run["run_id"] for run in transact(scenario.engine, operations.undecidable)] == ["r"]
    sentences = transact(scenario.engine, why.why, scenario.settings, "bad", "r", "t000")["waiting_for"]
    assert error.rstrip(".") in sentences[0] and not any("Nothing blocks it" in sentence for sentence in sentences)

    scenario.sql("update dag_version set data = %s where dag_id = 'bad'", *stored)
    scenario.run_to_end()

    assert scenario.run_state(bad) == "success"
    assert transact(scenario.engine, reads.run, "bad", "r")["scheduling_error"] is None
    assert transact(scenario.engine, operations.undecidable) == []


def test_a_run_whose_statement_fails_stops_no_other_run(make_scenario: Callable[..., Scenario]) -> None:
    # The sweep takes runs in the order in which they were examined, so the first would be tried first forever.
    scenario = make_scenario(scheduler={"max_dagruns_per_loop_to_schedule": 1})
    scenario.add(chain("held", 1))
    scenario.add(chain("good", 1))
    held = scenario.trigger("held", run_id="r")
    for scheduler in scenario.schedulers:
        event.listen(scheduler.engine, "begin", lambda connection: connection.exec_driver_sql("set local lock_timeout = '50ms'"))
    with scenario.engine.begin() as connection:
        connection.exec_driver_sql("select 1 from task_instance where dag_run_id = %s for update", (held,))
        scenario.turn()
        good = scenario.trigger("good")
        for _ in range(4):
            scenario.turn()
            scenario.work()

        assert scenario.run_state(good) == "success"
        assert "lock timeout" in transact(scenario.engine, reads.run, "held", "r")["scheduling_error"]

    scenario.run_to_end()
    assert scenario.run_state(held) == "success"
