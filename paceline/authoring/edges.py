"""Edges between tasks, results of tasks, task groups and lists of them: labels, `chain` and similar functions."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from paceline.authoring.graph import Linkable, flat, join
from paceline.authoring.source import fault


class Label(Linkable):
    """A note on an edge: `branch >> Label("no data") >> stop`."""

    def __init__(self, label: str) -> None:
        if not isinstance(label, str) or not label.strip():
            raise fault(f"Label() takes the text of the label, not {label!r}.")
        self.label = label
        self._before: list[Linkable] = []
        self._after: list[Linkable] = []

    def set_upstream(self, others: Any) -> None:
        new = flat(others)
        self._before += new
        self._link(new, self._after)

    def set_downstream(self, others: Any) -> None:
        new = flat(others)
        self._after += new
        self._link(self._before, new)

    def put_after(self, before: Linkable) -> None:
        self.set_upstream(before)

    def put_before(self, after: Linkable) -> None:
        self.set_downstream(after)

    def _link(self, before: Sequence[Linkable], after: Sequence[Linkable]) -> None:
        for upstream in before:
            for downstream in after:
                if isinstance(upstream, Label) or isinstance(downstream, Label):
                    raise fault(f"Label {self.label!r} is next to another label; an edge takes only one.")
                join(upstream, downstream, self.label)


def chain(*steps: Any) -> None:
    """`chain(a, [b, c], [d, e], f)`: each of the `steps` before the next.

    Neighboring lists are joined pair by pair and must have the same length, else DagError.
    """
    for before, after in pairwise(steps):
        if isinstance(before, Linkable) or isinstance(after, Linkable):
            cross_downstream(before, after)
            continue
        left, right = flat(before), flat(after)
        if len(left) != len(right):
            raise fault(f"chain() joins neighboring lists pair by pair, but one has {len(left)}, the next {len(right)} tasks.")
        for upstream, downstream in zip(left, right, strict=True):
            upstream.set_downstream(downstream)


def chain_linear(*steps: Any) -> None:
    """`chain_linear(a, [b, c], [d, e, f])`: every task of a step before every task of the next; empty steps are ignored."""
    levels = [level for level in map(flat, steps) if level]
    if len(levels) < 2:
        raise fault("chain_linear() needs at least two steps that are not empty.")
    for before, after in pairwise(levels):
        cross_downstream(before, after)


def cross_downstream(from_tasks: Any, to_tasks: Any) -> None:
    """Every task of `from_tasks` before every task of `to_tasks`."""
    after = flat(to_tasks)
    for upstream in flat(from_tasks):
        upstream.set_downstream(after)
