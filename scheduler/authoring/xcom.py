"""XCom values as JSON. A value that is not JSON is rejected with its type and path. A DataFrame becomes a reference."""

import json
import math
from collections.abc import Mapping
from operator import methodcaller
from typing import Any

from scheduler.authoring import frames, object_storage
from scheduler.authoring.frames import DataFrameReference
from scheduler.authoring.nesting import MAX_DEPTH
from scheduler.authoring.object_storage import ObjectStoragePath
from scheduler.authoring.xcom_arg import RETURN_KEY
from scheduler.exceptions import XComError

#: The value to return instead, by the name of the type (in any module).
_ADVICE = {
    "DataFrame": "write it to a file and return its path",
    "Series": "return .tolist()",
    "ndarray": "return .tolist()",
    "set": "return sorted(...)",
    "frozenset": "return sorted(...)",
    "bytes": "return .decode(), or write a file and return its path",
    "datetime": "return .isoformat()",
    "date": "return .isoformat()",
    "timedelta": "return .total_seconds()",
    "Decimal": "return str(...) or float(...)",
    "PosixPath": "return str(...)",
    "generator": "return list(...)",
    "Row": "return .asDict()",
}


def encode(value: object, limit_bytes: int, *, name: str = "return value") -> str:
    """`value` as JSON; tuples become lists. XComError names the type and path, or the size and limit, and the fix."""
    try:
        _check(value, name, ())
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=methodcaller("to_json"))
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
    value = json.loads(text, object_hook=object_storage.revived) if object_storage.MARK in text else json.loads(text)
    return frames.revived(value) if frames.MARK in text else value


def outputs(value: object, *, multiple_outputs: bool) -> dict[str, object]:
    """The XComs of a return value by key; with multiple_outputs, each entry of the returned dict is also an XCom."""
    if not multiple_outputs or value is None:
        return {RETURN_KEY: value}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise XComError(f"A task with multiple_outputs must return a dict with str keys, not {_kind(value)}.")
    return {**value, RETURN_KEY: value}


def _check(value: object, name: str, path: tuple[str | int, ...]) -> None:
    if value is None or isinstance(value, bool | int):
        return
    if len(path) > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        _check_text(value, name, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise XComError(f"{_place(name, path)} is {value}, which JSON cannot represent; return None instead.")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise XComError(f"{_place(name, path)} has the key {key!r} of type {_kind(key)}; JSON keys are str.")
            _check_text(key, name, path)
            _check(item, name, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, name, (*path, index))
    elif isinstance(value, ObjectStoragePath):
        _check(value.storage_options, name, (*path, "storage_options"))
    elif not isinstance(value, DataFrameReference):
        advice = _ADVICE.get(type(value).__name__, "return JSON: None, bool, int, float, str, list or dict")
        raise XComError(f"{_place(name, path)} is of type {_kind(value)}, which is not JSON; {advice}.")


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


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
