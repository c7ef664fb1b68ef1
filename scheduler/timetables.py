"""Timetables a DAG file may give as `schedule`, under the names and with the arguments they have in Airflow."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from scheduler.authoring import asset, source, timetable, zones
from scheduler.authoring.timetables.ticks import fields_of
from scheduler.exceptions import TimetableError

__all__ = [
    "AssetOrTimeSchedule",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "EventsTimetable",
    "MultipleCronTriggerTimetable",
]

Zone = str | tzinfo
NO_TIME = timedelta(0)


def CronTriggerTimetable(
    cron: str, *, timezone: Zone, interval: timedelta = NO_TIME, run_immediately: bool | timedelta | None = True
) -> timetable.Timetable:
    """A run at each tick of `cron`; its data interval is the time `interval` before the tick.

    `run_immediately` says how a DAG without start_date begins: True with the newest due tick, False with the next one unless
    a tick was just now, a timedelta with a tick that is not longer ago.
    """
    return MultipleCronTriggerTimetable(cron, timezone=timezone, interval=interval, run_immediately=run_immediately)


def MultipleCronTriggerTimetable(
    *crons: str, timezone: Zone, interval: timedelta = NO_TIME, run_immediately: bool | timedelta | None = True
) -> timetable.Timetable:
    """A run at each tick of any of `crons`."""
    zone = _zone(timezone)
    if not crons:
        raise _refusal("MultipleCronTriggerTimetable needs one cron expression or more.")
    first, *more = dict.fromkeys(_cron(one, zone) for one in crons)
    return timetable.Cron(
        first,
        zone,
        more=tuple(more),
        interval_s=_interval(interval),
        run_immediately=run_immediately.total_seconds() if isinstance(run_immediately, timedelta) else run_immediately,
    )


def CronDataIntervalTimetable(cron: str, timezone: Zone) -> timetable.Timetable:
    """A run for each data interval from one tick of `cron` to the next, when it is over."""
    zone = _zone(timezone)
    return timetable.CronInterval(_cron(cron, zone), zone)


def DeltaTriggerTimetable(delta: timedelta, *, interval: timedelta = NO_TIME) -> timetable.Timetable:
    """A run at start_date and after every `delta` (a timedelta or relativedelta) from then on."""
    return timetable.Delta(**_step(delta), interval_s=_interval(interval))


def DeltaDataIntervalTimetable(delta: timedelta) -> timetable.Timetable:
    """A run for each data interval of the length `delta` (a timedelta or relativedelta), when it is over."""
    return timetable.DeltaInterval(**_step(delta))


def EventsTimetable(
    event_dates: Iterable[datetime], restrict_to_events: bool = False, presorted: bool = False, description: str | None = None
) -> timetable.Timetable:
    """A run at each of these moments; with `restrict_to_events` a run by hand gets the moment of the last event."""
    dates = list(event_dates)
    if not dates or not all(isinstance(one, datetime) and one.utcoffset() is not None for one in dates):
        raise _refusal(f"EventsTimetable needs datetimes with a time zone, one or more, not {dates!r}.")
    moments = sorted({one.astimezone(UTC) for one in dates})
    return timetable.Events(tuple(one.isoformat() for one in moments), restrict_to_events)


def AssetOrTimeSchedule(*, timetable: timetable.Timetable, assets: object) -> timetable.Timetable:
    """Runs of `timetable`, and one whenever the assets (one, a list of which all count, `a & b`, `a | b`) were updated."""
    return _asset_or_time(timetable, assets)


def _asset_or_time(table: object, assets: object) -> timetable.Timetable:
    if not isinstance(table, timetable.Timetable) or table.condition is not None or isinstance(table, timetable.Never):
        raise _refusal(f"AssetOrTimeSchedule: timetable must be a timetable such as CronTriggerTimetable(...), not {table!r}.")
    if isinstance(assets, list | tuple) and assets and all(isinstance(one, asset.Condition) for one in assets):
        assets = assets[0] if len(assets) == 1 else asset.AssetAll(*assets)
    if not isinstance(assets, asset.Condition):
        raise _refusal(f"AssetOrTimeSchedule: assets must be an Asset, a list of them, `a & b` or `a | b`, not {assets!r}.")
    return timetable.UpdatedOrTime(table, assets)


def _cron(expression: object, zone: str) -> str:
    if not isinstance(expression, str):
        raise _refusal(f"A cron expression is a str, not {expression!r}.")
    try:
        return timetable.checked(expression, zone)
    except TimetableError as error:
        raise _refusal(str(error)) from None


def _zone(given: object) -> str:
    if isinstance(given, tzinfo):
        name = zones.name_of(datetime(2000, 1, 1, tzinfo=given))
        if name is None:
            raise _refusal(f"The time zone {given!r} has no IANA name; write 'Europe/Berlin' or ZoneInfo('Europe/Berlin').")
        return name
    if not isinstance(given, str):
        raise _refusal(f"timezone must be a name such as 'Europe/Berlin', not {given!r}.")
    try:
        zones.load(given)
    except ValueError as error:
        raise _refusal(str(error)) from None
    return given


def _interval(interval: object) -> float:
    if not isinstance(interval, timedelta) or interval < NO_TIME:
        raise _refusal(f"interval must be a timedelta that is not negative, not {interval!r}.")
    return interval.total_seconds()


def _step(delta: object) -> dict[str, Any]:
    try:
        return fields_of(delta)
    except TimetableError as error:
        raise _refusal(str(error)) from None


def _refusal(sentence: str) -> Exception:
    return source.fault(sentence, kind=TimetableError)
