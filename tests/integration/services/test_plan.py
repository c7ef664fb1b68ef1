"""The plan service: which runs are created, when, by how many schedulers, and within which limits."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from support.scenario import Scenario, chain
from support.waiting import eventually

from paceline.authoring import timetable
from paceline.authoring.timetables.base import CONTINUOUS_PERIOD
from paceline.exceptions import ConflictError, PacelineError
from scheduler.messaging.wakeups import KEY, QUEUE_KEY
from scheduler.services.plan import Plan
from scheduler.store.dags import dags, schedules
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs

HOURLY = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
START = datetime(2026, 3, 1, tzinfo=UTC)


def hourly(**options: object) -> dict[str, object]:
    return {"schedule": HOURLY, "start_date": START.isoformat(), **options}


def plan(scenario: Scenario) -> Plan:
    return Plan(scenario.engine, scenario.settings, Versions())


def pause(scenario: Scenario) -> None:
    transact(scenario.engine, dags.pause, "c")


def unpause(scenario: Scenario) -> None:
    transact(scenario.engine, dags.unpause, "c")


def trigger_much_later(scenario: Scenario) -> None:
    scenario.trigger("c", logical_date=START + timedelta(days=30))


def become_daily(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(schedule={"kind": "cron", "expression": "0 0 * * *", "timezone": "UTC"})))


Step = float | Callable[[Scenario], None]
#: The options of an hourly DAG; the hours at which the service plans, and what happens in between; the hours of its runs.
PLANS: dict[str, tuple[dict[str, object], list[Step], list[int]]] = {
    "catchup within max_active_runs, in order": ({"catchup": True, "max_active_runs": 3}, [10], [0, 1, 2]),
    "without catchup the latest alone": ({}, [10.5], [10]),
    "it continues after the last planned run": ({}, [minutes / 60 for minutes in range(0, 240, 20)], [0, 1, 2, 3]),
    "a manual run never moves the schedule": ({}, [0.5, trigger_much_later, 1], [0, 1]),
    "a new version with another schedule is planned again and never stalls": ({}, [3, become_daily, 4, 24], [3, 24]),
    "a paused DAG gets none": ({}, [pause, 3], []),
    "after a pause without catchup, the newest alone": ({}, [0, pause, 5, unpause, 9], [0, 9]),
    "after a pause with catchup, all that were missed": ({"catchup": True}, [0, pause, 2, unpause, 3], [0, 1, 2, 3]),
    "end_date ends the schedule": (
        {"catchup": True, "end_date": (START + timedelta(hours=2)).isoformat()}, [0, 1, 2, 3, 4, 5], [0, 1, 2]),
    "a DAG that takes no scheduled runs gets none": ({"allowed_run_types": ("manual", "backfill")}, [1], []),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_an_hourly_dag_gets_its_runs(scenario: Scenario, case: str) -> None:
    options, steps, hours = PLANS[case]
    scenario.add(chain("c", 2, **hourly(**options)))
    service = plan(scenario)

    for step in steps:
        if callable(step):
            step(scenario)
        else:
            service.plan(START + timedelta(hours=step))

    assert scenario.scheduled_dates() == [START + timedelta(hours=hour) for hour in hours]
    made = scenario.rows("select run_id from dag_run where run_type = 'scheduled' order by logical_date")
    assert made == [(f"scheduled__{(START + timedelta(hours=hour)).isoformat()}",) for hour in hours]
    instances = "select count(*) from task_instance t join dag_run r on r.id = t.dag_run_id where r.run_type = 'scheduled'"
    assert case.startswith("a new version") or scenario.rows(instances) == [(2 * len(hours),)]
    if "end_date" in options:
        assert scenario.rows("select next_run_after from dag_schedule") == [(None,)]


def test_once_is_one_run(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(schedule={"kind": "once"})))
    for hours in range(3):
        plan(scenario).plan(START + timedelta(hours=hours))

    assert len(scenario.scheduled_dates()) == 1


def test_several_schedulers_make_each_run_once(make_scenario: Callable[..., Scenario]) -> None:
    import threading

    scenario = make_scenario()
    for number in range(20):
        scenario.add(chain(f"d{number}", 3, **hourly(catchup=True, max_active_runs=5)))

    def work() -> None:
        one = plan(scenario)
        while one.plan(START + timedelta(hours=5)).more:
            pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert scenario.rows("select count(*), count(distinct (dag_id, logical_date)) from dag_run") == [(100, 100)]
    assert scenario.rows("select count(*) from task_instance") == [(300,)]


def test_a_dag_that_cannot_be_planned_stops_no_other(scenario: Scenario) -> None:
    scenario.add(chain("bad", 1, **hourly(schedule={"kind": "from the future"})))
    scenario.add(chain("good", 1, **hourly()))

    planned = plan(scenario).plan(START + timedelta(hours=1))

    assert list(planned.broken) == ["bad"]
    assert [made.run_id for made in planned.runs] == ["scheduled__2026-03-01T01:00:00+00:00"]


def test_one_dag_with_a_long_queue_of_runs_does_not_delay_another(scenario: Scenario) -> None:
    scenario.add(chain("busy", 1, max_active_runs=1))
    for number in range(100):
        scenario.trigger("busy", run_id=f"r{number}")
    other = scenario.triggered(chain("other", 1))

    scenario.turn()

    assert scenario.run_state(other) == "running"
    assert scenario.rows("select count(*) from dag_run where dag_id = 'busy' and state = 'running'") == [(1,)]


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_conf_that_the_database_cannot_store_is_one_sentence(scenario: Scenario, character: str) -> None:
    scenario.add(chain("c", 1))

    with pytest.raises(PacelineError, match="conf cannot be stored"):
        scenario.trigger("c", conf={"key": f"a{character}b"})
    assert scenario.rows("select 1 from dag_run") == []


def test_a_second_run_of_the_same_id_is_refused(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 1), run_id="one")

    with pytest.raises(ConflictError, match="already has a run with run ID 'one'"):
        scenario.trigger("c", run_id="one")


HOUR = timedelta(hours=1)


def runs_at(scenario: Scenario, now: datetime) -> list[str]:
    return [made.run_id for made in Plan(scenario.engine, scenario.settings, Versions()).plan(now).runs]


def other_run(scenario: Scenario, run_type: str, state: str = "running", *, backfill: bool = False) -> int:
    """A run of another kind, as its own service makes it."""
    with scenario.engine.begin() as connection:
        version = connection.exec_driver_sql("select version_id from dag where dag_id = 'c'").scalar_one()
        backfill_id = None
        if backfill:
            backfill_id = connection.exec_driver_sql(
                "insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess)"
                " values ('c', %s, now(), now(), 1, 'none') returning id",
                (version,),
            ).scalar_one()
        found: int = connection.exec_driver_sql(
            "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at, backfill_id)"
            " values ('c', %s, %s, %s, %s, now(), now(), %s) returning id",
            (f"{run_type}__1", run_type, state, version, backfill_id),
        ).scalar_one()
        return found


@pytest.mark.parametrize("state", ["queued", "running"])
@pytest.mark.parametrize("run_type", ["manual", "asset_triggered", "backfill"])
def test_every_open_run_counts_towards_the_limit_but_those_of_backfills(scenario: Scenario, run_type: str, state: str) -> None:
    scenario.add(chain("c", 1, **hourly(max_active_runs=1)))
    other = other_run(scenario, run_type, state, backfill=run_type == "backfill")

    planned = runs_at(scenario, START)

    assert planned == (["scheduled__2026-03-01T00:00:00+00:00"] if run_type == "backfill" else [])
    scenario.sql("update dag_run set state = 'success', ended_at = now() where id = %s", other)
    runs_at(scenario, START)
    assert scenario.scheduled_dates() == [START]


@pytest.mark.parametrize("last", ["scheduled", "manual", "asset_triggered", "backfill"])
def test_with_max_active_runs_1_the_next_run_starts_within_two_turns_of_the_end_of_any(scenario: Scenario, last: str) -> None:
    scenario.add(chain("c", 1, **hourly(max_active_runs=1, catchup=True)))
    if last == "scheduled":
        scenario.turn()
    else:
        scenario.trigger("c")
        scenario.sql("update dag_run set run_type = %s, logical_date = null", last)
    scenario.turn()
    before = scenario.rows("select id from dag_run where state = 'running'")
    assert len(before) == 1

    assert scenario.work() == 1
    # Only services that the end makes due run; the slow poll is not needed.
    for timer in scenario.schedulers[0].timers.values():
        timer.due_at = float("inf")
    scenario.schedulers[0].wake(token.decode() for key in (KEY, QUEUE_KEY) for token in scenario.broker.zrange(key, 0, -1))
    for _ in range(3):
        scenario.turn(poll=False)

    after = scenario.rows("select id, run_type from dag_run where state = 'running'")
    assert len(after) == 1 and after[0][0] > before[0][0] and after[0][1] == "scheduled"


def test_runs_that_a_backfill_or_a_person_created_already_are_skipped(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(catchup=True, max_active_runs=2)))
    for number in range(60):
        run = scenario.trigger("c", logical_date=START + number * HOUR)
        scenario.sql("update dag_run set state = 'success', ended_at = now(), started_at = now() where id = %s", run)

    runs_at(scenario, START + timedelta(days=10))

    assert scenario.scheduled_dates() == [START + 60 * HOUR, START + 61 * HOUR]


def test_a_run_of_a_data_interval_comes_when_it_is_over(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(schedule=timetable.CronInterval("0 * * * *").to_spec())))

    assert runs_at(scenario, START + HOUR - timedelta(seconds=1)) == []
    assert runs_at(scenario, START + HOUR) == ["scheduled__2026-03-01T00:00:00+00:00"]
    assert scenario.rows("select data_interval_start, data_interval_end, run_after from dag_run") == [
        (START, START + HOUR, START + HOUR)
    ]


def test_an_edit_from_hourly_to_daily_intervals_makes_the_next_day(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(schedule=timetable.CronInterval("0 * * * *").to_spec(), catchup=True)))
    runs_at(scenario, START + 13 * HOUR)
    scenario.sql("update dag_run set state = 'success', ended_at = now(), started_at = now()")
    scenario.add(chain("c", 1, **hourly(schedule=timetable.CronInterval("0 0 * * *").to_spec(), catchup=True)))

    for hours in range(14, 60):
        runs_at(scenario, START + hours * HOUR)

    assert scenario.scheduled_dates()[13:] == [START + timedelta(days=1)]


def test_a_continuous_dag_runs_again_once_its_run_has_ended_but_does_not_spin(scenario: Scenario) -> None:
    """A run that ends at once is followed by the next one after CONTINUOUS_PERIOD: the schedulers have other DAGs too."""
    schedule = timetable.Continuous().to_spec()
    scenario.add(chain("c", 2, schedule=schedule, start_date=START.isoformat(), max_active_runs=1))
    now = START + HOUR

    for took in (HOUR, HOUR, timedelta(seconds=1), timedelta(0)):
        assert len(runs_at(scenario, now)) == 1
        assert runs_at(scenario, now + HOUR) == [], "the run goes on"
        scenario.sql("update dag_run set state = 'success', started_at = coalesce(started_at, now()), ended_at = now()")
        ended = now + took
        now = max(ended, now + CONTINUOUS_PERIOD)
        assert now == ended or runs_at(scenario, ended) == [] == runs_at(scenario, now - timedelta(milliseconds=1))
    assert len(runs_at(scenario, now)) == 1

    rows = scenario.rows("select data_interval_start, data_interval_end from dag_run order by id")
    assert len(rows) == 5
    assert [row[0] for row in rows[1:]] == [row[1] for row in rows[:-1]]
    assert rows[0][0] == START
    assert scenario.rows("select count(distinct logical_date) from dag_run") == [(len(rows),)]


def test_a_manual_run_between_takes_the_place_of_a_continuous_run(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, schedule=timetable.Continuous().to_spec(), start_date=START.isoformat(), max_active_runs=1))
    manual = transact(scenario.engine, manual_runs.trigger, "c").id

    scenario.turn()
    assert scenario.rows("select id from dag_run") == [(manual,)]
    scenario.work()
    scenario.turn()
    scenario.turn()

    assert scenario.rows("select run_type from dag_run where state = 'running'") == [("scheduled",)]


def test_a_manual_run_covers_the_last_complete_interval(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(schedule=timetable.CronInterval("0 * * * *").to_spec())))

    scenario.trigger("c", logical_date=START + timedelta(minutes=90))

    assert scenario.rows("select logical_date, data_interval_start, data_interval_end from dag_run") == [
        (START + timedelta(minutes=90), START, START + HOUR)
    ]


def test_a_dag_that_takes_no_manual_runs_refuses_them(scenario: Scenario) -> None:
    scenario.add(chain("c", 1, **hourly(allowed_run_types=("scheduled", "backfill"))))

    with pytest.raises(PacelineError, match="takes no manual runs: its allowed_run_types are scheduled, backfill"):
        scenario.trigger("c")
    assert runs_at(scenario, START) == ["scheduled__2026-03-01T00:00:00+00:00"]


#: Under row-level security, a reader of the table dag waits in the middle of the statement until the test releases a lock.
PAUSE = """
create function pause() returns boolean language plpgsql as $$ begin
    perform pg_advisory_lock_shared(4711);
    perform pg_advisory_unlock_shared(4711);
    return true;
end $$;
alter table dag enable row level security;
create policy paused on dag using (pause());
grant select, update on all tables in schema public to pg_read_all_data;
"""
WAITS = "select count(*) from pg_stat_activity where wait_event = 'advisory' and datname = current_database()"


def test_free_runs_are_counted_after_the_lock_is_held(scenario: Scenario) -> None:
    """A scheduler that reads slowly does not overlook the run that another makes meanwhile."""
    scenario.add(chain("c", 1, **hourly(max_active_runs=1)))
    scenario.sql(PAUSE)
    slow, quick, gate = (scenario.engine.connect() for _ in range(3))
    found: list[schedules.Due | None] = []
    try:
        gate.exec_driver_sql("select pg_advisory_lock(4711)")
        slow.exec_driver_sql("set role pg_read_all_data")
        reading = threading.Thread(target=lambda: found.append(schedules.lock(slow, "c")))
        reading.start()
        eventually(lambda: gate.exec_driver_sql(WAITS).scalar_one() == 1)

        other = schedules.lock(quick, "c")
        if other is not None and other.free_runs > 0:
            quick.exec_driver_sql(
                "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after)"
                " values ('c', 'theirs', 'manual', 'queued', %s, now())",
                (other.version_id,),
            )
        quick.commit()
        gate.exec_driver_sql("select pg_advisory_unlock(4711)")
        reading.join(20)
    finally:
        for connection in (slow, quick, gate):
            connection.close()

    (mine,) = found
    open_runs = scenario.rows("select count(*) from dag_run")[0][0]
    assert mine is not None
    assert mine.free_runs == 1 - open_runs
