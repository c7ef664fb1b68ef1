"""The source of variables and connections of a running task."""

from typing import Protocol

from scheduler.authoring.connection import Connection, ConnectionBackend
from scheduler.authoring.variable import VariableBackend
from scheduler.exceptions import PacelineError


class SecretsBackend(VariableBackend, ConnectionBackend, Protocol):
    """The variables and connections that a worker serves to its tasks; None for one that does not exist."""


class NoBackend:
    """The backend of a context without secrets: every access is a PacelineError."""

    def variable(self, key: str) -> str | None:
        raise PacelineError(f"Variable {key!r}: variables cannot be read here.")

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        raise PacelineError(f"Variable {key!r}: variables cannot be set here.")

    def delete_variable(self, key: str) -> bool:
        raise PacelineError(f"Variable {key!r}: variables cannot be deleted here.")

    def connection(self, conn_id: str) -> Connection | None:
        raise PacelineError(f"Connection {conn_id!r}: connections cannot be read here.")
