"""Timetables: the next run of each kind, schedules and their specs, edits, and the runs that Airflow 3.3.2 would create."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dateutil.relativedelta import relativedelta
from support.airflow_schedules import runs
from support.authored import at, timetable_of

from paceline import DAG
from paceline.authoring import asset, timetable, zones
from paceline.authoring.asset import Asset, AssetAll, AssetAny
from paceline.authoring.timetable import (
    Continuous,
    Cron,
    CronInterval,
    Delta,
    DeltaInterval,
    Events,
    Never,
    Once,
    UpdatedOrTime,
    WhenUpdated,
)
from paceline.authoring.timetables.base import RunTimes
from paceline.exceptions import DagError, TimetableError
from paceline.timetables import (
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    EventsTimetable,
    MultipleCronTriggerTimetable,
)
from scheduler.serialized.authored import from_dag
from scheduler.settings import Core, Scheduler

NOW = datetime(2026, 6, 10, 12, 30, tzinfo=UTC)
HOURLY, DAILY, WEEKLY = "0 * * * *", "0 0 * * *", "0 0 * * 0"
A, B = Asset("a"), Asset("b")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def run_of(table: timetable.Timetable, **given: object) -> RunTimes | None:
    arguments: dict[str, object] = {"last": None, "start": None, "end": None, "catchup": False, "now": NOW} | given
    return table.next_run(**arguments)  # type: ignore[arg-type]


def next_date(table: timetable.Timetable, **given: object) -> datetime | None:
    run = run_of(table, **given)
    return run and run.logical_date


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"start": at("2026-01-01"), "catchup": True}, at("2026-01-01")),
        ({"start": at("2026-01-01T07:00"), "catchup": True}, at("2026-01-02")),
        ({"start": at("2026-01-01"), "last": at("2026-01-01"), "catchup": True}, at("2026-01-02")),
        ({"start": at("2026-01-01")}, at("2026-06-10")),
        ({"start": at("2026-01-01"), "last": at("2026-06-01")}, at("2026-06-10")),
        ({"start": at("2026-01-01"), "last": at("2026-06-10")}, at("2026-06-11")),
        ({"start": at("2026-07-01")}, at("2026-07-01")),
        ({"last": at("2026-06-01"), "start": at("2026-07-01")}, at("2026-07-01")),
        # Without start_date Airflow 3.3.2 begins with the next tick, unless the last one is about now.
        ({}, at("2026-06-11")),
        ({"now": at("2026-06-10T02:24")}, at("2026-06-10")),
        ({"now": at("2026-06-10")}, at("2026-06-10")),
        ({"start": at("2026-01-01"), "end": at("2026-06-01")}, None),
        ({"start": at("2026-01-01"), "end": at("2026-06-01"), "last": at("2026-05-31"), "catchup": True}, at("2026-06-01")),
        ({"start": at("2026-01-01"), "end": at("2026-06-01"), "last": at("2026-06-01"), "catchup": True}, None),
    ],
)
def test_the_next_daily_run(given: dict[str, object], expected: datetime | None) -> None:
    assert next_date(Cron("0 0 * * *"), **given) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"start": at("2026-06-10"), "catchup": True}, at("2026-06-10")),
        ({"start": at("2026-06-10"), "last": at("2026-06-10"), "catchup": True}, at("2026-06-10T05:00")),
        # Without catchup Airflow 3.3.2 begins now, and continues from now after missed runs.
        ({"start": at("2026-06-10")}, NOW),
        ({"start": at("2026-06-10"), "last": at("2026-06-10")}, NOW),
        ({"start": at("2026-06-10"), "last": at("2026-06-10T10:00")}, at("2026-06-10T15:00")),
        ({"start": at("2026-06-10"), "last": at("2026-06-10T08:11")}, at("2026-06-10T13:11")),
        # The next run is late, not missed.
        ({"start": at("2026-06-10"), "last": at("2026-06-10T07:29")}, at("2026-06-10T12:29")),
        ({"start": at("2026-06-11")}, at("2026-06-11")),
        ({"start": at("2026-06-10T16:00"), "last": at("2026-06-10T10:00")}, at("2026-06-10T16:00")),
        ({"start": at("2026-06-10"), "end": at("2026-06-10T11:00"), "last": at("2026-06-10T10:00")}, None),
        ({}, NOW),
    ],
)
def test_the_next_run_of_every_five_hours(given: dict[str, object], expected: datetime | None) -> None:
    assert next_date(Delta(5 * 3600), **given) == expected


def test_a_run_of_a_cron_has_an_interval_of_no_length_and_may_start_at_its_date() -> None:
    run = Cron("0 0 * * *", "Europe/Berlin").next_run(last=None, start=NOW, end=None, catchup=False, now=NOW)

    assert run is not None
    assert run.logical_date == run.data_interval_start == run.data_interval_end == run.run_after
    assert run.logical_date == at("2026-06-10T22:00")
    assert run.logical_date.tzinfo is UTC


def test_once_runs_at_its_start_and_never_again() -> None:
    assert next_date(Once(), start=at("2026-01-01")) == at("2026-01-01")
    assert next_date(Once()) == NOW
    assert next_date(Once(), last=at("2026-01-01")) is None


def test_never_has_no_run() -> None:
    assert next_date(Never(), start=at("2026-01-01"), catchup=True) is None


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        (None, Never()),
        ("@once", Once()),
        ("@hourly", Cron("0 * * * *")),
        ("@daily", Cron("0 0 * * *")),
        ("@midnight", Cron("0 0 * * *")),
        ("@weekly", Cron("0 0 * * 0")),
        ("@monthly", Cron("0 0 1 * *")),
        ("@quarterly", Cron("0 0 1 */3 *")),
        ("@yearly", Cron("0 0 1 1 *")),
        ("@annually", Cron("0 0 1 1 *")),
        (" 5  4 * * * ", Cron("5 4 * * *")),
        (timedelta(minutes=90), Delta(5400)),
        ("@continuous", Continuous()),
        (A, WhenUpdated(A)),
        ([A, B], WhenUpdated(AssetAll(A, B))),
        ([A], WhenUpdated(A)),
        (A & B, WhenUpdated(AssetAll(A, B))),
        (A | B, WhenUpdated(AssetAny(A, B))),
        (["@daily", "30 2 * * *"], Cron(DAILY, more=("30 2 * * *",))),
        (relativedelta(months=1, day=1), Delta(relative=(("day", 1), ("months", 1)))),
        (MultipleCronTriggerTimetable("0 1 * * *", "30 13 * * *", timezone="Europe/Berlin"),
         Cron("0 1 * * *", "Europe/Berlin", more=("30 13 * * *",))),
        (CronTriggerTimetable("@daily", timezone=ZoneInfo("Europe/Berlin"), interval=DAY),
         Cron(DAILY, "Europe/Berlin", interval_s=86400.0)),
        (CronDataIntervalTimetable(DAILY, "Europe/Berlin"), CronInterval(DAILY, "Europe/Berlin")),
        (DeltaTriggerTimetable(HOUR, interval=DAY), Delta(3600.0, interval_s=86400.0)),
        (DeltaDataIntervalTimetable(HOUR), DeltaInterval(3600.0)),
        (DeltaDataIntervalTimetable(relativedelta(months=2)), DeltaInterval(relative=(("months", 2),))),
        (EventsTimetable([at("2026-01-01")]), Events(("2026-01-01T00:00:00+00:00",))),
        (AssetOrTimeSchedule(timetable=CronTriggerTimetable(DAILY, timezone="UTC"), assets=[A, B]),
         UpdatedOrTime(Cron(DAILY), AssetAll(A, B))),
    ],
)  # fmt: skip
def test_a_schedule_becomes_a_timetable_that_survives_its_spec(schedule: object, table: timetable.Timetable) -> None:
    assert timetable_of(schedule) == table
    assert timetable.from_spec(table.to_spec()) == table
    assert table.summary


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("@dayly", "did you mean '@daily'"),
        ("every day", "has 2 fields"),
        ("0 0 31 2 *", "never occurs"),
        (timedelta(0), "longer than zero"),
        (timedelta(days=-1), "longer than zero"),
        (5, r"cannot be 5 \(int\)"),
        ([], r"schedule cannot be \[\]"),
        ([A, "@daily"], "only assets, or only cron expressions"),
        (["@daily", "0 0 31 2 *"], "never occurs"),
        ([1], "only assets, or only cron expressions"),
        (relativedelta(weekday=1), "names a weekday"),
        (relativedelta(months=-1), "do not"),
        (relativedelta(day=1), "do not"),
        (relativedelta(hours=-1), "longer than zero"),
    ],
)
def test_a_schedule_that_cannot_be_understood_is_an_error_of_its_line(schedule: object, words: str) -> None:
    with pytest.raises(TimetableError, match=words) as caught:
        DAG("d", schedule=schedule)

    assert caught.value.file == __file__
    assert str(caught.value).startswith("DAG 'd': ")


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (UTC, "UTC"),
        (ZoneInfo("UTC"), "UTC"),
        (ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
        (timezone(timedelta(hours=5, minutes=30)), "+05:30"),
        (timezone(-timedelta(hours=3)), "-03:00"),
    ],
)
def test_a_schedule_has_the_time_zone_of_start_date(zone: timezone, name: str) -> None:
    dag = DAG("d", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=zone))

    assert dag.timezone == name
    assert dag.timetable == Cron("0 0 * * *", name)
    assert next_date(dag.timetable, start=dag.start_date, catchup=True) == dag.start_date


def test_a_zone_of_another_library_is_found_by_its_name() -> None:
    tz = pytest.importorskip("dateutil.tz")

    assert zones.name_of(datetime(2026, 1, 1, tzinfo=tz.gettz("Europe/Berlin"))) == "Europe/Berlin"
    assert zones.name_of(datetime(2026, 1, 1, tzinfo=tz.tzutc())) == "UTC"


def test_without_start_date_the_default_zone_counts() -> None:
    zones.set_default("America/New_York")
    try:
        assert DAG("d", schedule="@daily").timetable == Cron("0 0 * * *", "America/New_York")
    finally:
        zones.set_default("UTC")


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (timedelta(hours=1), "every hour"),
        (timedelta(days=7), "every 7 days"),
        (timedelta(minutes=90), "every 1 hour 30 minutes"),
        (timedelta(seconds=0.5), "every 0.5 seconds"),
        (relativedelta(months=1), "every month"),
        (relativedelta(months=2, days=1), "every 2 months 1 day"),
    ],
)
def test_a_step_is_named_in_words(step: object, text: str) -> None:
    assert timetable_of(step).summary == text


@pytest.mark.parametrize("table", [CronInterval("0 0 * * *"), DeltaInterval(86400)])
@pytest.mark.parametrize(
    ("given", "begin"),
    [
        ({"start": at("2026-01-01"), "catchup": True}, at("2026-01-01")),
        ({"start": at("2026-01-01"), "last": at("2026-01-01"), "catchup": True}, at("2026-01-02")),
        # The latest interval that is complete, not the one that goes on.
        ({"start": at("2026-01-01")}, at("2026-06-09")),
        ({"start": at("2026-01-01"), "now": at("2026-06-10")}, at("2026-06-09")),
        ({"start": at("2026-01-01"), "now": at("2026-06-10") - timedelta(seconds=1)}, at("2026-06-08")),
        ({"start": at("2026-01-01"), "last": at("2026-06-01")}, at("2026-06-09")),
        ({"start": at("2026-01-01"), "last": at("2026-06-09")}, at("2026-06-10")),
        # Never before start_date, however new that is.
        ({"start": at("2026-06-10")}, at("2026-06-10")),
        ({"start": at("2026-07-01")}, at("2026-07-01")),
        ({"start": at("2026-01-01"), "end": at("2026-06-09")}, at("2026-06-09")),
        ({"start": at("2026-01-01"), "end": at("2026-06-08")}, None),
    ],
)
def test_the_next_daily_interval(table: timetable.Timetable, given: dict[str, object], begin: datetime | None) -> None:
    run = run_of(table, **given)

    if begin is None:
        assert run is None
    else:
        assert run == RunTimes(begin, begin, begin + DAY, begin + DAY)


def test_without_a_start_the_first_interval_is_the_latest_complete_one() -> None:
    for catchup in (True, False):
        run = run_of(CronInterval("0 0 * * *"), catchup=catchup)
        assert run is not None and run.data_interval_start == at("2026-06-09")
    # Airflow 3.3.2 counts a step from 1970 if it has no catchup, with any start_date.
    for given in ({}, {"start": at("2026-06-01T00:20")}, {"start": at("2026-06-01T00:20"), "last": at("2026-06-09T00:20")}):
        run = run_of(DeltaInterval(3600), **given)
        assert run is not None and (run.data_interval_start, run.run_after) == (at("2026-06-10T11:00"), at("2026-06-10T12:00"))


@pytest.mark.parametrize(("last", "begin"), [("2026-06-10T10:20", "2026-06-10T11:20"), ("2026-06-10T11:20", "2026-06-10T12:20")])
def test_intervals_of_a_step_continue_where_the_last_one_ended(last: str, begin: str) -> None:
    run = run_of(DeltaInterval(3600), start=at("2026-06-10T00:20"), last=at(last), covered=at(last) + HOUR)

    assert run is not None and (run.data_interval_start, run.data_interval_end) == (at(begin), at(begin) + HOUR)


def test_each_of_several_crons_chooses_its_first_run() -> None:
    """As in Airflow 3.3.2: half an hour ago is about now for a daily cron, but not for an hourly one."""
    both = MultipleCronTriggerTimetable("0 12 * * *", "0 * * * *", timezone="UTC")
    for catchup in (True, False):
        assert next_date(both, catchup=catchup) == at("2026-06-10T12:00")
    hourly = run_of(MultipleCronTriggerTimetable("15 * * * *", "0 * * * *", timezone="UTC"))
    assert hourly is not None and hourly.logical_date == at("2026-06-10T13:00")


def test_several_crons_are_one_row_of_ticks() -> None:
    table = timetable_of(["0 1 * * *", "30 13 * * *", "0 1 * * *"])
    ticks = [run.logical_date for run in table.runs_between(at("2026-06-01"), at("2026-06-02T14:00"))]

    assert table == Cron("0 1 * * *", more=("30 13 * * *",))
    assert ticks == [at("2026-06-01T01:00"), at("2026-06-01T13:30"), at("2026-06-02T01:00"), at("2026-06-02T13:30")]
    # At one moment at most one run, and without catchup the newest tick of all.
    both = MultipleCronTriggerTimetable("0 * * * *", "0 */2 * * *", timezone="UTC")
    assert len(list(both.runs_between(at("2026-06-01"), at("2026-06-01T05:00")))) == 6
    assert next_date(table, start=at("2026-01-01")) == at("2026-06-10T01:00")


def test_a_trigger_with_an_interval_covers_the_time_before_its_tick() -> None:
    table = CronTriggerTimetable("0 6 * * *", timezone="UTC", interval=timedelta(hours=6))
    first = run_of(table, start=at("2026-06-01"), catchup=True)
    assert first == RunTimes(at("2026-06-01"), at("2026-06-01"), at("2026-06-01T06:00"), at("2026-06-01T06:00"))

    following = run_of(table, last=first.logical_date, covered=first.data_interval_end, start=at("2026-06-01"), catchup=True)
    assert following is not None and following.logical_date == at("2026-06-02")
    assert [run.logical_date for run in table.runs_between(at("2026-06-02"), at("2026-06-03"))] == [
        at("2026-06-02"),
        at("2026-06-03"),
    ]
    assert table.manual_interval(NOW) == (NOW - timedelta(hours=6), NOW)


@pytest.mark.parametrize(
    ("run_immediately", "now", "tick"),
    [
        (True, "2026-06-10T23:00", "2026-06-10"),
        (False, "2026-06-10T23:00", "2026-06-11"),
        (None, "2026-06-10T02:24", "2026-06-10"),
        (None, "2026-06-10T02:25", "2026-06-11"),
        (False, "2026-06-10T00:00", "2026-06-10"),
        (timedelta(hours=5), "2026-06-10T05:00", "2026-06-10"),
        (timedelta(hours=5), "2026-06-10T05:01", "2026-06-11"),
    ],
)
def test_how_a_dag_without_start_begins(run_immediately: bool | timedelta | None, now: str, tick: str) -> None:
    table = CronTriggerTimetable("0 0 * * *", timezone="UTC", run_immediately=run_immediately)

    assert next_date(table, now=at(now)) == at(tick)
    assert timetable.from_spec(table.to_spec()) == table


@pytest.mark.parametrize("table", [Cron("0 0 * * *"), CronInterval("0 0 * * *")], ids=["cron", "intervals"])
def test_a_later_start_date_applies_to_a_dag_that_has_runs(table: timetable.Timetable) -> None:
    assert next_date(table, start=at("2026-06-05"), last=at("2026-06-01"), covered=at("2026-06-02"), catchup=True) == at(
        "2026-06-05"
    )


def test_months_counted_from_the_31st_do_not_wear_off() -> None:
    table = timetable_of(relativedelta(months=1))
    start, last, dates = at("2026-01-31"), None, []
    for _ in range(4):
        run = run_of(table, start=start, last=last, catchup=True)
        assert run is not None
        last = run.logical_date
        dates.append(last.strftime("%m-%d"))

    assert dates == ["01-31", "02-28", "03-31", "04-30"]
    assert timetable_of(relativedelta(hours=36)) == Delta(129600)


def test_a_start_that_every_reading_moves_on_brings_no_run_nearer_than_a_step() -> None:
    table, last = Delta(3600), at("2026-06-10T12:00")
    for seconds in range(0, 3600, 500):
        assert next_date(table, start=at("2026-06-09") + timedelta(seconds=seconds), last=last, catchup=True) == last + HOUR


def test_events_come_in_order_and_only_those_to_come_without_catchup() -> None:
    dates = [at("2026-06-12"), at("2026-06-01"), at("2026-06-11"), at("2026-06-11")]
    table = EventsTimetable(dates, restrict_to_events=True)

    assert [run.logical_date for run in table.runs_between(at("2026-06-01"), at("2026-06-30"))] == sorted(set(dates))
    for given, expected in [
        ({}, "2026-06-11"),
        ({"catchup": True}, "2026-06-01"),
        ({"last": at("2026-06-01"), "now": at("2026-06-20")}, "2026-06-12"),
        ({"last": at("2026-06-01"), "now": at("2026-06-20"), "catchup": True}, "2026-06-11"),
        ({"now": at("2026-06-11")}, "2026-06-11"),
    ]:
        assert next_date(table, **given) == at(expected)
    assert run_of(table, last=at("2026-06-12")) is None
    assert run_of(table, end=at("2026-06-10")) is None
    assert table.manual_interval(NOW) == (at("2026-06-01"), at("2026-06-01"))


def test_continuous_runs_cover_all_the_time_and_never_share_a_date() -> None:
    table, last, covered, now = Continuous(), None, None, NOW
    runs = []
    for minutes in (0, 3, 7, 90):
        now += timedelta(minutes=minutes)
        run = run_of(table, last=last, covered=covered, start=at("2026-06-10"), now=now)
        assert run is not None and run.run_after <= now + timedelta(microseconds=5)
        runs.append(run)
        last, covered = run.logical_date, run.data_interval_end

    assert [run.data_interval_start for run in runs[1:]] == [run.data_interval_end for run in runs[:-1]]
    at_once = run_of(table, last=last, covered=last, now=last)
    assert at_once is not None and at_once.logical_date > last
    assert run_of(table, end=at("2026-06-01")) is None


def test_continuous_takes_one_run_at_a_time() -> None:
    assert DAG("d", schedule="@continuous").max_active_runs == 1
    assert DAG("d", schedule="@continuous", max_active_runs=1).max_active_runs == 1
    with pytest.raises(DagError, match="max_active_runs must be 1 with schedule='@continuous', not 2"):
        DAG("d", schedule="@continuous", max_active_runs=2)


TABLES = [
    Cron(HOURLY),
    Cron(DAILY),
    Cron(WEEKLY),
    Cron(DAILY, interval_s=86400.0),
    CronInterval(HOURLY),
    CronInterval(DAILY),
    CronInterval(WEEKLY),
    Delta(3600),
    Delta(relative=(("months", 1),)),
    DeltaInterval(7200),
    DeltaInterval(86400),
]


@pytest.mark.parametrize("catchup", [True, False])
@pytest.mark.parametrize("after", TABLES, ids=lambda one: one.summary)
@pytest.mark.parametrize("before", TABLES, ids=lambda one: one.summary)
def test_an_edit_of_the_schedule_never_leads_back(before: timetable.Timetable, after: timetable.Timetable, catchup: bool) -> None:
    start, last, covered = at("2026-06-01"), None, None
    for table in [before] * 4 + [after] * 4:
        run = run_of(table, start=start, last=last, covered=covered, catchup=catchup)
        assert run is not None and (last is None or run.logical_date > last)
        last, covered = run.logical_date, run.data_interval_end


def test_an_edit_from_daily_to_hourly_intervals_continues_where_the_data_ended() -> None:
    run = run_of(CronInterval(HOURLY), start=at("2026-01-01"), last=at("2026-06-01"), covered=at("2026-06-02"), catchup=True)

    assert run is not None and run.data_interval_start == at("2026-06-02")


@pytest.mark.parametrize(
    ("table", "anchor", "latest"),
    [
        (Cron(DAILY), None, "2026-06-10"),
        (Cron(DAILY, run_immediately=False), None, "2026-06-10"),
        (CronInterval(DAILY), None, "2026-06-09"),
        (Delta(5 * 3600), at("2026-06-10"), "2026-06-10T10:00"),
        (DeltaInterval(5 * 3600), at("2026-06-10"), "2026-06-10T05:00"),
        (Events(("2026-06-01T00:00:00+00:00", "2026-07-01T00:00:00+00:00")), None, "2026-06-01"),
        (UpdatedOrTime(Cron(DAILY), A), None, "2026-06-10"),
    ],
)
def test_the_latest_run_that_is_due(table: timetable.Timetable, anchor: datetime | None, latest: str) -> None:
    run = table.latest(NOW, anchor=anchor)

    assert run is not None and run.logical_date == at(latest)


@pytest.mark.parametrize("table", [timetable.Never(), timetable.Once(), Continuous(), WhenUpdated(A), Delta(60)])
def test_a_schedule_without_a_rhythm_has_no_latest_run(table: timetable.Timetable) -> None:
    assert table.latest(NOW) is None
    assert table.is_periodic is isinstance(table, Delta)
    if not table.is_periodic:
        assert list(table.runs_between(NOW - DAY, NOW)) == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CronTriggerTimetable("@dayly", timezone="UTC"), "did you mean '@daily'"),
        (lambda: CronTriggerTimetable(DAILY, timezone="Mars"), "There is no time zone 'Mars'"),
        (lambda: CronTriggerTimetable(DAILY, timezone="UTC", interval=-DAY), "zero or more"),
        (lambda: MultipleCronTriggerTimetable(timezone="UTC"), "one cron expression or more"),
        (lambda: DeltaTriggerTimetable(timedelta(0)), "longer than zero"),
        (lambda: DeltaDataIntervalTimetable(5), "must be a timedelta or a relativedelta"),  # type: ignore[arg-type]
        (lambda: EventsTimetable([]), "one or more"),
        (lambda: EventsTimetable([datetime(2026, 1, 1)]), "with a time zone"),
        (lambda: AssetOrTimeSchedule(timetable="@daily", assets=[A]), "must be a timetable"),  # type: ignore[arg-type]
        (lambda: AssetOrTimeSchedule(timetable=Cron(DAILY), assets=[]), "must be an Asset"),
        (lambda: Asset(""), "1 to 1500 ASCII characters"),
        (lambda: Asset("ä"), "1 to 1500 ASCII characters"),
        (lambda: Asset("a\nb"), "control characters"),
        (lambda: Asset("s3://user:secret@host/x"), "must not contain a password"),
        (lambda: Asset("a", watchers=[1]), "watchers takes a list of AssetWatcher"),
        (lambda: AssetAll(), "needs one or more assets"),
    ],
)  # fmt: skip
def test_an_invalid_timetable_or_asset_is_one_sentence_with_its_line(make: object, words: str) -> None:
    with pytest.raises(DagError, match=words) as caught:
        make()  # type: ignore[operator]

    assert caught.value.file == __file__


def test_a_schedule_counts_assets_of_one_uri_once() -> None:
    assert AssetAny(Asset("s3://bucket/a"), Asset("a", uri="s3://bucket/a")).uris == ["s3://bucket/a"]


def test_either_of_name_and_uri_stands_for_the_other() -> None:
    assert (Asset("x").uri, Asset(uri="s3://x").name) == ("x", "s3://x")
    assert Asset("x", "s3://x") == asset.from_spec({"name": "x", "uri": "s3://x"})
    assert Asset("x", "s3://x") != Asset("y", "s3://x")


@pytest.mark.parametrize(
    ("schedule", "cron", "delta", "kind"),
    [
        ("@daily", False, False, "cron"),
        ("@daily", True, False, "cron_interval"),
        (HOUR, True, False, "delta"),
        (HOUR, False, True, "delta_interval"),
        (CronTriggerTimetable(DAILY, timezone="UTC"), True, True, "cron"),
        (["@daily", "@hourly"], True, True, "cron"),
        (DeltaTriggerTimetable(HOUR), True, True, "delta"),
        (None, True, True, "never"),
    ],
)
def test_settings_choose_the_timetable_of_a_plain_schedule(schedule: object, cron: bool, delta: bool, kind: str) -> None:
    config = Scheduler(create_cron_data_intervals=cron, create_delta_data_intervals=delta)

    assert from_dag(DAG("d", schedule=schedule), file="d.py", core=Core(), scheduler=config).schedule["kind"] == kind


@pytest.mark.parametrize("kind", [Delta, DeltaInterval])
@pytest.mark.parametrize("anchor", ["2026-01-01T06:00", "2026-01-20T06:00"])
def test_a_backfill_of_a_timedelta_stays_on_the_grid_of_the_dags_start_date(kind: type[Delta | DeltaInterval], anchor: str) -> None:
    runs = kind(seconds=86400.0).runs_between(at("2026-01-03"), at("2026-01-05"), anchor=at(anchor))

    assert [run.logical_date for run in runs] == [at("2026-01-03T06:00"), at("2026-01-04T06:00")]


CASES = [json.loads(line) for line in Path(__file__).with_name("airflow_schedules.jsonl").read_text().splitlines()]


def test_schedules_have_the_runs_of_airflow() -> None:
    different = [case for case in CASES if runs(case, len(case["runs"])) != case["runs"]]

    assert different == []


def test_the_recording_has_every_kind() -> None:
    assert {case["kind"] for case in CASES} == {
        "cron", "several", "intervals", "delta", "delta_intervals", "months", "immediately"
    }  # fmt: skip
