"""The variables, connections and states of a run in memory."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from paceline.authoring import xcom
from paceline.authoring.connection import Connection
from scheduler.settings.model import Core
from workers.process.secrets_backend import EnvironmentBackend
from workers.task.store import encoded, retention


class StoredSecrets(Protocol):
    """Variables and connections that a run in memory only reads."""

    def variable(self, key: str) -> str | None:
        """The value; None if there is none."""

    def connection(self, conn_id: str) -> Connection | None:
        """The connection; None if there is none."""


@dataclass(eq=False, repr=False)
class MemoryBackend(EnvironmentBackend):
    """Serves variables and connections from the environment, then `variables`, which tasks change (None: deleted), then `stored`.

    `check` raises StaleTryError if the try may not write any more.
    """

    variables: dict[str, str | None] = field(kw_only=True)
    check: Callable[[], object] = field(kw_only=True)
    stored: StoredSecrets | None = field(kw_only=True, default=None)

    def variable(self, key: str) -> str | None:
        value = super().variable(key)
        if value is not None or key in self.variables:
            return self.variables.get(key) if value is None else value
        return None if self.stored is None else self.stored.variable(key)

    def connection(self, conn_id: str) -> Connection | None:
        found = super().connection(conn_id)
        return self.stored.connection(conn_id) if found is None and self.stored is not None else found

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        self.check()
        self.variables[key] = value

    def delete_variable(self, key: str) -> bool:
        self.check()
        existed = self.variables.get(key) is not None or (self.stored is not None and self.stored.variable(key) is not None)
        self.variables[key] = None
        return existed


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
