"""Variables: strings or JSON values that tasks read. They are stored encrypted."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from scheduler.authoring import running
from scheduler.exceptions import NotFoundError, PacelineError
from scheduler.process import secrets_masker

NOTSET: Any = object()


class Variable:
    """Access to variables in a running task: `Variable.get("key")`. Templates use `{{ var.value.key }}`."""

    @staticmethod
    def get(key: str, default: Any = NOTSET, deserialize_json: bool = False) -> Any:
        """The string, or with `deserialize_json` the JSON value in it.

        `default` if there is no such variable; without `default`, NotFoundError. PacelineError outside a running task.
        """
        return _get(running.secrets_backend("Variable.get()"), key, default, as_json=deserialize_json)

    @staticmethod
    def set(key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        """Create or change a variable; `serialize_json` stores `value` as JSON, otherwise `str(value)` is stored."""
        text = json.dumps(value, ensure_ascii=False) if serialize_json else str(value)
        running.secrets_backend("Variable.set()").set_variable(key, text, description)

    @staticmethod
    def delete(key: str) -> None:
        """Delete a variable, if it exists."""
        running.secrets_backend("Variable.delete()").delete_variable(key)


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

    def get(self, key: str, default: Any = NOTSET) -> Any:
        return _get(self._backend, key, default, as_json=self._as_json)

    __getitem__ = get

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self.get(key)


def _get(source: VariableBackend, key: str, default: Any, *, as_json: bool) -> Any:
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


def _read(backend: VariableBackend, key: str) -> str:
    """Read a variable, and mask it in the log of the task if its name looks secret; NotFoundError."""
    text = backend.variable(key)
    if text is None:
        raise NotFoundError(f"There is no variable {key!r}; create it with `paceline variables set {key} VALUE`.")
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
