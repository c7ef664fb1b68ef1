"""Edges between tasks: `>>`, `<<`, `chain` and their like, for tasks, results of tasks, task groups, and lists of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from scheduler.authoring.source import fault
from scheduler.exceptions import DagCycleError

if TYPE_CHECKING:
    from scheduler.authoring.operator import Operator


class Linkable:
    """What may stand on a side of `>>`: an operator, the result of one, or a task group."""

    __slots__ = ()

    def roots(self) -> Sequence[Operator]:
        """The operators that an edge to this one goes to."""
        raise NotImplementedError

    def leaves(self) -> Sequence[Operator]:
        """The operators that an edge from this one comes from."""
        raise NotImplementedError

    def set_downstream(self, others: Any) -> None:
        """Make this task a direct upstream of `others` (a task, a result, a group, or a list of them)."""
        for other in flat(others):
            if isinstance(other, Label):
                other.set_upstream(self)
            else:
                _join(self, other)

    def set_upstream(self, others: Any) -> None:
        """Make `others` direct upstreams of this task."""
        for other in flat(others):
            if isinstance(other, Label):
                other.set_downstream(self)
            else:
                _join(other, self)

    def __rshift__(self, other: Any) -> Any:
        self.set_downstream(other)
        return other

    def __lshift__(self, other: Any) -> Any:
        self.set_upstream(other)
        return other

    def __rrshift__(self, other: Any) -> Linkable:
        self.set_upstream(other)
        return self

    def __rlshift__(self, other: Any) -> Linkable:
        self.set_downstream(other)
        return self


class Label(Linkable):
    """A note on the edges it stands in: `branch >> Label("no data") >> stop`."""

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

    def _link(self, before: Sequence[Linkable], after: Sequence[Linkable]) -> None:
        for one in before:
            for other in after:
                if isinstance(one, Label) or isinstance(other, Label):
                    raise fault(f"Label {self.label!r} stands beside another label; an edge takes one.")
                _join(one, other, self.label)


def chain(*steps: Any) -> None:
    """`chain(a, [b, c], [d, e], f)`: each step before the next; two lists of equal length are joined pair by pair."""
    for before, after in pairwise(steps):
        if isinstance(before, Linkable) or isinstance(after, Linkable):
            cross_downstream(before, after)
            continue
        left, right = flat(before), flat(after)
        if len(left) != len(right):
            raise fault(f"chain() joins neighboring lists pair by pair, but one has {len(left)}, the next {len(right)} tasks.")
        for one, other in zip(left, right, strict=True):
            one.set_downstream(other)


def chain_linear(*steps: Any) -> None:
    """`chain_linear(a, [b, c], [d, e, f])`: every task of a step before every task of the next one; empty steps do not count."""
    levels = [level for level in map(flat, steps) if level]
    if len(levels) < 2:
        raise fault("chain_linear() joins at least two steps that are not empty.")
    for before, after in pairwise(levels):
        cross_downstream(before, after)


def cross_downstream(from_tasks: Any, to_tasks: Any) -> None:
    """Every task of `from_tasks` before every task of `to_tasks`."""
    after = flat(to_tasks)
    for one in flat(from_tasks):
        one.set_downstream(after)


def link(upstream: Operator, downstream: Operator) -> None:
    """The edge itself; a task without a DAG joins the DAG of its neighbor."""
    if upstream is downstream:
        raise fault(f"Task {upstream.task_id!r} cannot come after itself.", kind=DagCycleError)
    dag = upstream.dag or downstream.dag
    if dag is None:
        raise fault(f"Tasks {upstream.task_id!r} and {downstream.task_id!r} are in no DAG; make them inside `with DAG(...)`.")
    for task in (upstream, downstream):
        if task.dag is None:
            dag.add_task(task)
        elif task.dag is not dag:
            raise fault(
                f"Task {upstream.task_id!r} of DAG {dag.dag_id!r} and task {downstream.task_id!r} of DAG "
                f"{task.dag.dag_id!r} cannot be joined; an edge stays within one DAG."
            )
    upstream.downstream_task_ids.add(downstream.task_id)
    downstream.upstream_task_ids.add(upstream.task_id)


def flat(value: Any) -> list[Linkable]:
    """What can be joined, out of lists of any depth."""
    if isinstance(value, Linkable):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return [one for item in value for one in flat(item)]
    raise fault(f"An edge joins tasks, results of tasks, groups, or lists of them, not {value!r} ({type(value).__name__}).")


def _join(before: Linkable, after: Linkable, label: str | None = None) -> None:
    downstream = after.roots()
    for one in before.leaves():
        for other in downstream:
            link(one, other)
            if label is not None and one.dag is not None:
                one.dag.edge_labels[one.task_id, other.task_id] = label
