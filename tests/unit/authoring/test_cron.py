"""Cron ticks, above all at changes of daylight saving time."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from paceline.authoring import zones
from paceline.authoring.timetables.ticks import Clock, check_cron
from paceline.exceptions import TimetableError

#: Zone and a day on which its clocks are changed; Lord Howe moves by half an hour, Apia left out a whole day.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29)),
    ("Europe/Berlin", datetime(2026, 10, 25)),
    ("America/New_York", datetime(2026, 3, 8)),
    ("America/New_York", datetime(2026, 11, 1)),
    ("Australia/Lord_Howe", datetime(2026, 4, 5)),
    ("Australia/Lord_Howe", datetime(2026, 10, 4)),
    ("Pacific/Apia", datetime(2011, 12, 30)),
]
EVERY_HOUR = ["0 * * * *", "*/20 * * * *", "45 * * * 0,5"]
NAMED_HOURS = ["30 2 * * *", "0,30 1-3 * * *", "15 */6 * * *", "59 1 * * 0", "0 0 * * *", "*/20 0-22 * * *"]


def walls(expression: str, first: datetime, last: datetime) -> list[datetime]:
    ticks, found = croniter(expression, first - timedelta(seconds=1)), []
    while (wall := ticks.get_next(datetime)) <= last:
        found.append(wall)
    return found


def expected(expression: str, zone: ZoneInfo, first: datetime, last: datetime) -> list[datetime]:
    """The rule itself, spelled out: each named time once, in a repeated hour the second time as in Airflow 3.3.2, or every moment
    that shows a matching time.
    """
    found = set()
    for wall in walls(expression, first, last):
        moments = [wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        if expression in NAMED_HOURS:
            found.add(max(moments))  # also of a skipped time, which occurs as if the clocks were not changed yet
        else:
            found |= {moment for moment in moments if moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall}
    return sorted(found)


def sequence(clock: Clock, first: datetime, last: datetime) -> list[datetime]:
    found, tick = [], clock.from_on(first)
    while tick is not None and tick <= last:
        found.append(tick)
        tick = clock.after(tick)
    return found


@pytest.mark.parametrize("expression", EVERY_HOUR + NAMED_HOURS)
@pytest.mark.parametrize(("name", "day"), CHANGES)
def test_ticks_follow_the_rule_over_a_change_of_the_clocks(name: str, day: datetime, expression: str) -> None:
    zone = ZoneInfo(name)
    first, last = (day + timedelta(days=d) for d in (-3, 4))
    reference = expected(expression, zone, first - timedelta(days=3), last + timedelta(days=3))
    start, end = (moment.replace(tzinfo=zone).astimezone(UTC) for moment in (first, last))

    ticks = sequence(Clock(expression, zone), start, end)

    assert ticks == [tick for tick in reference if start <= tick <= end]


@pytest.mark.parametrize("expression", EVERY_HOUR + NAMED_HOURS)
@pytest.mark.parametrize(("name", "day"), CHANGES)
def test_the_last_tick_agrees_with_the_ticks_before(name: str, day: datetime, expression: str) -> None:
    zone = ZoneInfo(name)
    clock = Clock(expression, zone)
    reference = expected(expression, zone, day - timedelta(days=12), day + timedelta(days=6))
    middle = day.replace(tzinfo=zone).astimezone(UTC)

    for minutes in range(-1500, 3000, 97 if day.year == 2026 else 750):
        moment = middle + timedelta(minutes=minutes, seconds=30)
        assert clock.up_to(moment) == max(tick for tick in reference if tick <= moment)


@pytest.mark.parametrize(
    ("name", "expression", "after", "tick"),
    [
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00+00:00", "2026-03-29T03:30+02:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-03-29T12:00+00:00", "2026-03-30T02:30+02:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00+00:00", "2026-10-25T02:30+01:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:45+00:00", "2026-10-25T02:30+01:00"),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:30+00:00", "2026-10-26T02:30+01:00"),
        ("Europe/Berlin", "0 * * * *", "2026-10-25T00:00+00:00", "2026-10-25T02:00+01:00"),
        ("Europe/Berlin", "0 * * * *", "2026-03-29T00:00+00:00", "2026-03-29T03:00+02:00"),
        ("America/New_York", "0 9 * * *", "2026-03-07T20:00+00:00", "2026-03-08T09:00-04:00"),
        ("America/New_York", "30 1 * * *", "2026-11-01T05:30+00:00", "2026-11-01T01:30-05:00"),
        ("America/New_York", "30 1 * * *", "2026-11-01T06:30+00:00", "2026-11-02T01:30-05:00"),
        ("Australia/Lord_Howe", "0 * * * *", "2026-04-04T14:30+00:00", "2026-04-05T02:00+10:30"),
        ("UTC", "0 0 29 2 *", "2026-01-01T00:00+00:00", "2028-02-29T00:00+00:00"),
    ],
)
def test_well_known_cases(name: str, expression: str, after: str, tick: str) -> None:
    found = Clock(expression, ZoneInfo(name)).after(datetime.fromisoformat(after))

    assert found == datetime.fromisoformat(tick)


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_six_years_of_a_daily_time_never_stand_still_and_lose_no_day(name: str) -> None:
    zone = ZoneInfo(name)
    ticks = sequence(Clock("15 2 * * *", zone), datetime(2024, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))

    days = [tick.astimezone(zone).date() for tick in ticks]
    assert days == sorted(set(days))
    assert len(days) == (days[-1] - days[0]).days + 1


@pytest.mark.parametrize("seconds", [0, 0.25, 1, 59.999999])
def test_a_moment_between_seconds_rounds_neither_way(seconds: float) -> None:
    clock = Clock("* * * * *", UTC)
    minute = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    moment = minute + timedelta(seconds=seconds)

    assert clock.up_to(moment) == minute
    assert clock.after(moment) == minute + timedelta(minutes=1)
    assert clock.from_on(moment) == (minute if not seconds else minute + timedelta(minutes=1))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * *", "has 4 fields"),
        ("61 * * * *", "is not a cron expression"),
        ("* * * * * * *", "has 7 fields"),
        ("a b c d e", "is not a cron expression"),
        ("0 0 31 2 *", "never occurs"),
        ("R R * * *", "differ at each parsing"),
        ("H 3 * * *", "differ at each parsing"),
    ],
)
def test_a_bad_expression_is_refused(expression: str, words: str) -> None:
    with pytest.raises(TimetableError, match=words):
        check_cron(expression, "UTC")


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("0 4 * * THU", "2026-01-01 03:00"),
        ("0 0 1 MAR *", "2026-02-28 23:00"),
        ("0 0 l * *", "2026-01-30 23:00"),
        ("*/5 * * * * 30", "2026-01-01 00:00:30"),
        ("0 0 * * sat#2", "2026-01-09 23:00"),
    ],
)
def test_names_of_days_and_months_and_six_fields_are_allowed(expression: str, first: str) -> None:
    check_cron(expression, "Europe/Berlin")

    clock = Clock(expression, zones.load("Europe/Berlin"))
    assert clock.after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime.fromisoformat(f"{first}+00:00")
