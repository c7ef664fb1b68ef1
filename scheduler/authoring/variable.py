"""Variables: texts or JSON values that tasks read, kept encrypted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from scheduler.authoring import running
from scheduler.exceptions import NotFoundError, PacelineError
from scheduler.masking import secrets_masker

NOTSET: Any = object()


class Variable:
    """`Variable.get("key")` inside a task; templates write `{{ var.value.key }}`."""

    @staticmethod
    def get(key: str, default: Any = NOTSET, deserialize_json: bool = False) -> Any:
        """The text, or with `deserialize_json` its value; `default` if there is none, else NotFoundError."""
        return _get(running.secrets_backend("Variable.get()"), key, default, as_json=deserialize_json)

    @staticmethod
    def set(key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        """Make or change a variable; with `serialize_json` any JSON value, else its text."""
        text = json.dumps(value, ensure_ascii=False) if serialize_json else str(value)
        running.secrets_backend("Variable.set()").set_variable(key, text, description)

    @staticmethod
    def delete(key: str) -> None:
        """Delete a variable, if it is there."""
        running.secrets_backend("Variable.delete()").delete_variable(key)


class VariableBackend(Protocol):
    """Where variables are found."""

    def variable(self, key: str) -> str | None:
        """The text of a variable; None if there is none."""

    def set_variable(self, key: str, value: str, description: str | None) -> None:
        """Make or change one."""

    def delete_variable(self, key: str) -> bool:
        """Delete one; whether it was there."""


@dataclass(eq=False, repr=False)
class Variables:
    """`var` of a context: `var.value.key` and `var.json.key`, each also with `.get(key, default)`."""

    backend: VariableBackend

    @cached_property
    def value(self) -> Accessor:
        """Variables as text."""
        return Accessor(self.backend, as_json=False)

    @cached_property
    def json(self) -> Accessor:
        """Variables as JSON values."""
        return Accessor(self.backend, as_json=True)


class Accessor:
    """Variables by name."""

    def __init__(self, source: VariableBackend, *, as_json: bool) -> None:
        self._backend = source
        self._as_json = as_json

    def get(self, key: str, default: Any = NOTSET) -> Any:
        return _get(self._backend, key, default, as_json=self._as_json)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self.get(key)

    def __getitem__(self, key: str) -> Any:
        return self.get(key)


def _get(source: VariableBackend, key: str, default: Any, *, as_json: bool) -> Any:
    try:
        text = _found(source, key)
    except NotFoundError:
        if default is NOTSET:
            raise
        return default
    if not as_json:
        return text
    try:
        return json.loads(text)
    except ValueError:
        # Its text is no part of the sentence: it may be a secret.
        raise PacelineError(f"Variable {key!r} is not JSON: read it as text, or set it to JSON.") from None


def _found(backend: VariableBackend, key: str) -> str:
    """The text of a variable, masked in the task's log first if its name looks secret; NotFoundError."""
    text = backend.variable(key)
    if text is None:
        raise NotFoundError(f"There is no variable {key!r}: `paceline variables set {key} VALUE` makes it.")
    if secrets_masker.looks_secret(key):
        secrets_masker.mask_secret(text)
    value = _json_or_none(text)
    for secret in [value] if secrets_masker.looks_secret(key) else secrets_masker.secrets_in(value):
        secrets_masker.mask_secret(secret)
    return text


def _json_or_none(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
