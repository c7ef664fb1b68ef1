"""Return values as JSON."""

import math
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pendulum
import pytest
from pydantic import BaseModel

from paceline.authoring import xcom
from paceline.authoring.object_storage import ObjectStoragePath
from paceline.exceptions import XComError

LIMIT = 1000
CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1.5, "ä\n", [], {"a": [1, {"b": None}]}, 10**40,
        # They look like stored values of other types.
        {"__object_storage_path__": 1}, {"__type__": "set", "value": 1}, {"__type__": "other", "value": 1},
        {"__type__": ["date"], "value": "x"},
    ],
)  # fmt: skip
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
    with pytest.raises(XComError, match=r'return value\["storage_options"\]\["at"\] is of type object'):
        xcom.encode(ObjectStoragePath("s3://b/k", at=object()), LIMIT)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rows": [0, 1, 2, {(1, object())}]}, r'^return value\["rows"\]\[3\]\["value"\]\[0\]\[1\] is of type object'),
        (object(), "is of type object, which cannot be stored as JSON; return None"),
        ((x for x in "ab"), "is of type generator, .*return list"),
        (["a\0"], r"return value\[0\] contains a NUL"),
        ({"a\0": 1}, "contains a NUL"),
        ("\ud800", "half a surrogate pair"),
        (CIRCLE, "contains itself"),
        pytest.param(10**5000, "cannot be written as JSON", id="too long to write"),
        ("x" * 2000, r"return value has 2,002 bytes of JSON; 1,000 are allowed .* return its path"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(XComError, match=words):
        xcom.encode(value, LIMIT)


PARIS = ZoneInfo("Europe/Paris")


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 3, 29, 12, 0, 0, 5, tzinfo=UTC),
        datetime(2026, 1, 1),
        datetime(2026, 7, 1, tzinfo=PARIS),
        date(2026, 1, 1),
        time(12, 30),
        timedelta(days=1, microseconds=5),
        Decimal("1.10"),
        {1, 2},
        frozenset({"a", "b"}),
        {(1, "a"), (2, None)},
        Path("/data/x.csv"),
        b"\x00\xff",
        uuid.UUID(int=7),
        float("inf"),
        {"deep": [{"of": Decimal(3)}, {Path("a")}]},
    ],
)
def test_values_that_json_does_not_have_come_back_as_they_were(value: Any) -> None:
    back = xcom.decode(xcom.encode(value, LIMIT))

    assert (back, type(back)) == (value, type(value))


def test_a_moment_keeps_its_time_zone() -> None:
    back = xcom.decode(xcom.encode(pendulum.datetime(2026, 7, 1, tz="Europe/Paris"), LIMIT))

    assert (back, back.tzinfo) == (datetime(2026, 7, 1, tzinfo=PARIS), PARIS)


@dataclass
class Row:
    name: str
    at: datetime


class Model(BaseModel):
    name: str
    day: date


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Row("a", datetime(2026, 1, 1, tzinfo=UTC)), {"name": "a", "at": datetime(2026, 1, 1, tzinfo=UTC)}),
        (Model(name="a", day=date(2026, 1, 1)), {"name": "a", "day": date(2026, 1, 1)}),
        ([Color.RED], ["red"]),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(5), 5),
        (np.datetime64("2026-01-01T00:00:00"), datetime(2026, 1, 1)),
        (pd.Timestamp("2026-01-01T00:00:00Z"), datetime(2026, 1, 1, tzinfo=UTC)),
        ([pd.NaT, pd.NA], [None, None]),
        (pd.Series([1, 2]), [1, 2]),
        ({1: "a", date(2026, 1, 1): "b", None: "c"}, {"1": "a", "2026-01-01": "b", "None": "c"}),
        ({"a": 1}.keys(), {"a"}),
        (range(3), [0, 1, 2]),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
    ],
)
def test_other_values_come_back_as_what_json_has(value: Any, expected: Any) -> None:
    assert xcom.decode(xcom.encode(value, LIMIT)) == expected


def test_nan_is_a_value_too() -> None:
    assert math.isnan(xcom.decode(xcom.encode({"a": float("nan")}, LIMIT))["a"])
    assert math.isnan(xcom.decode(xcom.encode(np.float64("nan"), LIMIT)))


def test_the_limit_counts_bytes_and_not_characters() -> None:
    assert xcom.encode("a" * 998, LIMIT)
    with pytest.raises(XComError, match="1,202 bytes"):
        xcom.encode("ä" * 600, LIMIT)


def test_several_outputs() -> None:
    assert xcom.outputs({"a": 1}, multiple_outputs=True) == {"a": 1, "return_value": {"a": 1}}
    assert xcom.outputs({"a": 1}, multiple_outputs=False) == {"return_value": {"a": 1}}
    assert xcom.outputs(None, multiple_outputs=True) == {"return_value": None}
    with pytest.raises(XComError, match="a dict with str keys, not list"):
        xcom.outputs([1], multiple_outputs=True)
