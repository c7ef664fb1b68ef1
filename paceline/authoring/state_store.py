"""The state of tasks and assets: values that user code keeps from try to try of one task, or from run to run for an asset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol

from paceline.authoring.asset import Asset
from paceline.exceptions import PacelineError

#: As `retention`: the value stays as long as its run.
NEVER_EXPIRE = timedelta.max
MAX_KEY_CHARACTERS = 512


class StateBackend(Protocol):
    """The storage of the values; `uri` is that of an asset, or None for the running task instance. The worker passes it in."""

    def get(self, uri: str | None, key: str, default: Any) -> Any:
        """The value, or `default`."""

    def set(self, uri: str | None, key: str, value: Any, expires_in_s: float | None) -> None:
        """Store a value (JSON), which expires after so many seconds. XComError if it cannot be stored."""

    def delete(self, uri: str | None, key: str | None) -> None:
        """Delete one value, or all with None as the key."""

    @property
    def retention(self) -> timedelta | None:
        """How long a value of a task is kept if its author does not decide; None for as long as its run."""


class NoStates:
    """The backend of a context without a database: every access is a PacelineError."""

    retention = None

    def get(self, uri: str | None, key: str, default: Any) -> Any:
        raise PacelineError("The state of tasks and assets cannot be read here.")

    def set(self, uri: str | None, key: str, value: Any, expires_in_s: float | None) -> None:
        raise PacelineError("The state of tasks and assets cannot be stored here.")

    def delete(self, uri: str | None, key: str | None) -> None:
        raise PacelineError("The state of tasks and assets cannot be deleted here.")


class _Coroutines:
    """`get`, `set`, `delete` and `clear` for coroutines. They wait for the database, which takes about a millisecond."""

    async def aget(self: Any, key: str, default: Any = None) -> Any:
        """`get` for coroutines."""
        return self.get(key, default)

    async def aset(self: Any, key: str, value: Any) -> None:
        """`set` for coroutines."""
        self.set(key, value)

    async def adelete(self: Any, key: str) -> None:
        """`delete` for coroutines."""
        self.delete(key)

    async def aclear(self: Any) -> None:
        """`clear` for coroutines."""
        self.clear()


@dataclass(frozen=True, eq=False, repr=False)
class _Values(_Coroutines):
    """The values of one task instance or asset, by key."""

    _backend: StateBackend
    _uri: str | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """The value under `key`, or `default`."""
        return self._backend.get(self._uri, _checked(key), default)

    def delete(self, key: str) -> None:
        """Delete the value under `key`, if there is one."""
        self._backend.delete(self._uri, _checked(key))

    def clear(self) -> None:
        """Delete all values."""
        self._backend.delete(self._uri, None)

    def _store(self, key: str, value: Any, retention: timedelta | None) -> None:
        if value is None:
            raise ValueError("None cannot be stored as a value; use delete(key).")
        if retention is not None and retention <= timedelta(0):
            raise ValueError(f"retention must be longer than zero, not {retention!r}.")
        self._backend.set(self._uri, _checked(key), value, None if retention is None else retention.total_seconds())


class TaskStateStore(_Values):
    """`task_state_store` in the context: the values of a task instance, which all tries share, also after it was cleared."""

    def set(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """Store a value (JSON, not None), which is deleted with its run.

        It expires after `retention`, by default core.task_state_retention_days, or never with NEVER_EXPIRE.
        """
        retention = self._backend.retention if retention is None else retention
        self._store(key, value, None if retention == NEVER_EXPIRE else retention)

    async def aset(self, key: str, value: Any, *, retention: timedelta | None = None) -> None:
        """`set` for coroutines."""
        self.set(key, value, retention=retention)


class AssetStateStore(_Values):
    """The values of one asset, which the tasks of all runs share. They stay until they are deleted."""

    def set(self, key: str, value: Any) -> None:
        """Store a value (JSON, not None)."""
        self._store(key, value, None)


@dataclass(frozen=True, eq=False, repr=False)
class AssetStateStores(_Coroutines, Mapping[Asset, AssetStateStore]):
    """`asset_state_store` in the context: `asset_state_store[asset].get("key")`, for each inlet and outlet of the task.

    If the task has only one, `get`, `set`, `delete` and `clear` can be called without naming it.
    """

    _backend: StateBackend
    _given: Sequence[Asset]

    @cached_property
    def _assets(self) -> dict[str, Asset]:
        return {asset.uri: asset for asset in self._given}

    def __getitem__(self, asset: Asset) -> AssetStateStore:
        if not isinstance(asset, Asset):
            raise TypeError(f"asset_state_store[...] takes an Asset, not {asset!r} ({type(asset).__name__}).")
        if asset.uri not in self._assets:
            raise KeyError(f"{asset!r} is not an inlet or outlet of this task; it has {list(self._assets.values())}")
        return AssetStateStore(self._backend, asset.uri)

    def __iter__(self) -> Any:
        return iter(self._assets.values())

    def __len__(self) -> int:
        return len(self._assets)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value under `key` of the only asset, or `default`."""
        return self._only().get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Store a value (JSON, not None) for the only asset."""
        self._only().set(key, value)

    def delete(self, key: str) -> None:
        """Delete the value under `key` of the only asset, if there is one."""
        self._only().delete(key)

    def clear(self) -> None:
        """Delete all values of the only asset."""
        self._only().clear()

    def _only(self) -> AssetStateStore:
        if len(self._assets) != 1:
            raise ValueError(f"The task has {len(self._assets)} inlets and outlets; name one: asset_state_store[asset].")
        return AssetStateStore(self._backend, next(iter(self._assets)))


def _checked(key: object) -> str:
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise ValueError(f"A key must be a str of 1 to {MAX_KEY_CHARACTERS} characters, not {key!r}.")
    return key
