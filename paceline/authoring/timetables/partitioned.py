"""Schedules of partitions: a run for each key of updated assets, for keys given at runtime, and for each tick of a cron."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from paceline.authoring import zones
from paceline.authoring.asset import Condition
from paceline.authoring.timetables import mapper_specs
from paceline.authoring.timetables.base import Partition, Timetable
from paceline.authoring.timetables.mappers import IdentityMapper, PartitionMapper
from paceline.authoring.timetables.triggers import Cron

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
            "mapper": mapper_specs.to_spec(self.default),
            "mappers": {uri: mapper_specs.to_spec(mapper) for uri, mapper in sorted(self.mappers.items())},
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
    mappers = {uri: mapper_specs.from_spec(mapper) for uri, mapper in spec["mappers"].items()}
    return WhenPartitioned(condition, mapper_specs.from_spec(spec["mapper"]), mappers)


def _date(mapper: PartitionMapper, key: str) -> datetime | None:
    try:
        return mapper.to_partition_date(key)
    except ValueError:  # the key was made for another mapper, or its format cannot be read back
        return None
