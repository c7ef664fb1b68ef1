"""How many instances a mapped task becomes: pure, from the lengths of what its upstream tasks returned.

SerializedTask.expand is {"kind": "product" | "list", "inputs": [ref, ...]}; a ref is {"literal": length},
{"task": task_id, "key": key}, {"zip": [ref, ...], "longest": bool} or {"concat": [ref, ...]}. A product has an instance for
each combination, a list (expand_kwargs) one for each entry.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

#: Lengths by task_id and XCom key; one that is missing was never pushed.
Lengths = Mapping[tuple[str, str], int]


def reads(expand: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The (task_id, XCom key) pairs whose lengths decide."""
    return {(ref["task"], ref["key"]) for ref in _leaves(expand["inputs"]) if "task" in ref}


def sources(expand: Mapping[str, Any]) -> set[str]:
    """The tasks that must have ended before the number is known."""
    return {task_id for task_id, _ in reads(expand)}


def count(expand: Mapping[str, Any], lengths: Lengths) -> int | None:
    """The number of instances; None if a value it needs was never pushed."""
    found = [_length(ref, lengths) for ref in expand["inputs"]]
    known = [length for length in found if length is not None]
    return math.prod(known) if len(known) == len(found) else None


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
