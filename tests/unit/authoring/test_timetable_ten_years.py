"""Ten years of cron ticks and data intervals in five zones, compared with the plain rule."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.authoring.timetable import Cron, CronInterval

#: Half an hour and midnight moved, clocks put back for a month of each year, and the usual two.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca"]
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
MARGIN = timedelta(days=3)

minutes = st.lists(st.integers(0, 59), min_size=1, max_size=2, unique=True)
#: Hours at which clocks are changed come more often.
hours = st.lists(st.sampled_from([0, 1, 2, 3, 23]) | st.integers(0, 23), min_size=1, max_size=2, unique=True)
days = st.sampled_from(["* * *", "* * 0", "* * 0", "* * 6,0,1", "1-7 * *", "* 3,4,9-11 *", "L * *", "29 2 *"])


def field(values: list[int]) -> str:
    return ",".join(map(str, sorted(values)))


def named(expression: str, zone: ZoneInfo, first: datetime, last: datetime) -> list[datetime]:
    """Each named wall-clock time once: the last time it is shown, or, if it is skipped, as if clocks were not changed yet."""
    walls = croniter(expression, (first - MARGIN).replace(tzinfo=None))
    moments, end = set(), (last + MARGIN).replace(tzinfo=None)
    while (wall := walls.get_next(datetime)) <= end:
        moments.add(max(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)))
    return sorted(moment for moment in moments if first <= moment <= last)


def shown(minute: set[int], zone: ZoneInfo, first: datetime, last: datetime) -> list[datetime]:
    """Every moment at which the clocks show one of the minutes."""
    moments = (first + timedelta(minutes=number) for number in range(int((last - first) / timedelta(minutes=1)) + 1))
    return [moment for moment in moments if moment.astimezone(zone).minute in minute]


def changes(zone: ZoneInfo) -> list[datetime]:
    """The first whole hour after each change of the clocks."""
    moments = [FIRST + timedelta(hours=number) for number in range(0, int((LAST - FIRST) / timedelta(hours=1)), 6)]
    offsets = [moment.astimezone(zone).utcoffset() for moment in moments]
    return [moment for moment, (before, after) in zip(moments[1:], pairwise(offsets), strict=True) if before != after]


@pytest.mark.long
@pytest.mark.parametrize("name", ZONES)
@settings(max_examples=8, deadline=None)
@given(
    minute=minutes, hour=hours, day=days, moments=st.lists(st.datetimes(datetime(2020, 3, 1), datetime(2029, 12, 1)), max_size=20)
)
def test_named_times_come_once_a_day_in_data_intervals_without_gaps(
    name: str, minute: list[int], hour: list[int], day: str, moments: list[datetime]
) -> None:
    zone, expression = ZoneInfo(name), f"{field(minute)} {field(hour)} {day}"
    expected = named(expression, zone, FIRST, LAST)
    table, ticks = CronInterval(expression, name), Cron(expression, name)

    runs = list(table.runs_between(FIRST, LAST))

    assert [run.logical_date for run in runs] == expected
    assert all(before.data_interval_end == after.data_interval_start for before, after in pairwise(runs))
    assert all(run.data_interval_start < run.data_interval_end == run.run_after for run in runs)
    for tick in expected:
        wall = tick.astimezone(zone)
        in_gap = (tick - timedelta(hours=1)).astimezone(zone).utcoffset() != wall.utcoffset()
        assert in_gap or (wall.minute in minute and wall.hour in hour)
        assert wall.replace(fold=1).utcoffset() == wall.utcoffset(), "the first of two"
    for moment in moments:
        now = moment.replace(tzinfo=UTC)
        place = bisect_right(expected, now)
        if place > 1:
            latest, complete = ticks.latest(now), table.latest(now)
            assert latest is not None and latest.logical_date == expected[place - 1]
            assert complete is not None and complete.data_interval_end == expected[place - 1]
            assert complete.logical_date == expected[place - 2]
            for one in (table, ticks):
                following = one.next_run(
                    last=expected[place - 2],
                    covered=expected[place - 1] if one is table else None,
                    start=FIRST,
                    end=None,
                    catchup=True,
                    now=now,
                )
                assert following is not None and following.logical_date == expected[place - 1]


@pytest.mark.parametrize("name", ZONES)
@settings(max_examples=2, deadline=None)
@given(minute=minutes, data=st.data())
def test_every_hour_means_every_moment_that_shows_the_minute(name: str, minute: list[int], data: st.DataObject) -> None:
    zone, expression = ZoneInfo(name), f"{field(minute)} * * * *"
    table = CronInterval(expression, name)
    changed = changes(zone)
    assert len(changed) >= 12

    for moment in data.draw(st.lists(st.sampled_from(changed), min_size=4, max_size=4, unique=True)):
        first, last = moment - timedelta(hours=30), moment + timedelta(hours=24)
        runs = list(table.runs_between(first, last))

        assert [run.logical_date for run in runs] == shown(set(minute), zone, first, last)
        assert all(before.data_interval_end == after.data_interval_start for before, after in pairwise(runs))
