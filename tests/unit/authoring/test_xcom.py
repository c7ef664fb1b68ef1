"""Return values as JSON."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.authoring import xcom
from scheduler.authoring.object_storage import ObjectStoragePath
from scheduler.exceptions import XComError

LIMIT = 1000


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "ä\n", [], {"a": [1, {"b": None}]}, 10**40])
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert xcom.decode(xcom.encode(value, LIMIT)) == value


def test_a_path_of_object_storage_comes_back_wherever_it_is_in_the_value() -> None:
    path = ObjectStoragePath("s3://bucket/key", conn_id="store", endpoint_url="http://s3")

    one, many = xcom.decode(xcom.encode({"one": path, "many": [path.parent]}, LIMIT)).values()

    assert (one, one.conn_id, one.storage_options) == (path, "store", {"endpoint_url": "http://s3"})
    assert many == [path.parent]
    local = ObjectStoragePath("file:///tmp/a b")
    assert xcom.decode(xcom.encode(local, LIMIT)) == local


def test_a_path_whose_options_are_not_json_is_refused() -> None:
    with pytest.raises(XComError, match=r'return value\["storage_options"\]\["at"\] is of type datetime'):
        xcom.encode(ObjectStoragePath("s3://b/k", at=datetime(2026, 1, 1, tzinfo=UTC)), LIMIT)


def test_an_object_with_our_key_and_other_content_stays_as_it_is() -> None:
    value = {"__object_storage_path__": 1}

    assert xcom.decode(xcom.encode(value, LIMIT)) == value


def test_a_tuple_comes_back_as_a_list() -> None:
    assert xcom.decode(xcom.encode({"a": (1, 2)}, LIMIT)) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rows": [0, 1, 2, {1}]}, r'^return value\["rows"\]\[3\] is of type set, which is not JSON; return sorted'),
        (datetime(2026, 1, 1, tzinfo=UTC), r"^return value is of type datetime\.datetime, .*isoformat"),
        (b"x", "is of type bytes"),
        (Path("/x"), r"pathlib.*\.PosixPath, .*return str"),
        (object(), "is of type object, which is not JSON; return JSON: None"),
        ({"a": float("nan")}, r'return value\["a"\] is nan'),
        ([float("-inf")], r"return value\[0\] is -inf"),
        ({"a": {3: 1}}, r'return value\["a"\] has the key 3 of type int'),
        (["a\0"], r"return value\[0\] contains a NUL"),
        ({"a\0": 1}, "contains a NUL"),
        ("\ud800", "half a surrogate pair"),
        ("x" * 2000, r"return value has 2,002 bytes of JSON; 1,000 are allowed .* return its path"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(XComError, match=words):
        xcom.encode(value, LIMIT)


def test_the_limit_counts_bytes_and_not_characters() -> None:
    assert xcom.encode("a" * 998, LIMIT)
    with pytest.raises(XComError, match="1,202 bytes"):
        xcom.encode("ä" * 600, LIMIT)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(XComError, match="contains itself"):
        xcom.encode(value, LIMIT)


def test_a_number_too_long_to_write_is_refused() -> None:
    with pytest.raises(XComError, match="cannot be written as JSON"):
        xcom.encode(10**5000, LIMIT)


def test_several_outputs() -> None:
    assert xcom.outputs({"a": 1}, multiple_outputs=True) == {"a": 1, "return_value": {"a": 1}}
    assert xcom.outputs({"a": 1}, multiple_outputs=False) == {"return_value": {"a": 1}}
    assert xcom.outputs(None, multiple_outputs=True) == {"return_value": None}
    with pytest.raises(XComError, match="a dict with str keys, not list"):
        xcom.outputs([1], multiple_outputs=True)
