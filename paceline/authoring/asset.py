"""Assets: pieces of data that tasks update (`outlets`) and DAGs wait for (`schedule=[...]`, `a & b`, `a | b`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.authoring import deferral
from paceline.authoring.source import fault
from paceline.exceptions import PacelineError

MAX_LENGTH = 1500
#: The URI of an alias is its name after this.
ALIAS = "alias:"
#: The URI of an asset in a schedule that is only known by its name is that name after this.
NAMED = "name:"
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
