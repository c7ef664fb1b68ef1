"""Timetables for `schedule=` and the mappers of partitions, with their names and arguments in Airflow."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from paceline.authoring import asset, zones
from paceline.authoring.timetable import checked
from paceline.authoring.timetables import partitioned
from paceline.authoring.timetables.base import Never, Timetable, UpdatedOrTime
from paceline.authoring.timetables.mappers import (
    AllowedKeyMapper,
    ChainMapper,
    FanOutMapper,
    FixedKeyMapper,
    IdentityMapper,
    PartitionMapper,
    ProductMapper,
    RollupMapper,
    StartOfDayMapper,
    StartOfHourMapper,
    StartOfMonthMapper,
    StartOfQuarterMapper,
    StartOfWeekMapper,
    StartOfYearMapper,
)
from paceline.authoring.timetables.partitioned import AtRuntime, CronPartition, WhenPartitioned
from paceline.authoring.timetables.ticking import Cron, CronInterval, Delta, DeltaInterval, Events
from paceline.authoring.timetables.ticks import fields_of
from paceline.authoring.timetables.windows import (
    DayWindow,
    HourWindow,
    MinimumCount,
    MonthWindow,
    QuarterWindow,
    SegmentWindow,
    WaitForAll,
    WeekWindow,
    Window,
    YearWindow,
    refusal,
)
from paceline.exceptions import TimetableError

__all__ = [
    "AllowedKeyMapper", "AssetOrTimeSchedule", "ChainMapper", "CronDataIntervalTimetable", "CronPartitionTimetable",
    "CronTriggerTimetable", "DayWindow", "DeltaDataIntervalTimetable", "DeltaTriggerTimetable", "EventsTimetable", "FanOutMapper",
    "FixedKeyMapper", "HourWindow", "IdentityMapper", "MinimumCount", "MonthWindow", "MultipleCronTriggerTimetable",
    "PartitionMapper", "PartitionedAssetTimetable", "PartitionedAtRuntime", "ProductMapper", "QuarterWindow", "RollupMapper",
    "SegmentWindow", "StartOfDayMapper", "StartOfHourMapper", "StartOfMonthMapper", "StartOfQuarterMapper", "StartOfWeekMapper",
    "StartOfYearMapper", "WaitForAll", "WeekWindow", "Window", "YearWindow",
]  # fmt: skip

Zone = str | tzinfo
NO_TIME = timedelta(0)
IDENTITY = IdentityMapper()


def CronTriggerTimetable(
    cron: str, *, timezone: Zone, interval: timedelta = NO_TIME, run_immediately: bool | timedelta | None = False
) -> Timetable:
    """A run at each tick of `cron` in `timezone`; its data interval is the time span of length `interval` before the tick.

    `run_immediately` chooses the first run of a DAG without start_date. True: the last tick. A timedelta: the last tick if
    it is not longer ago than that, else the next one. False or None: the last tick if it is not longer ago than the longer
    of 5 minutes and a tenth of the time between ticks, else the next one.
    """
    return MultipleCronTriggerTimetable(cron, timezone=timezone, interval=interval, run_immediately=run_immediately)


def MultipleCronTriggerTimetable(
    *crons: str, timezone: Zone, interval: timedelta = NO_TIME, run_immediately: bool | timedelta | None = False
) -> Timetable:
    """A run at each tick of any of `crons`. `timezone`, `interval` and `run_immediately` are as in CronTriggerTimetable."""
    zone = _zone(timezone)
    if not crons:
        raise refusal("MultipleCronTriggerTimetable needs one cron expression or more.")
    first, *more = dict.fromkeys(_cron(expression, zone) for expression in crons)
    return Cron(
        first,
        zone,
        more=tuple(more),
        interval_s=_interval(interval),
        run_immediately=_in_seconds(run_immediately),
    )


def CronDataIntervalTimetable(cron: str, timezone: Zone) -> Timetable:
    """A run at the end of each data interval, which lasts from one tick of `cron` to the next in `timezone`."""
    zone = _zone(timezone)
    return CronInterval(_cron(cron, zone), zone)


def CronPartitionTimetable(
    cron: str,
    *,
    timezone: Zone,
    run_offset: int | None = None,
    run_immediately: bool | timedelta | None = False,
    key_format: str = "%Y-%m-%dT%H:%M:%S",
) -> Timetable:
    """A run at each tick of `cron` for a partition: `dag_run.partition_key` is the tick, written with `key_format`.

    With `run_offset`, it is the tick so many ticks later, or with a negative one earlier. `timezone` and `run_immediately` are
    as in CronTriggerTimetable. The updates of its tasks' outlets have the partition key of the run.
    """
    zone = _zone(timezone)
    if run_offset is not None and type(run_offset) is not int:
        raise refusal(f"run_offset of CronPartitionTimetable must be a whole number of ticks, not {run_offset!r}.")
    if not isinstance(key_format, str) or "%" not in key_format:
        raise refusal(f"key_format of CronPartitionTimetable must be a format such as '%Y-%m-%d', not {key_format!r}.")
    return CronPartition(
        _cron(cron, zone), zone, run_immediately=_in_seconds(run_immediately), offset=run_offset or 0, key_format=key_format
    )


def DeltaTriggerTimetable(delta: timedelta, *, interval: timedelta = NO_TIME) -> Timetable:
    """A run at start_date and then every `delta` (a timedelta or relativedelta).

    Its data interval is the time span of length `interval` before the run.
    """
    return Delta(**_step(delta), interval_s=_interval(interval))


def DeltaDataIntervalTimetable(delta: timedelta) -> Timetable:
    """A run at the end of each data interval of the length `delta` (a timedelta or relativedelta), from start_date on."""
    return DeltaInterval(**_step(delta))


def EventsTimetable(
    event_dates: Iterable[datetime], restrict_to_events: bool = False, presorted: bool = False, description: str | None = None
) -> Timetable:
    """A run at each of `event_dates`; with `restrict_to_events` a manual run gets the date of the last event.

    `presorted` and `description` are accepted as in Airflow and have no effect.
    """
    dates = list(event_dates)
    if not dates or not all(isinstance(event, datetime) and event.utcoffset() is not None for event in dates):
        raise refusal(f"EventsTimetable needs one or more datetimes with a time zone, not {dates!r}.")
    moments = sorted({event.astimezone(UTC) for event in dates})
    return Events(tuple(moment.isoformat() for moment in moments), restrict_to_events)


def AssetOrTimeSchedule(*, timetable: Timetable, assets: object) -> Timetable:
    """The runs of `timetable`, and a run each time the assets have been updated.

    `assets` is an Asset, a list of which all must be updated, `a & b` or `a | b`.
    """
    if not isinstance(timetable, Timetable) or timetable.condition is not None or isinstance(timetable, Never):
        raise refusal(f"AssetOrTimeSchedule: timetable must be a timetable such as CronTriggerTimetable(...), not {timetable!r}.")
    return UpdatedOrTime(timetable, _condition(assets, "AssetOrTimeSchedule"))


def PartitionedAssetTimetable(
    *,
    assets: object,
    partition_mapper_config: Mapping[asset.Asset | asset.AssetRef, PartitionMapper] | None = None,
    default_partition_mapper: PartitionMapper = IDENTITY,
) -> Timetable:
    """A run for each partition of which the assets have been updated: `dag_run.partition_key` names it.

    `assets` is as in AssetOrTimeSchedule. `default_partition_mapper` gives the keys of the runs for the key of an update, by
    default the same key; `partition_mapper_config` gives some assets another mapper. Updates without a key create no run.
    """
    condition = _condition(assets, "PartitionedAssetTimetable")
    config = partition_mapper_config or {}
    for mapper in (default_partition_mapper, *config.values()):
        if not isinstance(mapper, PartitionMapper):
            raise refusal(f"PartitionedAssetTimetable needs mappers such as StartOfDayMapper(), not {mapper!r}.")
        partitioned.to_spec(mapper)
    if other := [key for key in config if not isinstance(key, asset.Asset | asset.AssetRef) or key.uri not in condition.uris]:
        raise refusal(f"partition_mapper_config names {other[0]!r}, which is not among the assets of the schedule.")
    return WhenPartitioned(condition, default_partition_mapper, {key.uri: mapper for key, mapper in config.items()})


def PartitionedAtRuntime() -> Timetable:
    """Only manual runs. Their partition is given with the run, or by its tasks: `outlet_events[asset].add_partitions(key)`."""
    return AtRuntime()


def _condition(assets: object, name: str) -> asset.Condition:
    if isinstance(assets, list | tuple) and assets and all(isinstance(part, asset.Condition) for part in assets):
        assets = assets[0] if len(assets) == 1 else asset.AssetAll(*assets)
    if not isinstance(assets, asset.Condition):
        raise refusal(f"{name}: assets must be an Asset, a list of them, `a & b` or `a | b`, not {assets!r}.")
    return assets


def _cron(expression: object, zone: str) -> str:
    if not isinstance(expression, str):
        raise refusal(f"A cron expression must be a str, not {expression!r}.")
    try:
        return checked(expression, zone)
    except TimetableError as error:
        raise refusal(str(error)) from None


def _zone(given: object) -> str:
    if isinstance(given, tzinfo):
        name = zones.name_of(datetime(2000, 1, 1, tzinfo=given))
        if name is None:
            raise refusal(f"The time zone {given!r} has no IANA name; write 'Europe/Berlin' or ZoneInfo('Europe/Berlin').")
        return name
    if not isinstance(given, str):
        raise refusal(f"timezone must be a name such as 'Europe/Berlin', not {given!r}.")
    try:
        zones.load(given)
    except ValueError as error:
        raise refusal(str(error)) from None
    return given


def _interval(interval: object) -> float:
    if not isinstance(interval, timedelta) or interval < NO_TIME:
        raise refusal(f"interval must be a timedelta of zero or more, not {interval!r}.")
    return interval.total_seconds()


def _in_seconds(run_immediately: bool | timedelta | None) -> bool | float | None:
    return run_immediately.total_seconds() if isinstance(run_immediately, timedelta) else run_immediately


def _step(delta: object) -> dict[str, Any]:
    try:
        return fields_of(delta)
    except TimetableError as error:
        raise refusal(str(error)) from None
