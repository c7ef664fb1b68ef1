"""The next run of a timetable."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from dateutil.relativedelta import relativedelta
from support.authored import at, timetable_of

from paceline import DAG
from paceline.authoring import timetable, zones
from paceline.authoring.timetable import Cron, Delta, Never, Once
from paceline.exceptions import TimetableError

NOW = datetime(2026, 6, 10, 12, 30, tzinfo=UTC)


def next_date(table: timetable.Timetable, **given: object) -> datetime | None:
    arguments: dict[str, object] = {"last": None, "start": None, "end": None, "catchup": False, "now": NOW} | given
    run = table.next_run(**arguments)  # type: ignore[arg-type]
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
    ],
)
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
