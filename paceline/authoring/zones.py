"""Time zones by name: an IANA name, or a fixed offset such as +05:30."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)")
_default = ["UTC"]


def default_name() -> str:
    """The time zone of a schedule without a start_date."""
    return _default[0]


def set_default(name: str) -> None:
    """Set the default to core.default_timezone, before a DAG file is loaded."""
    load(name)
    _default[0] = name


@cache
def load(name: str) -> tzinfo:
    """The time zone with that name; ValueError if there is none."""
    if name == "UTC":
        return UTC
    if offset := _OFFSET.fullmatch(name):
        sign, hours, minutes = offset.groups()
        size = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-size if sign == "-" else size)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"There is no time zone {name!r}.") from None


def name_of(moment: datetime) -> str | None:
    """The name with which `load` returns an equal zone, for the tzinfo of any library; None if it has no such name."""
    zone = moment.tzinfo
    if isinstance(zone, timezone):
        return _offset_name(zone.utcoffset(None))
    # ZoneInfo, pendulum, pytz; a dateutil zone keeps the path of its file.
    for attribute in ("key", "name", "zone", "_filename"):
        name = getattr(zone, attribute, None)
        if isinstance(name, str) and (known := _known(name)):
            return known
    fixed = zone.utcoffset(None) if zone is not None else None
    return None if fixed is None else _offset_name(fixed)


def _known(name: str) -> str | None:
    name = name.rpartition("zoneinfo/")[2]
    try:
        load(name)
    except ValueError:
        return None
    return name


def _offset_name(offset: timedelta) -> str | None:
    if not offset:
        return "UTC"
    minutes, rest = divmod(abs(offset), timedelta(minutes=1))
    return None if rest else f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"
