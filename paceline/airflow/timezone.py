"""Airflow's `timezone` module: moments with a time zone. A moment without one is in core.default_timezone."""

import datetime as dt
from typing import Any, overload

from paceline.authoring import zones

utc = dt.UTC
#: The default time zone, as airflow.settings has it. It is looked up at each use.
TIMEZONE: dt.tzinfo
utc_epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def utcnow() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def datetime(*args: Any, **kwargs: Any) -> dt.datetime:
    """A datetime as in the standard library, in the default time zone if `tzinfo` is missing."""
    return dt.datetime(*args, **{"tzinfo": local_timezone(), **kwargs})  # noqa: DTZ001 - it has one


def parse(string: str, timezone: dt.tzinfo | None = None, *, strict: bool = False) -> dt.datetime:
    """A moment from ISO text, in the default time zone or `timezone` if it has no offset. ValueError if it is not ISO."""
    moment = dt.datetime.fromisoformat(string)
    return moment if is_localized(moment) else make_aware(moment, timezone)


def parse_timezone(name: str | int) -> dt.tzinfo:
    """The time zone with that name, or that many seconds from UTC; ValueError if there is none."""
    return dt.timezone(dt.timedelta(seconds=name)) if isinstance(name, int) else zones.load(name)


def local_timezone() -> dt.tzinfo:
    """The default time zone: core.default_timezone."""
    return zones.load(zones.default_name())


def from_timestamp(timestamp: float, tz: dt.tzinfo = dt.UTC) -> dt.datetime:
    """The moment that many seconds after 1970."""
    return dt.datetime.fromtimestamp(timestamp, tz)


def is_localized(value: dt.datetime) -> bool:
    return value.utcoffset() is not None


def is_naive(value: dt.datetime) -> bool:
    return not is_localized(value)


@overload
def make_aware(value: None, timezone: dt.tzinfo | None = None) -> None: ...
@overload
def make_aware(value: dt.datetime, timezone: dt.tzinfo | None = None) -> dt.datetime: ...
def make_aware(value: dt.datetime | None, timezone: dt.tzinfo | None = None) -> dt.datetime | None:
    """A naive datetime in `timezone`, or in the default one. ValueError if it has a time zone."""
    if value is not None and is_localized(value):
        raise ValueError(f"make_aware expects a naive datetime, got {value}")
    return None if value is None else value.replace(tzinfo=timezone or local_timezone())


def make_naive(value: dt.datetime, timezone: dt.tzinfo | None = None) -> dt.datetime:
    """A datetime without its time zone, as the clocks in `timezone` show it. ValueError if it has none."""
    if is_naive(value):
        raise ValueError("make_naive() cannot be applied to a naive datetime")
    return value.astimezone(timezone or local_timezone()).replace(tzinfo=None)


def convert_to_utc(value: dt.datetime | None) -> dt.datetime | None:
    """A moment in UTC; a naive one is in the default time zone."""
    if value is None:
        return None
    return (value if is_localized(value) else make_aware(value)).astimezone(dt.UTC)


def coerce_datetime(value: dt.datetime | None, tz: dt.tzinfo | None = None) -> dt.datetime | None:
    """A moment with a time zone, `tz` or the default one for a naive datetime."""
    if value is None:
        return None
    moment = value if is_localized(value) else make_aware(value, tz)
    return moment.astimezone(tz) if tz else moment


def __getattr__(name: str) -> Any:
    if name == "TIMEZONE":
        return local_timezone()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
