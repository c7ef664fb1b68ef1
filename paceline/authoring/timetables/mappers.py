"""Partition mappers: from the key of an update to the keys of the runs that it is for. Schedulers apply them to stored keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

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
