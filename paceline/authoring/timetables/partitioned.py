"""Schedules of partitions: a run for each key of updated assets, for keys given at runtime, and for each tick of a cron."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from paceline.authoring import zones
from paceline.authoring.asset import Condition
from paceline.authoring.timetables import mappers, windows
from paceline.authoring.timetables.base import Partition, Timetable
from paceline.authoring.timetables.mappers import IdentityMapper, PartitionMapper
from paceline.authoring.timetables.ticking import Cron

#: All classes that a spec can name. Schedulers load no others.
KINDS: Mapping[str, type[Any]] = {
    name: kind
    for module in (mappers, windows)
    for name, kind in vars(module).items()
    if isinstance(kind, type)
    and issubclass(kind, mappers.PartitionMapper | windows.Window | windows.WaitPolicy)
    and kind not in {mappers.PartitionMapper, windows.Window, windows.WaitPolicy}
}
#: The key in JSON that names the class.
KIND = "is"


def to_spec(value: Any) -> Any:
    """A mapper as JSON, which `from_spec` reads. TimetableError if it is, or holds, an object of an own subclass."""
    if isinstance(value, mappers.PartitionMapper | windows.Window | windows.WaitPolicy):
        name = type(value).__name__
        if KINDS.get(name) is not type(value):
            raise windows.refusal(
                f"{name} is a class of your own, and schedulers never run user code; compose the mappers and windows of Paceline."
            )
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
        return {KIND: name} | {field: to_spec(item) for field, item in fields.items() if item is not None}
    if isinstance(value, tuple):
        return [to_spec(item) for item in value]
    return str(value) if isinstance(value, windows.Direction) else value


def mapper_from_spec(spec: Mapping[str, Any]) -> Any:
    """The object that `to_spec` described."""
    fields = {name: _revived(value) for name, value in spec.items() if name != KIND}
    kind = KINDS[spec[KIND]]
    if issubclass(kind, mappers.ChainMapper | mappers.ProductMapper):
        return kind(*fields.pop("mappers"), **fields)
    if kind is windows.SegmentWindow:
        return kind(fields["segments"])
    return kind(**fields)


def _revived(value: Any) -> Any:
    if isinstance(value, dict):
        return mapper_from_spec(value)
    return [_revived(item) for item in value] if isinstance(value, list) else value


_LEAST = timedelta(microseconds=1)


@dataclass(frozen=True)
class WhenPartitioned(Timetable):
    """PartitionedAssetTimetable: a run for each partition of which the assets of the condition have been updated."""

    kind: ClassVar[str] = "partitioned_assets"
    assets: Condition
    default: PartitionMapper
    #: The mappers of assets with another one than the default, by URI.
    mappers: Mapping[str, PartitionMapper]

    def to_spec(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "condition": self.assets.to_spec(),
            "uris": self.assets.uris,
            "mapper": to_spec(self.default),
            "mappers": {uri: to_spec(mapper) for uri, mapper in sorted(self.mappers.items())},
        }

    @property
    def condition(self) -> Condition:
        return self.assets

    @property
    def summary(self) -> str:
        return f"for each partition of {self.assets.summary}"

    def mapper(self, uri: str) -> PartitionMapper:
        return self.mappers.get(uri, self.default)

    def is_met(self, key: str, arrived: Mapping[str, frozenset[str]]) -> bool:
        """Whether the run of the partition `key` can be created, given the keys of the collected updates by URI."""
        return self.assets.is_met([uri for uri, keys in arrived.items() if self.mapper(uri).is_satisfied(key, keys)])

    def date_of(self, key: str, uris: list[str], carried: datetime | None) -> datetime | None:
        """The partition date of a run: that of its key if it is a date, else the one that its updates carry.

        None if the mappers disagree. Only IdentityMapper carries the date of an update.
        """
        mappers = [self.mapper(uri) for uri in uris]
        dates = {date for mapper in mappers if (date := _date(mapper, key)) is not None}
        if len(dates) == 1:
            return dates.pop()
        return carried if not dates and any(isinstance(mapper, IdentityMapper) for mapper in mappers) else None


@dataclass(frozen=True, slots=True)
class AtRuntime(Timetable):
    """PartitionedAtRuntime: only manual runs, whose partition is given with the run, or by its tasks."""

    kind: ClassVar[str] = "partitioned_at_runtime"
    summary: ClassVar[str] = "never, only by hand; partitions are given at runtime"


@dataclass(frozen=True)
class CronPartition(Cron):
    """CronPartitionTimetable: a run at each tick, for the partition `offset` ticks later. `key_format` makes its key."""

    kind: ClassVar[str] = "cron_partition"
    offset: int = 0
    key_format: str = "%Y-%m-%dT%H:%M:%S"

    def partition(self, tick: datetime) -> Partition:
        ticks = self._ticks(None, None, tick)
        date: datetime = tick
        for _ in range(abs(self.offset)):
            near = ticks.after(date) if self.offset > 0 else ticks.up_to(date - _LEAST)
            if near is None:
                break
            date = near
        return Partition(date.astimezone(zones.load(self.timezone)).strftime(self.key_format), date)


def from_spec(spec: Mapping[str, Any], condition: Condition) -> WhenPartitioned:
    """The timetable that `WhenPartitioned.to_spec` described."""
    mappers = {uri: mapper_from_spec(mapper) for uri, mapper in spec["mappers"].items()}
    return WhenPartitioned(condition, mapper_from_spec(spec["mapper"]), mappers)


def _date(mapper: PartitionMapper, key: str) -> datetime | None:
    try:
        return mapper.to_partition_date(key)
    except ValueError:  # the key was made for another mapper, or its format cannot be read back
        return None
