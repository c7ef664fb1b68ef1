"""Asset events in the context of a task: those that triggered its run, those of its inlets, and the extras of its outlets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar

from paceline.authoring.asset import Asset, AssetAlias
from paceline.exceptions import PacelineError

E = TypeVar("E")
MOST_KEY_CHARACTERS = 250
#: The key in the extra of an alias with the assets that a task updated through it.
ADDED = "__assets__"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvent:
    """One update of an asset. The source is the task instance that made it, or None for an update by a person."""

    asset: Asset
    extra: Mapping[str, Any]
    timestamp: datetime
    source_dag_id: str | None
    source_run_id: str | None
    source_task_id: str | None
    source_map_index: int | None
    #: The key of the partition that was updated; None without partitions.
    partition_key: str | None = None

    @property
    def uri(self) -> str:
        return self.asset.uri


class EventReads(Protocol):
    """The source of asset events; the worker passes it in."""

    def of_run(self) -> list[AssetEvent]:
        """The events that triggered the run, oldest first."""

    def of_assets(self, uris: Sequence[str]) -> list[AssetEvent]:
        """The newest events of each of these assets, oldest first."""

    def named(self, name: str) -> Asset:
        """The asset with this name; NotFoundError if no DAG uses one."""


class NoEvents:
    """No events, for a context without a database."""

    def of_run(self) -> list[AssetEvent]:
        return []

    def of_assets(self, uris: Sequence[str]) -> list[AssetEvent]:
        return []

    def named(self, name: str) -> Asset:
        return Asset(name)


NO_EVENTS = NoEvents()


class _ByAsset(Mapping[Asset, E]):
    """A mapping whose keys can be Assets, their URIs or their names."""

    #: The asset and the value, by URI.
    _events: Mapping[str, tuple[Asset, E]]

    def __getitem__(self, key: Asset | str) -> E:
        for asset, value in self._events.values():
            if key in {asset.uri, asset.name} or (isinstance(key, Asset) and key.uri == asset.uri):
                return value
        raise KeyError(f"{getattr(key, 'uri', key)}: this task has no such asset here; it has {list(self._events)}")

    def __iter__(self) -> Iterator[Asset]:
        return (asset for asset, _ in self._events.values())

    def __len__(self) -> int:
        return len(self._events)


@dataclass(eq=False, repr=False)
class AssetEvents(_ByAsset[Sequence[AssetEvent]]):
    """Events by asset, oldest first, read at first access; a key can be an Asset, its URI or its name."""

    _read: Callable[[], Iterable[AssetEvent]]
    _assets: Sequence[Asset] = ()

    @cached_property
    def _events(self) -> Mapping[str, tuple[Asset, Sequence[AssetEvent]]]:  # type: ignore[override]
        events: dict[str, tuple[Asset, list[AssetEvent]]] = {asset.uri: (asset, []) for asset in self._assets}
        for event in self._read():
            events.setdefault(event.uri, (event.asset, []))[1].append(event)
        return events


class OutletEvent:
    """The event of one outlet of the running task: `extra` is stored with it if the task succeeds."""

    def __init__(self, asset: Asset) -> None:
        self.asset = asset
        self.extra: dict[str, Any] = {}
        #: Of an alias: the assets that this task updates through it.
        self.added: list[tuple[Asset, Mapping[str, Any]]] = []
        #: The partitions that this task updates, in place of that of its run.
        self.partition_keys: set[str] = set()

    def add(self, asset: Asset | Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> None:
        """Of an alias: update `asset`, with this extra. Of an asset: add the keys of a dict to `extra`."""
        if isinstance(asset, Asset):
            if not isinstance(self.asset, AssetAlias):
                raise PacelineError(f"add() takes an asset only for an alias; {self.asset.name!r} is an asset itself.")
            self.added.append((asset, {**self.extra, **(extra or {})}))
        else:
            self.extra |= asset

    def add_partitions(self, keys: str | Iterable[str]) -> None:
        """Update the partitions with these keys, in place of that of the run. Each has 1 to 250 characters. Not of an alias."""
        if isinstance(self.asset, AssetAlias):
            raise PacelineError(f"add_partitions() works only for an asset; {self.asset.name!r} is an alias.")
        given = [keys] if isinstance(keys, str) else list(keys)
        for key in given:
            check_partition_key(key)
        self.partition_keys.update(given)


@dataclass(eq=False, repr=False)
class OutletEvents(_ByAsset[OutletEvent]):
    """`outlet_events[asset].extra = {...}`, for each outlet of the task."""

    _outlets: Sequence[Asset]

    @cached_property
    def _events(self) -> Mapping[str, tuple[Asset, OutletEvent]]:  # type: ignore[override]
        return {asset.uri: (asset, OutletEvent(asset)) for asset in self._outlets}

    def to_xcom(self) -> dict[str, Any]:
        """{uri: {"extra": ..., "partitions": [...]}} for the outlets that have one, see store/dags/assets.

        The extra of an alias has its assets.
        """
        stored: dict[str, dict[str, Any]] = {}
        for uri, (_, event) in self._events.items():
            if event.added:
                added = [{"uri": asset.uri, "name": asset.name, "extra": dict(extra)} for asset, extra in event.added]
                stored[uri] = {"extra": {ADDED: added}}
            elif event.extra:
                stored[uri] = {"extra": dict(event.extra)}
            if event.partition_keys:
                stored.setdefault(uri, {})["partitions"] = sorted(event.partition_keys)
        return stored


def check_partition_key(key: object) -> str:
    """The key of a partition; PacelineError if it is not one."""
    if not isinstance(key, str) or not key.strip() or len(key) > MOST_KEY_CHARACTERS or not key.isprintable():
        raise PacelineError(
            f"A partition key must have 1 to {MOST_KEY_CHARACTERS} printable characters and not only blanks, not {key!r}."
        )
    return key
