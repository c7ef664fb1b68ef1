"""Variables: strings or JSON values that tasks read. They are stored encrypted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from paceline import secrets_masker
from paceline.authoring import running
from paceline.exceptions import NotFoundError, PacelineError

NOTSET: Any = object()


class Variable:
    """Access to variables in a running task: `Variable.get("key")`. Templates use `{{ var.value.key }}`."""

    @staticmethod
    def get(key: str, default: Any = NOTSET, deserialize_json: bool = False, default_var: Any = NOTSET) -> Any:
        """The string, or with `deserialize_json` the JSON value in it.

        `default` (in Airflow 2 `default_var`) if there is no such variable; without it, NotFoundError. While a DAG file is
        loaded, only the environment (PACELINE_VAR_KEY) and then `default` count, since no file needs the database; without
        both, PacelineError. A stored variable that a file ignores is a warning in `paceline dags errors`.
        """
        default = default_var if default is NOTSET else default
        backend: Any = None if running.is_served() else OfEnvironment(running.environment)
        if backend is None or (default is NOTSET and backend.variable(key) is None):
            instead = (
                f"set PACELINE_VAR_{key.upper()} in the environment of schedulers and workers, add default=, or read it inside the"
                f" task's function or as {{{{ var.value.{key} }}}}"
            )
            backend = running.secrets_backend(f"Variable.get({key!r}) without a default", instead)
        if isinstance(backend, OfEnvironment) and backend.variable(key) is None:
            running.defaulted.add(key)
        return _get(backend, key, default, as_json=deserialize_json)

    @staticmethod
    def set(key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        """Create or change a variable; `serialize_json` stores `value` as JSON, otherwise `str(value)` is stored."""
        text = json.dumps(value, ensure_ascii=False) if serialize_json else str(value)
        running.secrets_backend("Variable.set()").set_variable(key, text, description)

    @staticmethod
    def delete(key: str) -> None:
        """Delete a variable, if it exists."""
        running.secrets_backend("Variable.delete()").delete_variable(key)


@dataclass(frozen=True, slots=True)
class OfEnvironment:
    """The variables of an environment, for DAG files while they are loaded."""

    environment: Mapping[str, str]

    def variable(self, key: str) -> str | None:
        names = (f"{prefix}{key.upper()}" for prefix in ("PACELINE_VAR_", "AIRFLOW_VAR_"))
        return next((self.environment[name] for name in names if name in self.environment), None)


class VariableBackend(Protocol):
    """The source of variables."""

    def variable(self, key: str) -> str | None:
        """The string of a variable; None if there is none."""

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        """Create or change a variable."""

    def delete_variable(self, key: str) -> bool:
        """Delete a variable; False if it does not exist."""


@dataclass(eq=False, repr=False)
class Variables:
    """`var` of a context: `var.value.key` and `var.json.key`, each also with `.get(key, default)`."""

    backend: VariableBackend

    @cached_property
    def value(self) -> Accessor:
        return Accessor(self.backend, as_json=False)

    @cached_property
    def json(self) -> Accessor:
        return Accessor(self.backend, as_json=True)


class Accessor:
    """Variables by name, as strings or as JSON values."""

    def __init__(self, source: VariableBackend, *, as_json: bool) -> None:
        self._backend = source
        self._as_json = as_json

    def get(self, key: str, default: Any = NOTSET, default_var: Any = NOTSET) -> Any:
        return _get(self._backend, key, default_var if default is NOTSET else default, as_json=self._as_json)

    __getitem__ = get

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self.get(key)


def _get(source: Any, key: str, default: Any, *, as_json: bool) -> Any:
    try:
        text = _read(source, key)
    except NotFoundError:
        if default is NOTSET:
            raise
        return default
    if not as_json:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # The message must not contain the value: it may be a secret.
        raise PacelineError(f"Variable {key!r} is not JSON: read it as a string, or set it to JSON.") from None


def _read(backend: Any, key: str) -> str:
    """Read a variable, and mask it in the log of the task if its name looks secret; NotFoundError."""
    text: str | None = backend.variable(key)
    if text is None:
        raise NotFoundError(
            f"There is no variable {key!r}; create it with `paceline variables set {key} VALUE`, or set PACELINE_VAR_{key.upper()}."
        )
    if secrets_masker.looks_secret(key):
        secrets_masker.mask_secret(text)
    value = _json_or_none(text)
    for secret in [value] if secrets_masker.looks_secret(key) else secrets_masker.secrets_in(value):
        secrets_masker.mask_secret(secret)
    return text


def _json_or_none(text: str) -> Any:
    with suppress(ValueError, RecursionError):
        return json.loads(text) if text.lstrip().startswith(("{", "[")) else None
    return None
