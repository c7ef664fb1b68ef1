"""XCom values as JSON, with those that JSON does not have: dates, decimals, sets, paths, and the numbers of numpy and pandas.

A value of the standard library comes back as it was. The others become what JSON has: a number of numpy a number, an array or a
Series a list, a dataclass or a model of pydantic a dict, an Enum its value. A DataFrame of Spark becomes a reference. A value of
another type is rejected with its type and path.
"""

import base64
import dataclasses
import json
import math
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any
from zoneinfo import ZoneInfo

from paceline.authoring import frames, object_storage
from paceline.authoring.json_schema import MAX_DEPTH
from paceline.exceptions import XComError

#: The key of the XCom with the return value of a task.
RETURN_KEY = "return_value"
#: The key of a stored value whose type JSON does not have.
TAG = "__type__"

#: By the name of the type: how the value of a stored one is read.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "datetime": lambda text: _moment(*text) if isinstance(text, list) else datetime.fromisoformat(text),
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda seconds: timedelta(seconds=seconds),
    "decimal": Decimal,
    "set": lambda entries: {_hashable(entry) for entry in entries},
    "frozenset": lambda entries: frozenset(_hashable(entry) for entry in entries),
    "path": Path,
    "bytes": base64.b64decode,
    "float": float,
    "uuid": uuid.UUID,
}


def _in_order(value: Set[Any]) -> list[Any]:
    """The entries in an order that is the same in each process, if they have one."""
    try:
        return sorted(value)
    except TypeError:
        return sorted(value, key=repr)


def _hashable(entry: Any) -> Any:
    """An entry of a set, whose tuples JSON has as lists."""
    return tuple(_hashable(part) for part in entry) if isinstance(entry, list) else entry


#: By type: its name, and its value as JSON. A datetime is a date too, and comes first.
_WRITTEN: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (float, "float", lambda value: repr(float(value))),
    (time, "time", time.isoformat),
    (date, "date", date.isoformat),
    (timedelta, "timedelta", timedelta.total_seconds),
    (Decimal, "decimal", str),
    (frozenset, "frozenset", _in_order),
    (Set, "set", _in_order),
    (PurePath, "path", str),
    (bytes | bytearray, "bytes", lambda value: base64.b64encode(value).decode()),
    (uuid.UUID, "uuid", str),
)
#: By type: the value of JSON or of this module that stands for it.
_INSTEAD: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, attrgetter("value")),
    (Mapping, dict),
    (range | deque, list),
)


#: The value to return instead, by the name of the type (in any module).
_ADVICE = {
    "DataFrame": "write it to a file and return its path",
    "generator": "return list(...)",
    "coroutine": "await it",
    "Row": "return .asDict()",
}


def encode(value: object, limit_bytes: int, *, name: str = "return value") -> str:
    """`value` as JSON; tuples become lists. XComError names the type and path, or the size and limit, and the fix."""
    try:
        text = json.dumps(plain(value, name), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise XComError(f"The {name} is nested too deeply, or contains itself; return a flatter one.") from None
    except ValueError as error:
        raise XComError(f"The {name} cannot be written as JSON: {error}.") from None
    size = len(text.encode())
    if size > limit_bytes:
        raise XComError(
            f"The {name} has {size:,} bytes of JSON; {limit_bytes:,} are allowed (core.max_xcom_bytes). "
            "Write it to a file and return its path."
        )
    return text


def decode(text: str) -> Any:
    """The value that `encode` received, with tuples as lists."""
    # As fast as json.loads alone for a text without our marks.
    is_marked = object_storage.MARK in text or TAG in text
    value = json.loads(text, object_hook=_revived if is_marked else None)
    return frames.revived(value) if frames.MARK in text else value


def outputs(value: object, *, multiple_outputs: bool) -> dict[str, object]:
    """The XComs of a return value by key; with multiple_outputs, each entry of the returned dict is also an XCom."""
    if not multiple_outputs or value is None:
        return {RETURN_KEY: value}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise XComError(f"A task with multiple_outputs must return a dict with str keys, not {kind(value)}.")
    return {**value, RETURN_KEY: value}


def _revived(value: dict[str, Any]) -> Any:
    return revived(value) if TAG in value else object_storage.revived(value)


class NotStorableError(TypeError):
    """The type of a value has no form in JSON."""


def stored(value: Any) -> Any:
    """The form of a value that is no str, int, bool, finite float, list, tuple or dict; its parts may need the same again.

    NotStorableError if its type has none.
    """
    if isinstance(value, datetime):
        return _of_moment(value)
    if hasattr(value, "to_json") and type(value).__module__.startswith("paceline."):  # a DataFrameReference, ObjectStoragePath
        return value.to_json()
    for type_, tag, write in _WRITTEN:
        if isinstance(value, type_):
            return {TAG: tag, "value": write(value)}
    for type_, instead in _INSTEAD:
        if isinstance(value, type_):
            return instead(value)
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else getattr(type(value), "__attrs_attrs__", None)
    if fields is not None and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields}
    for base in type(value).__mro__:
        of_library = _LIBRARIES.get(f"{base.__module__.partition('.')[0]}.{base.__name__}")
        if of_library is not None:
            return of_library(value)
    raise NotStorableError(type(value).__name__)


#: Values of libraries, which need not be installed here.
_LIBRARIES: Mapping[str, Callable[[Any], Any]] = {
    "numpy.generic": lambda value: value.item(),
    "numpy.ndarray": lambda value: value.tolist(),
    "pandas.Series": lambda value: value.tolist(),
    "pandas.Index": lambda value: value.tolist(),
    "pandas.NAType": lambda _: None,
    "pydantic.BaseModel": lambda value: value.model_dump(),
}


def revived(value: Mapping[str, Any]) -> Any:
    """The value that `stored` described, or the object itself if user code used our key for something else."""
    tag = value.get(TAG)
    read = _READ.get(tag) if isinstance(tag, str) and value.keys() == {TAG, "value"} else None
    if read is None:
        return value
    try:
        return read(value["value"])
    except (ValueError, TypeError, ArithmeticError, KeyError):
        return value


def _of_moment(value: datetime) -> Any:
    """With the name of its time zone: an offset alone would lose the changes of the clocks."""
    if value != value:  # noqa: PLR0124 - NaT of pandas
        return None
    value = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
    zone = getattr(value.tzinfo, "key", None) or getattr(value.tzinfo, "name", None)
    return {TAG: "datetime", "value": value.isoformat() if not isinstance(zone, str) else [value.isoformat(), zone]}


def _moment(text: str, zone: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(ZoneInfo(zone))


def plain(value: object, name: str = "return value", path: tuple[str | int, ...] = ()) -> Any:
    """`value` as what JSON has: XComError names the type and place of one without such a form."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        if isinstance(value, str):
            _check_text(value, name, path)
        return value
    if len(path) > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        return {_key(key, name, path): plain(item, name, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, name, (*path, index)) for index, item in enumerate(value)]
    try:
        return plain(stored(value), name, path)
    except NotStorableError:
        advice = _ADVICE.get(type(value).__name__, "return None, a bool, a number, text, a date, a list or a dict")
        raise XComError(f"{_place(name, path)} is of type {kind(value)}, which cannot be stored as JSON; {advice}.") from None


def _key(key: object, name: str, path: tuple[str | int, ...]) -> str:
    """A key of a dict as text, as in Airflow: JSON has no others."""
    text = str(key)
    _check_text(text, name, path)
    return text


def _check_text(text: str, name: str, path: tuple[str | int, ...]) -> None:
    if "\0" in text:
        raise XComError(f"{_place(name, path)} contains a NUL character, which the database cannot store; remove it.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise XComError(f"{_place(name, path)} contains half a surrogate pair, which is not valid text; decode it.") from None


def _place(name: str, path: tuple[str | int, ...]) -> str:
    return name + "".join(f"[{json.dumps(part)}]" for part in path)


def kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
