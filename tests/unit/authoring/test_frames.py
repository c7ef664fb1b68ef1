"""References to returned DataFrames: to JSON and back, distinguished from other objects, described for people."""

import json
import sys
from typing import Any

import pytest

from paceline.authoring import frames, xcom
from paceline.authoring.frames import DataFrameReference, DataFrames
from paceline.exceptions import XComError

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
        {
            "name": "at",
            "type": {"type": "struct", "fields": [{"name": "x", "type": "double", "nullable": True, "metadata": {}}]},
            "nullable": True,
            "metadata": {},
        },
    ],
}
REFERENCE = DataFrameReference(url="file:///data/d/r/t/r1-try1-x", schema=SCHEMA, rows=3, bytes=700)


class Session:
    """Records the opened folders in place of a SparkSession."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, ...]] = []

    @property
    def read(self) -> "Session":
        return self

    def schema(self, _: object) -> "Session":
        return self

    def parquet(self, *urls: str) -> tuple[str, ...]:
        self.opened.append(urls)
        return urls


def test_a_reference_comes_back_from_json_wherever_it_stands() -> None:
    value = {"flights": REFERENCE, "parts": [REFERENCE, {"n": 1}], "n": 3}

    assert xcom.decode(xcom.encode(value, 10_000)) == {"flights": REFERENCE, "parts": [REFERENCE, {"n": 1}], "n": 3}


def test_json_without_a_reference_is_not_walked() -> None:
    walked: list[str] = []
    sys.setprofile(lambda frame, *_: walked.append("walked") if frame.f_code is frames.revived.__code__ else None)
    try:
        values = [xcom.decode('{"a": [1, {"b": null}]}'), walked.copy(), xcom.decode(xcom.encode([REFERENCE], 10_000))]
    finally:
        sys.setprofile(None)

    assert values == [{"a": [1, {"b": None}]}, [], [REFERENCE]]
    assert walked


@pytest.mark.parametrize(
    "value", [{"__dataframe__": 1, "url": "x"}, {"__dataframe__": 2}, ["__dataframe__"], {"__dataframe__": None}]
)
def test_a_value_that_only_resembles_a_reference_stays_unchanged(value: object) -> None:
    assert xcom.decode(json.dumps(value)) == value


def test_columns_are_named_with_their_types() -> None:
    assert REFERENCE.columns == {"id": "long", "tags": "array<string>", "at": "struct<x:double>"}


def test_a_reference_reads_as_its_url_and_has_its_local_path() -> None:
    far = DataFrameReference(url="s3a://bucket/x", schema=SCHEMA, rows=0, bytes=0)

    assert (f"{REFERENCE}", REFERENCE.path) == ("file:///data/d/r/t/r1-try1-x", "/data/d/r/t/r1-try1-x")
    assert far.path == "s3a://bucket/x"


def test_a_value_that_is_no_reference_is_still_refused_with_its_place() -> None:
    with pytest.raises(XComError, match=r'return value\["a"\]\[1\] is of type object'):
        xcom.encode({"a": [REFERENCE, object()]}, 10_000)


def test_a_list_of_references_is_opened_one_by_one_as_they_are_looked_at_or_all_at_once() -> None:
    pytest.importorskip("pyspark")
    session: Any = Session()
    other = DataFrameReference(url="file:///b", schema=SCHEMA, rows=1, bytes=1)

    found = frames.opened(([REFERENCE, other], {"one": REFERENCE}, "text"), session)
    assert session.opened == [(REFERENCE.url,)]

    many = found[0]
    assert isinstance(many, DataFrames)
    assert many.union() == (REFERENCE.url, other.url)
    assert many[1] == (other.url,) == many[-1]
    assert list(many[:1]) == [(REFERENCE.url,)]
    assert session.opened.count((other.url,)) == 1
    assert found[2] == "text"


def test_a_union_of_different_columns_or_of_nothing_is_an_error() -> None:
    narrow = DataFrameReference(url="file:///b", schema={"type": "struct", "fields": SCHEMA["fields"][:1]}, rows=1, bytes=1)
    session: Any = Session()

    with pytest.raises(ValueError, match="file:///b has the columns"):
        DataFrames([REFERENCE, narrow], session).union()
    with pytest.raises(ValueError, match="the list is empty"):
        DataFrames([], session).union()
