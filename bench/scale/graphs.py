"""The DAGs of the model: their tasks by number, as in bench/shapes.py."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Graph:
    """A DAG by task number: the downstream tasks of each, the number of its upstream tasks, and its rank, which counts all below.

    A task uses the CPU for `seconds`, or waits for them if not `busy`. All but the first are `mapped` over what it returned.
    """

    below: Sequence[Sequence[int]]
    above: Sequence[int]
    weights: Sequence[int]
    seconds: float = 0.0
    busy: bool = True
    mapped: bool = False


def row(count: int, seconds: float = 0.0) -> Graph:
    """Tasks one after the other."""
    return _graph(count, ((number - 1, number) for number in range(1, count)), seconds)


def fan(count: int) -> Graph:
    """One, then many, then one."""
    edges = [(0, number) for number in range(1, count + 1)] + [(number, count + 1) for number in range(1, count + 1)]
    return _graph(count + 2, edges)


def spread(count: int) -> Graph:
    """One task, then many that are mapped over what it returned."""
    return replace(_graph(count + 1, ((0, number) for number in range(1, count + 1))), mapped=True)


def tree(count: int) -> Graph:
    """Each followed by two."""
    return _graph(count, (((number - 1) // 2, number) for number in range(1, count)))


def grid(levels: int, width: int) -> Graph:
    """Each level needs all of the one before."""
    edges = (
        ((level - 1) * width + above, level * width + number)
        for level in range(1, levels)
        for above in range(width)
        for number in range(width)
    )
    return _graph(levels * width, edges)


def _graph(count: int, edges: Iterable[tuple[int, int]], seconds: float = 0.0) -> Graph:
    below: list[list[int]] = [[] for _ in range(count)]
    above = [0] * count
    for upstream, downstream in edges:
        below[upstream].append(downstream)
        above[downstream] += 1
    # All tasks below each, as bits of a number. Edges lead to higher numbers.
    all_below = [0] * count
    for number in reversed(range(count)):
        for downstream in below[number]:
            all_below[number] |= all_below[downstream] | 1 << downstream
    return Graph(below, above, [1 + bits.bit_count() for bits in all_below], seconds)
