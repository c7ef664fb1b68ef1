"""Where a running task finds variables and connections. Every secret that is handed out is masked in the task's log first."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.exceptions import NotFoundError, PacelineError
from scheduler.masking import secrets_masker

if TYPE_CHECKING:
    from scheduler.authoring.connection import Connection


class Vault(Protocol):
    """What a worker gives its tasks; None stands for something that is not there."""

    def variable(self, key: str) -> str | None: ...

    def set_variable(self, key: str, value: str, description: str | None) -> None: ...

    def delete_variable(self, key: str) -> bool: ...

    def connection(self, conn_id: str) -> Connection | None: ...


class NoVault:
    """Stands where a context was made without a vault."""

    def variable(self, key: str) -> str | None:
        raise PacelineError(f"Variable {key!r}: variables cannot be read here.")

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        raise PacelineError(f"Variable {key!r}: variables cannot be set here.")

    def delete_variable(self, key: str) -> bool:
        raise PacelineError(f"Variable {key!r}: variables cannot be deleted here.")

    def connection(self, conn_id: str) -> Connection | None:
        raise PacelineError(f"Connection {conn_id!r}: connections cannot be read here.")


def current(what: str) -> Vault:
    """The vault of the running task; PacelineError outside of one."""
    from scheduler.authoring import context  # which imports this module for its `var` and `conn`

    if not context.is_running():
        raise PacelineError(
            f"{what} works only while a task runs: use it inside the task's function, or a template such as "
            "{{ var.value.name }} or {{ conn.name.host }}, so that reading a DAG file asks no database."
        )
    vault: Vault = context.get_current_context()["var"].vault
    return vault


def variable(vault: Vault, key: str) -> str:
    """The text of a variable, masked if its name looks secret; NotFoundError."""
    text = vault.variable(key)
    if text is None:
        raise NotFoundError(f"There is no variable {key!r}: `paceline variables set {key} VALUE` makes it.")
    if secrets_masker.looks_secret(key):
        secrets_masker.mask_secret(text)
    value = _json_or_none(text)
    for secret in [value] if secrets_masker.looks_secret(key) else secrets_masker.secrets_in(value):
        secrets_masker.mask_secret(secret)
    return text


def connection(vault: Vault, conn_id: str) -> Connection:
    """A connection, its password and what is secret in its extra masked; NotFoundError."""
    found = vault.connection(conn_id)
    if found is None:
        raise NotFoundError(f"There is no connection {conn_id!r}: `paceline connections add {conn_id} --conn-uri URI` makes it.")
    secrets_masker.mask_secret(found.password)
    for secret in secrets_masker.secrets_in(found.extra_dejson):
        secrets_masker.mask_secret(secret)
    return found


def _json_or_none(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
