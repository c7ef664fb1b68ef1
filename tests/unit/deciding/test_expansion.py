"""The number of instances of a mapped task, from lengths alone."""

from typing import Any

import pytest

from scheduler.deciding import expansion

LENGTHS = {("a", "return_value"): 3, ("b", "return_value"): 5, ("b", "rows"): 2}


def of(task_id: str, key: str = "return_value") -> dict[str, Any]:
    return {"task": task_id, "key": key}


@pytest.mark.parametrize(
    ("kind", "inputs", "count"),
    [
        ("product", [{"literal": 4}], 4),
        ("product", [{"literal": 4}, of("a")], 12),
        ("product", [{"literal": 4}, {"literal": 0}], 0),
        ("list", [of("b", "rows")], 2),
        ("list", [{"zip": [of("a"), of("b")]}], 3),
        ("list", [{"zip": [of("a"), of("b")], "longest": True}], 5),
        ("product", [{"concat": [of("a"), of("b"), {"literal": 1}]}], 9),
        ("product", [{"concat": [{"zip": [of("a"), {"literal": 1}]}, of("b")]}, {"literal": 2}], 12),
        ("product", [of("never")], None),
        ("product", [{"literal": 2}, of("a", "never")], None),
        ("list", [{"zip": [of("a"), of("never")]}], None),
    ],
)
def test_lengths_make_the_number_of_instances(kind: str, inputs: list[dict[str, Any]], count: int | None) -> None:
    assert expansion.count({"kind": kind, "inputs": inputs}, LENGTHS) == count


def test_its_sources_are_found_at_any_depth() -> None:
    spec = {"kind": "product", "inputs": [{"zip": [of("a"), {"concat": [of("b", "rows"), {"literal": 1}]}]}, of("c")]}

    assert expansion.reads(spec) == {("a", "return_value"), ("b", "rows"), ("c", "return_value")}
    assert expansion.sources(spec) == {"a", "b", "c"}
