"""Computes the number of instances of a mapped task from the lengths of the values that its upstream tasks returned. Pure.

SerializedTask.expand is {"kind": "product" | "list", "inputs": [ref, ...]}. A ref is {"literal": length},
{"task": task_id, "key": key}, {"zip": [ref, ...], "longest": bool} or {"concat": [ref, ...]}. A product has an instance for
each combination, a list (expand_kwargs) one for each entry.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

#: Lengths by task_id and XCom key. A missing XCom was never pushed.
Lengths = Mapping[tuple[str, str], int]


def reads(expand: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return the (task_id, XCom key) pairs whose lengths determine the number of instances."""
    return {(ref["task"], ref["key"]) for ref in _leaves(expand["inputs"]) if "task" in ref}


def sources(expand: Mapping[str, Any]) -> set[str]:
    """Return the tasks that must end before the number of instances is known."""
    return {task_id for task_id, _ in reads(expand)}


def count(expand: Mapping[str, Any], lengths: Lengths) -> int | None:
    """Return the number of instances, or None if a required value was never pushed."""
    all_lengths = [_length(ref, lengths) for ref in expand["inputs"]]
    known = [length for length in all_lengths if length is not None]
    return math.prod(known) if len(known) == len(all_lengths) else None


def size(expand: Mapping[str, Any], lengths: Lengths, most: int) -> int | str:
    """Return the number of instances, or why the task cannot be expanded. `most` is the maximum number."""
    number = count(expand, lengths)
    if number is None:
        return f"{', '.join(sorted(sources(expand)))} returned no list or dict to map over"
    return number if number <= most else f"it would have {number} instances; core.max_map_length allows {most}"


def _length(ref: Mapping[str, Any], lengths: Lengths) -> int | None:
    if "literal" in ref:
        return int(ref["literal"])
    if "task" in ref:
        return lengths.get((ref["task"], ref["key"]))
    parts = [_length(part, lengths) for part in ref.get("zip") or ref["concat"]]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if "concat" in ref:
        return sum(known)
    return max(known) if ref.get("longest") else min(known)


def _leaves(refs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for ref in refs:
        inner = ref.get("zip") or ref.get("concat")
        if inner:
            yield from _leaves(inner)
        else:
            yield ref
