"""The state of tasks and assets for user code: in PostgreSQL, or in memory for a run without a database."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from paceline.authoring import xcom
from scheduler.settings.model import Core
from scheduler.store.worker import state_store
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import HotPath


def retention(core: Core) -> timedelta | None:
    """How long a value of a task is kept; None for as long as its run."""
    return timedelta(days=core.task_state_retention_days) or None


def encoded(key: str, value: Any, limit_bytes: int) -> str:
    """A value as JSON; XComError if it is none, or too large."""
    return xcom.encode(value, limit_bytes, name=f"value of the state {key!r}")


@dataclass(frozen=True, slots=True)
class StoredStates:
    """Over the connection of a pool process. StaleTryError for writes of a try that is not the current one."""

    core: Core
    claim: Claim
    hot: HotPath
    #: Repeats a call until the database answers.
    patient: Callable[[Callable[[], Any]], Any]

    @property
    def retention(self) -> timedelta | None:
        return retention(self.core)

    def get(self, uri: str | None, key: str, default: Any) -> Any:
        return self.patient(lambda: state_store.get(self.hot, self.claim, uri, key, default=default))

    def set(self, uri: str | None, key: str, value: Any, expires_in_s: float | None) -> None:
        text = encoded(key, value, self.core.max_xcom_bytes)
        self.patient(lambda: state_store.put(self.hot, self.claim, uri, key, text, expires_in_s=expires_in_s))

    def delete(self, uri: str | None, key: str | None) -> None:
        self.patient(lambda: state_store.delete(self.hot, self.claim, uri, key))


@dataclass(slots=True)
class MemoryStates:
    """In memory, for one run. `of` numbers the task instance that runs; `check` raises StaleTryError if its try has ended."""

    of: int
    check: Callable[[], Any]
    #: JSON and the monotonic time at which it expires, by URI or number, and key. All task instances of a run share it.
    values: dict[tuple[str | int, str], tuple[str, float | None]] = field(default_factory=dict)
    core: Core = field(default_factory=Core)

    @property
    def retention(self) -> timedelta | None:
        return retention(self.core)

    def get(self, uri: str | None, key: str, default: Any) -> Any:
        text, until = self.values.get((self._owner(uri), key), (None, None))
        return default if text is None or (until is not None and until <= time.monotonic()) else xcom.decode(text)

    def set(self, uri: str | None, key: str, value: Any, expires_in_s: float | None) -> None:
        self.check()
        until = None if expires_in_s is None else time.monotonic() + expires_in_s
        self.values[self._owner(uri), key] = (encoded(key, value, self.core.max_xcom_bytes), until)

    def delete(self, uri: str | None, key: str | None) -> None:
        self.check()
        for place in [place for place in self.values if place[0] == self._owner(uri) and key in {None, place[1]}]:
            del self.values[place]

    def _owner(self, uri: str | None) -> str | int:
        return self.of if uri is None else uri
