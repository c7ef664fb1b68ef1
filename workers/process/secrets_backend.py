"""The secrets backend, which serves variables and connections to tasks: from the worker's environment, then from the database."""

import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.authoring import running
from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.process import hardening
from scheduler.settings import Settings
from scheduler.settings.environment import CONNECTION_PREFIXES, STORE_PREFIXES, VARIABLE_PREFIXES
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import WorkerConnection

#: Sends one statement, and returns its rows by the names of their columns.
Ask = Callable[[str, Sequence[Any]], Sequence[Mapping[str, Any]]]
#: Variables that were removed from the environment, so that user code and its child processes do not print them by accident.
_taken: dict[str, str] = {}


def take_environment() -> None:
    """Move PACELINE_VAR_* and PACELINE_CONN_* from the environment to this module, for the secrets backend only."""
    for name in [name for name in os.environ if name.startswith(STORE_PREFIXES)]:
        _taken[name] = os.environ[name]
        hardening.overwrite(name)
        del os.environ[name]
    running.environment = ChainMap(_taken, os.environ)


def taken() -> Mapping[str, str]:
    """What `take_environment` has moved, for another process of this worker."""
    return _taken


def give(stored: Mapping[str, str]) -> None:
    """Serve what another process of this worker has taken."""
    _taken.update(stored)
    take_environment()


@dataclass(eq=False, repr=False)
class EnvironmentBackend:
    """Serves variables and connections from the environment only."""

    #: Names with values; None means the values that `take_environment` has moved.
    environment: Mapping[str, str] | None = None

    @property
    def _environment(self) -> Mapping[str, str]:
        return _taken if self.environment is None else self.environment

    def _named(self, prefixes: Sequence[str], name: str) -> str | None:
        known = (self._environment.get(f"{prefix}{name.upper()}") for prefix in prefixes)
        return next((value for value in known if value is not None), None)

    def variable(self, key: str) -> str | None:
        return self._named(VARIABLE_PREFIXES, key)

    def connection(self, conn_id: str) -> Connection | None:
        text = self._named(CONNECTION_PREFIXES, conn_id)
        return None if text is None else Connection.parse(conn_id, text)


def _stored(ask: Ask, conn_id: str, settings: Settings) -> Connection | None:
    """A connection of the database. Encryption is loaded with the first one."""
    from scheduler.store.secrets import connections
    from scheduler.store.secrets.cipher import Cipher

    rows = ask(connections.READ, (conn_id,))
    return connections.from_row(rows[0], Cipher.of(settings, make=False)) if rows else None


def password(settings: Settings, ask: Ask, conn_id: str) -> str | None:
    """The password of a connection, for the worker's parent process. None if the connection does not exist."""
    connection = EnvironmentBackend().connection(conn_id) or _stored(ask, conn_id, settings)
    return None if connection is None else connection.password


@dataclass(eq=False, repr=False, kw_only=True)
class StoreBackend(EnvironmentBackend):
    """Serves variables and connections from the environment, then from the database. Encryption is loaded on first use."""

    settings: Settings
    claim: Claim
    hot: WorkerConnection
    patient: Callable[[Callable[[], Any]], Any]
    pid: int = field(default_factory=os.getpid)

    def variable(self, key: str) -> str | None:
        value = super().variable(key)
        if value is not None:
            return value
        from scheduler.store.secrets import variables
        from scheduler.store.secrets.cipher import Cipher

        rows = self._ask(variables.READ, (key,))
        return Cipher.of(self.settings, make=False).decrypt(rows[0]["value"], f"Variable {key!r}") if rows else None

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        from scheduler.store.secrets import variables
        from scheduler.store.secrets.cipher import Cipher

        variables.check_key(key)
        value = Cipher.of(self.settings, make=True).encrypt(value)
        self._write(variables.WRITE_OF_TASK, (key, value, description))

    def delete_variable(self, key: str) -> bool:
        from scheduler.store.secrets import variables

        return self._write(variables.DELETE_OF_TASK, (key,)) > 0

    def connection(self, conn_id: str) -> Connection | None:
        return super().connection(conn_id) or _stored(self._ask, conn_id, self.settings)

    def _ask(self, statement: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        self._refuse_fork()
        rows: list[dict[str, Any]] = self.patient(lambda: self.hot.dicts(statement, parameters))
        return rows

    def _write(self, statement: str, parameters: Sequence[Any]) -> int:
        self._refuse_fork()
        written: int = self.patient(lambda: self.hot.write(self.claim.writer, statement, parameters))
        return written

    def _refuse_fork(self) -> None:
        if os.getpid() != self.pid:
            raise PacelineError(
                "Variables and connections cannot be read in a process that the task has forked: read them before the fork."
            )
