"""Creates the timetable of a DAG from its `schedule` or from its stored spec. Pure: the time is an argument."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from paceline.authoring import asset
from paceline.authoring.arguments import Arguments, near
from paceline.authoring.timetables import partitioned, ticks
from paceline.authoring.timetables.base import Continuous, Never, Once, Timetable, UpdatedOrTime, WhenUpdated
from paceline.authoring.timetables.partitioned import AtRuntime, CronPartition
from paceline.authoring.timetables.ticking import Cron, CronInterval, Delta, DeltaInterval, Events
from paceline.authoring.timetables.ticks import fields_of
from paceline.exceptions import PacelineError, TimetableError

ONCE, CONTINUOUS = "@once", "@continuous"
PRESETS: Mapping[str, str] = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: The kinds whose spec contains exactly their arguments.
_PLAIN: Mapping[str, type[Timetable]] = {
    table.kind: table
    for table in (Never, Once, Continuous, Cron, CronInterval, CronPartition, AtRuntime, Delta, DeltaInterval, Events)
}


def from_schedule(schedule: object, *, timezone: str, checks: Arguments) -> Timetable:
    """The timetable of the `schedule` of a DAG; TimetableError with the line of the DAG if it is not valid."""
    try:
        return _parsed(schedule, timezone)
    except TimetableError as error:
        located = TimetableError(f"{checks.owner}: {error}")
        located.file, located.line = checks.at.file, checks.at.line
        raise located from None


def configured(schedule: object, table: Timetable, *, cron_intervals: bool, delta_intervals: bool) -> Timetable:
    """`table`, or a timetable with data intervals if the settings ask for them for a plain cron expression or timedelta."""
    if cron_intervals and isinstance(schedule, str) and isinstance(table, Cron):
        return CronInterval(table.expression, table.timezone)
    if delta_intervals and not isinstance(schedule, Timetable) and isinstance(table, Delta):
        return DeltaInterval(table.seconds, table.relative)
    return table


def from_spec(spec: Mapping[str, Any]) -> Timetable:
    """The timetable whose `to_spec` this is."""
    kind = spec["kind"]
    if kind == partitioned.WhenPartitioned.kind:
        return partitioned.from_spec(spec, asset.from_spec(spec["condition"]))
    if kind in {"assets", "asset_or_time"}:
        condition = asset.from_spec(spec["condition"])
        return WhenUpdated(condition) if kind == "assets" else UpdatedOrTime(from_spec(spec["timetable"]), condition)
    arguments = {name: _frozen(value) for name, value in spec.items() if name != "kind"}
    return _PLAIN[kind](**arguments)


def summary(spec: Mapping[str, Any]) -> str:
    """A stored schedule as text for people, even if only another version of Paceline can read it."""
    try:
        return from_spec(spec).summary
    except (KeyError, TypeError, ValueError, PacelineError):
        return f"not understood: {dict(spec)}"


def checked(text: str, timezone: str) -> str:
    """The cron expression of a preset or expression; TimetableError if it is neither."""
    text = " ".join(text.split())
    if text.startswith("@") and text not in PRESETS:
        raise TimetableError(f"schedule {text!r} is not a preset{near(text, [*PRESETS, ONCE, CONTINUOUS])}")
    expression = PRESETS.get(text, text)
    ticks.check_cron(expression, timezone)
    return expression


def _parsed(schedule: object, timezone: str) -> Timetable:
    match schedule:
        case None:
            table: Timetable = Never()
        case Timetable():
            table = schedule
        case asset.Condition():
            table = WhenUpdated(schedule)
        case str():
            at_once = {ONCE: Once, CONTINUOUS: Continuous}.get(schedule.strip())
            table = Cron(checked(schedule, timezone), timezone) if at_once is None else at_once()
        case [_, *_]:
            table = _from_list(list(schedule), timezone)
        case _ if isinstance(schedule, timedelta) or type(schedule).__name__ == "relativedelta":
            table = Delta(**fields_of(schedule))
        case _:
            raise TimetableError(
                f"schedule cannot be {schedule!r} ({type(schedule).__name__}); write a cron expression, a preset such as "
                "'@daily', a timedelta, assets, a timetable or None."
            )
    return table


def _from_list(schedule: list[object], timezone: str) -> Timetable:
    assets = [item for item in schedule if isinstance(item, asset.Condition)]
    texts = [item for item in schedule if isinstance(item, str)]
    if len(assets) == len(schedule):
        return WhenUpdated(assets[0] if len(assets) == 1 else asset.AssetAll(*assets))
    if len(texts) == len(schedule):
        first, *more = dict.fromkeys(checked(text, timezone) for text in texts)
        return Cron(first, timezone, more=tuple(more))
    raise TimetableError(f"a schedule that is a list must contain only assets, or only cron expressions, not {schedule!r}.")


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value
