"""Mappers between dates in keys: to the start of an hour, day, week, month, quarter or year, and to all members of a window."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import ClassVar

from paceline.authoring import zones
from paceline.authoring.timetables.mappers import PartitionMapper, check_window
from paceline.authoring.timetables.windows import Window, refusal

#: The regular expression of each directive of a format, for formats that `strptime` cannot read back.
_DIRECTIVES = {"%Y": r"\d{4}", **dict.fromkeys(("%m", "%d", "%H", "%M", "%S", "%V", "%U", "%W"), r"\d{2}")}
MIDNIGHT = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0}


@dataclass(frozen=True, kw_only=True)
class TemporalMapper(PartitionMapper):
    """From a date to the start of the period that contains it.

    `input_format` is that of the keys of updates, `output_format` that of the keys of runs, both as of strftime. Dates without
    a time zone are in `timezone`.
    """

    expected_decoded_type = datetime
    default_output_format: ClassVar[str]

    timezone: str = "UTC"
    input_format: str = "%Y-%m-%dT%H:%M:%S"
    output_format: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "output_format", self.output_format or self.default_output_format)
        if isinstance(self.timezone, tzinfo):
            object.__setattr__(self, "timezone", zones.name_of(datetime(2000, 1, 1, tzinfo=self.timezone)))
        try:
            zones.load(self.timezone)
        except (ValueError, TypeError) as error:
            raise refusal(f"timezone of {type(self).__name__}: {error}") from None

    @property
    def _zone(self) -> tzinfo:
        return zones.load(self.timezone)

    def to_downstream(self, key: str) -> str:
        moment = datetime.strptime(key, self.input_format)  # noqa: DTZ007 - the next line adds the time zone
        moment = moment.replace(tzinfo=self._zone) if moment.tzinfo is None else moment.astimezone(self._zone)
        return self.format(self.normalize(moment))

    def normalize(self, dt: datetime) -> datetime:
        """The start of the period."""
        raise NotImplementedError

    def format(self, dt: datetime) -> str:
        """The key of a run from the start of its period."""
        return dt.strftime(self.output_format)

    def decode_downstream(self, downstream_key: str) -> datetime:
        return datetime.strptime(downstream_key, self.output_format)  # noqa: DTZ007 - on the clock of the mapper

    def encode_upstream(self, decoded: datetime) -> str:
        if decoded.tzinfo is not None:
            decoded = decoded.astimezone(self._zone)
        return decoded.replace(tzinfo=self._zone).strftime(self.input_format)

    def to_partition_date(self, downstream_key: str) -> datetime:
        start = self.normalize(self.decode_downstream(downstream_key))
        return start.replace(tzinfo=self._zone) if start.tzinfo is None else start

    def _read_back(self, key: str, names: dict[str, str]) -> dict[str, int]:
        """The numbers in a key, by the directives and placeholders of the output format that `names` lists."""
        pattern = re.escape(self.output_format)
        for name, digits in {**_DIRECTIVES, "{quarter}": "[1-4]"}.items():
            group = f"(?P<{names[name]}>{digits})" if name in names else digits
            pattern = pattern.replace(re.escape(name), group, 1)
        match = re.fullmatch(pattern, key)
        if match is None or not set(names.values()) <= match.groupdict().keys():
            raise ValueError(
                f"{type(self).__name__} cannot read {key!r}: output_format {self.output_format!r} needs {', '.join(names)}"
            )
        return {name: int(text) for name, text in match.groupdict().items()}


class StartOfHourMapper(TemporalMapper):
    """Maps a time to its hour: `2024-03-13T10:42:15` becomes `2024-03-13T10`."""

    default_output_format = "%Y-%m-%dT%H"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(minute=0, second=0, microsecond=0)


class StartOfDayMapper(TemporalMapper):
    """Maps a time to its day: `2024-03-13T10:42:15` becomes `2024-03-13`."""

    default_output_format = "%Y-%m-%d"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(**MIDNIGHT)  # type: ignore[arg-type]


class StartOfWeekMapper(TemporalMapper):
    """Maps a time to the Monday of its week: `2024-03-13T10:42:15` becomes `2024-03-11 (W11)`.

    To be read back, a format needs %Y, %m and %d.
    """

    default_output_format = "%Y-%m-%d (W%V)"

    def normalize(self, dt: datetime) -> datetime:
        return (dt - timedelta(days=dt.weekday())).replace(**MIDNIGHT)  # type: ignore[arg-type]

    def decode_downstream(self, downstream_key: str) -> datetime:
        return datetime(**self._read_back(downstream_key, {"%Y": "year", "%m": "month", "%d": "day"}))  # type: ignore[arg-type]  # noqa: DTZ001


class StartOfMonthMapper(TemporalMapper):
    """Maps a time to its month: `2024-03-13T10:42:15` becomes `2024-03`."""

    default_output_format = "%Y-%m"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(day=1, **MIDNIGHT)  # type: ignore[arg-type]


class StartOfQuarterMapper(TemporalMapper):
    """Maps a time to its quarter: `2024-03-13T10:42:15` becomes `2024-Q1`. To be read back, a format needs %Y and {quarter}."""

    default_output_format = "%Y-Q{quarter}"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(month=(dt.month - 1) // 3 * 3 + 1, day=1, **MIDNIGHT)  # type: ignore[arg-type]

    def format(self, dt: datetime) -> str:
        return dt.strftime(self.output_format).replace("{quarter}", str((dt.month - 1) // 3 + 1))

    def decode_downstream(self, downstream_key: str) -> datetime:
        parts = self._read_back(downstream_key, {"%Y": "year", "{quarter}": "quarter"})
        return datetime(parts["year"], (parts["quarter"] - 1) * 3 + 1, 1)  # noqa: DTZ001 - on the clock of the mapper


class StartOfYearMapper(TemporalMapper):
    """Maps a time to its year: `2024-03-13T10:42:15` becomes `2024`."""

    default_output_format = "%Y"

    def normalize(self, dt: datetime) -> datetime:
        return dt.replace(month=1, day=1, **MIDNIGHT)  # type: ignore[arg-type]


#: The mapper that formats the members of a window in FanOutMapper, unless another one is given.
_OF_MEMBERS = {
    "DayWindow": StartOfHourMapper,
    "WeekWindow": StartOfDayMapper,
    "MonthWindow": StartOfDayMapper,
    "QuarterWindow": StartOfMonthMapper,
    "YearWindow": StartOfMonthMapper,
}


@dataclass(frozen=True, kw_only=True)
class FanOutMapper(PartitionMapper):
    """A run for each member of a window: `FanOutMapper(upstream_mapper=StartOfWeekMapper(), window=WeekWindow())`.

    `downstream_mapper` formats the keys of the members. HourWindow and SegmentWindow need one; the other windows have one.
    """

    upstream_mapper: PartitionMapper
    window: Window
    downstream_mapper: PartitionMapper = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self, self.upstream_mapper, self.window)
        if self.downstream_mapper is None:
            kind = _OF_MEMBERS.get(type(self.window).__name__)
            if kind is None:
                raise refusal(f"FanOutMapper with {type(self.window).__name__} needs downstream_mapper=, which formats its keys.")
            object.__setattr__(self, "downstream_mapper", kind())
        if not isinstance(self.downstream_mapper, PartitionMapper):
            raise refusal(f"downstream_mapper of FanOutMapper must be a mapper, not {self.downstream_mapper!r}.")

    def to_downstream(self, key: str) -> list[str]:
        start = self.upstream_mapper.to_downstream(key)
        if not isinstance(start, str):
            raise ValueError("the upstream_mapper of FanOutMapper gave several keys; it must give one")
        members = self.window.to_upstream(self.upstream_mapper.decode_downstream(start))
        return [self._key(member) for member in members]

    def _key(self, member: object) -> str:
        """The key of the run of a member."""
        if isinstance(member, datetime):
            below = self.downstream_mapper
            return below.format(member) if isinstance(below, TemporalMapper) else member.isoformat()
        return str(member)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.downstream_mapper.to_partition_date(downstream_key)
