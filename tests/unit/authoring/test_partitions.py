"""Partition mappers, windows and the timetables that use them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline import (
    DAG,
    AllowedKeyMapper,
    Asset,
    AssetAlias,
    ChainMapper,
    CronPartitionTimetable,
    DayWindow,
    FanOutMapper,
    FixedKeyMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    MonthWindow,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
    PartitionMapper,
    ProductMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
    WeekWindow,
    Window,
    YearWindow,
)
from paceline.authoring import timetable
from paceline.authoring.asset import OutletEvents
from paceline.authoring.timetables.base import Partition
from paceline.authoring.timetables.partitioned import WhenPartitioned
from paceline.exceptions import PacelineError, TimetableError

A, B = Asset("a", "s3://a"), Asset("b", "s3://b")
BACK = Window.Direction.BACKWARD
REGIONS = SegmentWindow(["us", "eu", "us"])
DAILY = RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow())


@pytest.mark.parametrize(
    ("mapper", "key", "expected"),
    [
        (IdentityMapper(), "us", ["us"]),
        (AllowedKeyMapper(["us", "eu"]), "eu", ["eu"]),
        (FixedKeyMapper("all"), "us", ["all"]),
        (StartOfHourMapper(), "2024-03-13T10:42:15", ["2024-03-13T10"]),
        (StartOfDayMapper(), "2024-03-13T10:42:15", ["2024-03-13"]),
        (StartOfWeekMapper(), "2024-03-13T10:42:15", ["2024-03-11 (W11)"]),
        (StartOfMonthMapper(input_format="%Y-%m-%d"), "2024-03-13", ["2024-03"]),
        (StartOfQuarterMapper(), "2024-05-13T10:42:15", ["2024-Q2"]),
        (StartOfYearMapper(), "2024-03-13T10:42:15", ["2024"]),
        # In New York it is still the day before.
        (StartOfDayMapper(timezone="America/New_York", input_format="%Y-%m-%dT%H%z"), "2024-03-13T01+0000", ["2024-03-12"]),
        (ChainMapper(StartOfDayMapper(), StartOfMonthMapper(input_format="%Y-%m-%d")), "2024-03-13T10:42:15", ["2024-03"]),
        (ProductMapper(IdentityMapper(), StartOfDayMapper()), "us|2024-03-13T10:42:15", ["us|2024-03-13"]),
        (DAILY, "2024-03-13T10:42:15", ["2024-03-13"]),
        (
            FanOutMapper(upstream_mapper=StartOfQuarterMapper(), window=QuarterWindow()),
            "2024-05-13T00:00:00",
            ["2024-04", "2024-05", "2024-06"],
        ),
        (
            FanOutMapper(upstream_mapper=StartOfWeekMapper(), window=WeekWindow(direction=BACK)),
            "2024-03-13T00:00:00",
            ["2024-03-05", "2024-03-06", "2024-03-07", "2024-03-08", "2024-03-09", "2024-03-10", "2024-03-11"],
        ),
        (
            FanOutMapper(upstream_mapper=IdentityMapper(), window=REGIONS, downstream_mapper=IdentityMapper()),
            "x",
            ["eu", "us"],
        ),
    ],
)
def test_a_mapper_gives_the_keys_of_runs_and_survives_being_stored(mapper: PartitionMapper, key: str, expected: list[str]) -> None:
    others = {B: FixedKeyMapper("b")}
    table = PartitionedAssetTimetable(assets=[A, B], default_partition_mapper=mapper, partition_mapper_config=others)

    stored = timetable.from_spec(table.to_spec())

    assert isinstance(stored, WhenPartitioned) and stored == table
    assert (stored.mapper(A.uri).keys(key), stored.mapper(B.uri).keys(key)) == (expected, ["b"])


@pytest.mark.parametrize(
    ("mapper", "key"),
    [
        (AllowedKeyMapper(["us"]), "eu"),
        (StartOfDayMapper(), "us"),
        (ProductMapper(IdentityMapper(), IdentityMapper()), "us"),
        (FanOutMapper(upstream_mapper=StartOfYearMapper(), window=YearWindow(), max_downstream_keys=11), "2024-03-13T00:00:00"),
        (FanOutMapper(upstream_mapper=StartOfDayMapper(), window=MonthWindow()), "2024-03-13T00:00:00"),
    ],
)
def test_a_key_that_a_mapper_cannot_map_is_a_value_error(mapper: PartitionMapper, key: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has other words
        mapper.keys(key)


@pytest.mark.parametrize(
    ("window", "start", "members"),
    [
        (HourWindow(), datetime(2024, 3, 1, 5), 60),
        (DayWindow(direction=BACK), datetime(2024, 3, 1), 24),
        (MonthWindow(), datetime(2024, 2, 1), 29),
        (MonthWindow(direction=BACK), datetime(2024, 3, 1), 29),
        (QuarterWindow(direction=BACK), datetime(2024, 1, 1), 3),
        (YearWindow(), datetime(2024, 1, 1), 12),
    ],
)
def test_a_window_starts_or_ends_with_its_key(window: Window, start: datetime, members: int) -> None:
    found = list(window.to_upstream(start))

    assert len(set(found)) == members
    assert found[-1 if window.direction is BACK else 0] == start


@pytest.mark.parametrize(
    ("mapper", "key", "arrived", "enough"),
    [
        (IdentityMapper(), "us", {"us"}, True),
        (RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=REGIONS), "all", {"us"}, False),
        (RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=REGIONS), "all", {"us", "eu", "apac"}, True),
        (RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=REGIONS, wait_policy=MinimumCount(1)), "all", {"apac"}, False),
        (RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=REGIONS, wait_policy=MinimumCount(-1)), "all", {"us"}, True),
        (DAILY, "2024-03-13", {f"2024-03-13T{hour:02}:00:00" for hour in range(24)}, True),
        (DAILY, "2024-03-13", {f"2024-03-13T{hour:02}:00:00" for hour in range(1, 24)}, False),
        (
            RollupMapper(upstream_mapper=StartOfQuarterMapper(input_format="%Y-%m"), window=QuarterWindow()),
            "2024-Q2",
            {"2024-04", "2024-05", "2024-06"},
            True,
        ),
    ],
)
def test_a_roll_up_waits_for_the_keys_of_its_window(mapper: PartitionMapper, key: str, arrived: set[str], enough: bool) -> None:
    assert mapper.is_satisfied(key, arrived) is enough


@pytest.mark.parametrize(
    ("mapper", "key", "carried", "expected"),
    [
        (DAILY, "2024-03-13", None, datetime(2024, 3, 13, tzinfo=UTC)),
        (ProductMapper(IdentityMapper(), StartOfDayMapper()), "us|2024-03-13", None, datetime(2024, 3, 13, tzinfo=UTC)),
        (StartOfWeekMapper(), "2024-03-11 (W11)", None, datetime(2024, 3, 11, tzinfo=UTC)),
        (IdentityMapper(), "x", datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)),
        (FixedKeyMapper("all"), "all", datetime(2024, 1, 1, tzinfo=UTC), None),
        (StartOfDayMapper(), "made by another mapper", None, None),
    ],
)
def test_the_date_of_a_partition(mapper: PartitionMapper, key: str, carried: datetime | None, expected: datetime | None) -> None:
    assert WhenPartitioned(A, mapper, {}).date_of(key, [A.uri], carried) == expected


def test_a_cron_names_the_partitions_of_its_runs() -> None:
    tick = datetime(2026, 3, 4, 23, tzinfo=UTC)

    same = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", key_format="%Y-%m-%d")
    before = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-2)

    assert same.partition(tick) == Partition("2026-03-05", tick)
    assert before.partition(tick) == Partition("2026-03-03T00:00:00", datetime(2026, 3, 2, 23, tzinfo=UTC))
    assert timetable.from_spec(before.to_spec()) == before
    assert timetable.from_spec(PartitionedAtRuntime().to_spec()) == PartitionedAtRuntime()


class Own(PartitionMapper):
    """A mapper of a DAG file."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RollupMapper(upstream_mapper=IdentityMapper(), window=DayWindow()), "DayWindow counts in dates"),
        (lambda: RollupMapper(upstream_mapper=StartOfDayMapper(), window=REGIONS), "SegmentWindow counts in texts"),
        (
            lambda: RollupMapper(upstream_mapper=FixedKeyMapper("x"), window=REGIONS, wait_policy=MinimumCount(3)),
            "can never be met: SegmentWindow has 2 keys",
        ),
        (lambda: FanOutMapper(upstream_mapper=StartOfHourMapper(), window=HourWindow()), "HourWindow needs downstream_mapper="),
        (lambda: MinimumCount(0), "WaitForAll"),
        (lambda: SegmentWindow([]), "one or more texts"),
        (lambda: SegmentWindow("us"), "a list of"),
        (lambda: FixedKeyMapper(""), "must be a text that is not empty"),
        (lambda: AllowedKeyMapper("us"), "must be a list of texts"),  # type: ignore[arg-type]
        (lambda: IdentityMapper(max_downstream_keys=0), "whole number of at least 1"),
        (lambda: ChainMapper(IdentityMapper()), "two or more mappers"),
        (lambda: StartOfDayMapper(timezone="Mars/Base"), "timezone of StartOfDayMapper"),
        (lambda: WeekWindow(direction="sideways"), "'forward' or 'backward'"),
        (lambda: PartitionedAssetTimetable(assets=A, default_partition_mapper=Own()), "schedulers never run user code"),
        (lambda: PartitionedAssetTimetable(assets=A, default_partition_mapper="day"), "needs mappers"),  # type: ignore[arg-type]
        (lambda: PartitionedAssetTimetable(assets=A, partition_mapper_config={B: IdentityMapper()}), "not among the assets"),
        (lambda: PartitionedAssetTimetable(assets="a"), "assets must be an Asset"),
        (lambda: CronPartitionTimetable("@daily", timezone="UTC", key_format="day"), "key_format"),
        (lambda: CronPartitionTimetable("@daily", timezone="UTC", run_offset=1.5), "run_offset"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_one_sentence(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(TimetableError, match=words):
        make()


def test_a_task_names_the_partitions_that_it_updates() -> None:
    events = OutletEvents([A, AssetAlias("alias")])
    events[A].extra["rows"] = 1

    events[A].add_partitions("us")
    events[A].add_partitions(["eu", "us"])

    assert events.to_xcom() == {"s3://a": {"extra": {"rows": 1}, "partitions": ["eu", "us"]}}
    for wrong in ("", " ", "x" * 251, "a\n"):
        with pytest.raises(PacelineError, match="1 to 250 printable characters"):
            events[A].add_partitions(wrong)
    with pytest.raises(PacelineError, match="'alias' is an alias"):
        events["alias"].add_partitions("us")


def test_a_dag_takes_them_as_its_schedule() -> None:
    with DAG("d", schedule=PartitionedAssetTimetable(assets=A & B)) as dag:
        pass

    assert dag.timetable.condition == A & B
