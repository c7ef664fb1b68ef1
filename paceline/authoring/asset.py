"""Assets: pieces of data that tasks update (`outlets`) and DAGs wait for (`schedule=[...]`, `a & b`, `a | b`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar

from paceline.authoring import deferral
from paceline.authoring.source import fault
from paceline.exceptions import PacelineError

MAX_LENGTH = 1500
#: The URI of an alias is its name after this.
ALIAS = "alias:"
#: The URI of an asset in a schedule that is only known by its name is that name after this.
NAMED = "name:"
#: The URI of a table in the catalog of Paceline is its name after this.
TABLE = "table:"
_TABLE_NAME = re.compile(r"\w[\w\- ]*(\.\w[\w\- ]*)+", re.ASCII)
_PASSWORD = re.compile(r"^[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)


class Condition:
    """A condition on updates of assets: one asset, all of several conditions, or any of them. Immutable."""

    def __and__(self, other: object) -> AssetAll:
        return AssetAll(*_parts(AssetAll, self), *_parts(AssetAll, other)) if isinstance(other, Condition) else NotImplemented

    def __or__(self, other: object) -> AssetAny:
        return AssetAny(*_parts(AssetAny, self), *_parts(AssetAny, other)) if isinstance(other, Condition) else NotImplemented

    def is_met(self, updated: Collection[str]) -> bool:
        """Whether updates of the assets with the URIs `updated` meet the condition."""
        raise NotImplementedError

    def assets(self) -> Iterator[Asset | AssetRef]:
        """Every asset in the condition."""
        raise NotImplementedError

    def to_spec(self) -> dict[str, Any]:
        """JSON that `from_spec` reads."""
        raise NotImplementedError

    @property
    def uris(self) -> list[str]:
        """The URIs of its assets, each once."""
        return sorted({asset.uri for asset in self.assets()})

    @property
    def summary(self) -> str:
        """The condition as text for people."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.to_spec() == other.to_spec()

    def __hash__(self) -> int:
        return hash(tuple(self.uris))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.summary}>"


def names_a_table(name: str) -> bool:
    """Whether a name is one of a table that can be an asset: a table whose name has letters beyond ASCII has none."""
    return _TABLE_NAME.fullmatch(name) is not None


class _Named(Condition):
    """One asset."""

    name: str
    uri: str

    def is_met(self, updated: Collection[str]) -> bool:
        return self.uri in updated

    def assets(self) -> Iterator[Any]:
        yield self

    @property
    def summary(self) -> str:
        return self.name


class Asset(_Named):
    """A piece of data that tasks update, identified by its URI; Paceline never reads from there.

    `name` defaults to `uri`, and `uri` to `name`. Both have 1 to 1500 ASCII characters, and a URI must not contain a
    password. `watchers` holds AssetWatchers, whose triggers update the asset. `group` and `extra` are accepted as in Airflow
    and not used. DagError if an argument is wrong.
    """

    def __init__(
        self,
        name: str | None = None,
        uri: str | None = None,
        *,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        watchers: Iterable[AssetWatcher] = (),
    ) -> None:
        self.name = _checked("name", uri if name is None else name)
        self.uri = _checked("uri", name if uri is None else uri)
        self.group = _checked("group", group)
        self.extra = dict(extra or {})
        self.watchers = tuple(watchers)
        if wrong := [watcher for watcher in self.watchers if not isinstance(watcher, AssetWatcher)]:
            raise fault(f"Asset {self.name!r}: watchers takes a list of AssetWatcher(name=..., trigger=...), not of {wrong[0]!r}.")

    @classmethod
    def ref(cls, *, name: str | None = None, uri: str | None = None) -> Any:
        """An asset of another DAG file by its name or its URI. By its name it can be in a schedule or an inlet, not an outlet."""
        if (name is None) == (uri is None):
            raise fault("Asset.ref() takes either a name or a URI.")
        return AssetRef(name) if name is not None else cls(uri=uri)

    @classmethod
    def table(cls, name: str, *, extra: Mapping[str, Any] | None = None, watchers: Iterable[AssetWatcher] = ()) -> Asset:
        """The table `name`, as namespace.table, in the catalog of Paceline: an asset with the URI "table:" and this name.

        As an outlet, its event has `publication`, `snapshot_id`, `operation`, `rows_added`, `rows_removed`, `rows` and, if it has
        changed, `schema_change` in its extra. A row that a deletion had to write again counts as removed and as added.
        DagError if the name is not one of a table, or has letters beyond ASCII, which assets do not have.
        """
        if not isinstance(name, str) or not names_a_table(name):
            raise fault(f"The name of a table is namespace.table, in letters of ASCII, digits, -, _ and blanks, not {name!r}.")
        return Asset(name=name, uri=TABLE + name, extra=extra, watchers=watchers)

    def to_spec(self) -> dict[str, Any]:
        return {"uri": self.uri} if self.name == self.uri else {"uri": self.uri, "name": self.name}


@dataclass(frozen=True, slots=True)
class AssetWatcher:
    """Updates an asset whenever its trigger fires: `Asset("orders", watchers=[AssetWatcher("orders_file", trigger=...)])`.

    While a DAG has the asset in its schedule, a DAG `watch__<asset>__<watcher>` with the tag `asset-watcher` runs all the time: it
    waits for the trigger without a worker, updates the asset, and starts again. The extra of each event is
    {"from_trigger": True, "payload": the payload of the trigger's event}. `name` distinguishes the watchers of an asset.
    `trigger` is a trigger with `serialize` and `run`. Only its first event counts; then the trigger is created again.
    DagError if an argument is wrong.
    """

    name: str
    trigger: Any

    def __post_init__(self) -> None:
        _checked("name of a watcher", self.name)
        try:
            deferral.serialized(self.trigger)
        except PacelineError as error:
            raise fault(f"AssetWatcher {self.name!r}: {str(error).replace('defer()', 'trigger')}") from None


class AssetAlias(Asset):
    """A name for assets that are known only when a task runs: `outlet_events[AssetAlias("x")].add(Asset(uri))` updates them.

    A DAG with the alias in its schedule runs after each update through the alias.
    """

    def __init__(self, name: str, *, group: str = "asset") -> None:
        super().__init__(name=name, uri=ALIAS + name, group=group)

    @classmethod
    def ref(cls, *, name: str | None = None, uri: str | None = None) -> Any:
        raise fault("AssetAlias has no ref(); write AssetAlias(name).")


class AssetRef(_Named):
    """An asset by its name, in the schedule of a DAG or among the inlets of a task. Another DAG file may define its URI."""

    #: As of an Asset; the file that defines the asset has its watchers.
    watchers: tuple[AssetWatcher, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = _checked("name", name)
        self.uri = NAMED + self.name

    def to_spec(self) -> dict[str, Any]:
        return {"uri": self.uri, "name": self.name}


class _Several(Condition):
    """Conditions joined by "and" or "or"."""

    word: str
    key: str

    def __init__(self, *parts: Condition) -> None:
        if not parts or not all(isinstance(part, Condition) for part in parts):
            raise fault(f"{type(self).__name__} needs one or more assets, not {parts!r}.")
        self.parts = parts

    def assets(self) -> Iterator[Asset | AssetRef]:
        for part in self.parts:
            yield from part.assets()

    def to_spec(self) -> dict[str, Any]:
        return {self.key: [part.to_spec() for part in self.parts]}

    @property
    def summary(self) -> str:
        return f" {self.word} ".join(
            f"({part.summary})" if isinstance(part, _Several) and len(part.parts) > 1 else part.summary for part in self.parts
        )


class AssetAll(_Several):
    """Met when all of its conditions are met: `a & b`."""

    word, key = "and", "all"

    def is_met(self, updated: Collection[str]) -> bool:
        return all(part.is_met(updated) for part in self.parts)


class AssetAny(_Several):
    """Met when one of its conditions is met: `a | b`."""

    word, key = "or", "any"

    def is_met(self, updated: Collection[str]) -> bool:
        return any(part.is_met(updated) for part in self.parts)


def from_spec(spec: Mapping[str, Any]) -> Condition:
    """The condition that `to_spec` described."""
    for kind in (AssetAll, AssetAny):
        if kind.key in spec:
            return kind(*(from_spec(part) for part in spec[kind.key]))
    if spec["uri"].startswith(NAMED):
        return AssetRef(spec["uri"].removeprefix(NAMED))
    return Asset(name=spec.get("name"), uri=spec["uri"])


def _parts(kind: type[_Several], condition: Condition) -> tuple[Condition, ...]:
    return condition.parts if type(condition) is kind else (condition,)


def _checked(what: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_LENGTH or not value.isascii():
        raise fault(f"The {what} of an asset must have 1 to {MAX_LENGTH} ASCII characters and not only blanks, not {value!r}.")
    if not value.isprintable():
        raise fault(f"The {what} of an asset must not contain control characters, as {value!r} does.")
    if what == "uri" and _PASSWORD.match(value):
        raise fault("The uri of an asset must not contain a password, because it is stored and shown in clear; remove it.")
    return value


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


@dataclass
class Metadata:
    """The extra of an asset event. A @task function with this outlet yields it: `yield Metadata(asset, {"rows": 3})`.

    With `alias`, which must be an outlet of the task, the asset is updated through that alias.
    """

    asset: Asset
    extra: Mapping[str, Any] = field(default_factory=dict)
    alias: AssetAlias | None = None
