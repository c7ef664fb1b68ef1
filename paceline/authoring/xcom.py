"""XCom values as JSON, with the types that values.py adds. A value of another type is rejected with its type and path.

A DataFrame of Spark becomes a reference.
"""

import json
from collections.abc import Mapping
from typing import Any

from paceline.authoring import frames, object_storage, values
from paceline.authoring.xcom_arg import RETURN_KEY
from paceline.exceptions import XComError


def encode(value: object, limit_bytes: int, *, name: str = "return value") -> str:
    """`value` as JSON; tuples become lists. XComError names the type and path, or the size and limit, and the fix."""
    try:
        text = json.dumps(values.plain(value, name), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
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
    is_marked = object_storage.MARK in text or values.TAG in text
    value = json.loads(text, object_hook=_revived if is_marked else None)
    return frames.revived(value) if frames.MARK in text else value


def outputs(value: object, *, multiple_outputs: bool) -> dict[str, object]:
    """The XComs of a return value by key; with multiple_outputs, each entry of the returned dict is also an XCom."""
    if not multiple_outputs or value is None:
        return {RETURN_KEY: value}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise XComError(f"A task with multiple_outputs must return a dict with str keys, not {values.kind(value)}.")
    return {**value, RETURN_KEY: value}


def _revived(value: dict[str, Any]) -> Any:
    return values.revived(value) if values.TAG in value else object_storage.revived(value)
