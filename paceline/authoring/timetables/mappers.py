"""Partition mappers: from the key of an update to the keys of the runs that it is for. Schedulers apply them to stored keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, ClassVar

from paceline.authoring import zones
from paceline.authoring.timetables import windows
from paceline.authoring.timetables.windows import MinimumCount, WaitForAll, WaitPolicy, Window, refusal

#: The largest number of runs for one update without `max_downstream_keys`, as in Airflow.
MOST_KEYS = 1000


@dataclass(frozen=True)
class PartitionMapper:
    """Base class of the mappers. Own subclasses cannot be used, because schedulers never run user code.

    An update for more than `max_downstream_keys` runs, by default 1000, creates none.
    """

    expected_decoded_type: ClassVar[type] = str

    max_downstream_keys: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        most = self.max_downstream_keys
        if most is not None and (type(most) is not int or most < 1):
            raise refusal(f"max_downstream_keys of {type(self).__name__} must be a whole number of at least 1, not {most!r}.")

    def to_downstream(self, key: str) -> str | list[str]:
        """The key of the run for an update with this key, or several; ValueError if the mapper cannot read the key."""
        raise NotImplementedError

    def decode_downstream(self, downstream_key: str) -> Any:
        """The value in which a window counts, for the key of a run."""
        return downstream_key

    def encode_upstream(self, decoded: Any) -> str:
        """The key of an update from the value in which a window counts."""
        return str(decoded)

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        """The start of the period of a run; None if its key is no date. ValueError if the key cannot be read."""
        return None

    def is_satisfied(self, downstream_key: str, arrived: Collection[str]) -> bool:
        """Whether a run has all updates that it waits for, given the keys of those that arrived. One is enough."""
        return bool(arrived)

    def keys(self, key: str) -> list[str]:
        """`to_downstream` as a list of different keys. ValueError if there are too many."""
        mapped = self.to_downstream(key)
        keys = list(dict.fromkeys([mapped] if isinstance(mapped, str) else mapped))
        most = self.max_downstream_keys or MOST_KEYS
        if len(keys) > most:
            raise ValueError(f"it stands for {len(keys)} runs, and max_downstream_keys is {most}")
        return keys


class IdentityMapper(PartitionMapper):
    """A run for each key."""

    def to_downstream(self, key: str) -> str:
        return key


@dataclass(frozen=True)
class AllowedKeyMapper(PartitionMapper):
    """A run for each of `allowed_keys`. Updates with other keys create none."""

    allowed_keys: tuple[str, ...] | list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        given: object = self.allowed_keys
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise refusal(f"allowed_keys of AllowedKeyMapper must be a list of texts, not {given!r}.")
        keys = tuple(given)
        if not keys or not all(isinstance(key, str) and key for key in keys):
            raise refusal(f"allowed_keys of AllowedKeyMapper must be one or more texts that are not empty, not {given!r}.")
        object.__setattr__(self, "allowed_keys", keys)

    def to_downstream(self, key: str) -> str:
        if key not in self.allowed_keys:
            raise ValueError(f"it is not one of the allowed keys {list(self.allowed_keys)}")
        return key


@dataclass(frozen=True)
class FixedKeyMapper(PartitionMapper):
    """One run for all keys, with the key `downstream_key`."""

    downstream_key: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.downstream_key, str) or not self.downstream_key:
            raise refusal(f"downstream_key of FixedKeyMapper must be a text that is not empty, not {self.downstream_key!r}.")

    def to_downstream(self, key: str) -> str:
        return self.downstream_key


@dataclass(frozen=True, init=False)
class _Several(PartitionMapper):
    """A mapper that is made of two or more others."""

    mappers: tuple[PartitionMapper, ...]

    def __init__(self, *mappers: PartitionMapper, max_downstream_keys: int | None = None) -> None:
        if len(mappers) < 2 or not all(isinstance(mapper, PartitionMapper) for mapper in mappers):
            raise refusal(f"{type(self).__name__} needs two or more mappers, not {list(mappers)!r}.")
        object.__setattr__(self, "mappers", mappers)
        object.__setattr__(self, "max_downstream_keys", max_downstream_keys)
        self.__post_init__()


class ChainMapper(_Several):
    """Applies `mappers` one after the other."""

    def to_downstream(self, key: str) -> str | list[str]:
        keys = [key]
        for mapper in self.mappers:
            keys = [downstream for upstream in keys for downstream in mapper.keys(upstream)]
        return keys[0] if len(keys) == 1 else keys

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.mappers[-1].to_partition_date(downstream_key)


@dataclass(frozen=True, init=False)
class ProductMapper(_Several):
    """Applies each of `mappers` to its part of the key, such as `us|2026-03-04T05:00:00`. `delimiter` is between the parts."""

    delimiter: str

    def __init__(self, *mappers: PartitionMapper, delimiter: str = "|", max_downstream_keys: int | None = None) -> None:
        super().__init__(*mappers, max_downstream_keys=max_downstream_keys)
        object.__setattr__(self, "delimiter", delimiter)
        if not isinstance(delimiter, str) or not delimiter:
            raise refusal(f"delimiter of ProductMapper must be a text that is not empty, not {delimiter!r}.")

    def to_downstream(self, key: str) -> str:
        parts = key.split(self.delimiter)
        if len(parts) != len(self.mappers):
            raise ValueError(
                f"it has {len(parts)} parts between {self.delimiter!r}, and ProductMapper has {len(self.mappers)} mappers"
            )
        mapped = [mapper.to_downstream(part) for mapper, part in zip(self.mappers, parts, strict=True)]
        if wrong := [keys for keys in mapped if not isinstance(keys, str)]:
            raise ValueError(f"a mapper in ProductMapper gave {len(wrong[0])} keys; each must give one")
        return self.delimiter.join(map(str, mapped))

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        parts = downstream_key.split(self.delimiter)
        if len(parts) != len(self.mappers):
            return None
        dates = [mapper.to_partition_date(part) for mapper, part in zip(self.mappers, parts, strict=True)]
        known = [date for date in dates if date is not None]
        return known[0] if len(known) == 1 else None


@dataclass(frozen=True, kw_only=True)
class RollupMapper(PartitionMapper):
    """One run for all keys of a window: `RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow())`.

    `upstream_mapper` gives the key of the run, `window` the keys that it waits for, and `wait_policy` how many of them.
    """

    upstream_mapper: PartitionMapper
    window: Window
    wait_policy: WaitPolicy = WaitForAll()  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self, self.upstream_mapper, self.window)
        if not isinstance(self.wait_policy, WaitPolicy):
            raise refusal(f"wait_policy of RollupMapper must be WaitForAll() or MinimumCount(n), not {self.wait_policy!r}.")
        if isinstance(self.wait_policy, MinimumCount) and self.wait_policy.n > self.window.most:
            raise refusal(
                f"MinimumCount({self.wait_policy.n}) can never be met: {type(self.window).__name__} has {self.window.most} keys."
            )

    def to_downstream(self, key: str) -> str | list[str]:
        return self.upstream_mapper.to_downstream(key)

    def to_upstream(self, downstream_key: str) -> frozenset[str]:
        """The keys of the updates that a run waits for."""
        anchor = self.upstream_mapper.decode_downstream(downstream_key)
        return frozenset(self.upstream_mapper.encode_upstream(member) for member in self.window.to_upstream(anchor))

    def to_partition_date(self, downstream_key: str) -> datetime | None:
        return self.upstream_mapper.to_partition_date(downstream_key)

    def is_satisfied(self, downstream_key: str, arrived: Collection[str]) -> bool:
        expected = self.to_upstream(downstream_key)
        return self.wait_policy.is_satisfied(windows.matched(expected, arrived), len(expected))


def check_window(owner: PartitionMapper, mapper: object, window: object) -> None:
    """TimetableError unless the mapper gives what the window counts in."""
    name = type(owner).__name__
    if not isinstance(mapper, PartitionMapper) or not isinstance(window, Window):
        raise refusal(f"{name} needs upstream_mapper=, a mapper, and window=, such as DayWindow(); not {mapper!r} and {window!r}.")
    if mapper.expected_decoded_type is not window.expected_decoded_type:
        what = "dates" if window.expected_decoded_type is datetime else "texts"
        raise refusal(f"{type(window).__name__} counts in {what}, which {type(mapper).__name__} in {name} does not give.")


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
