"""Edges between tasks: `>>`, `<<`, `chain` and `cross_downstream`, for tasks, results of tasks, and lists of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from scheduler.authoring.source import fault
from scheduler.exceptions import DagCycleError

if TYPE_CHECKING:
    from scheduler.authoring.operator import Operator


class Linkable:
    """What may stand on a side of `>>`: an operator or the result of one."""

    __slots__ = ()

    def linked_operator(self) -> Operator:
        """The operator whose edges are meant."""
        raise NotImplementedError

    def set_downstream(self, others: Any) -> None:
        """Make this task a direct upstream of `others` (a task, a result, or a list of them)."""
        for other in _operators(others):
            link(self.linked_operator(), other)

    def set_upstream(self, others: Any) -> None:
        """Make `others` direct upstreams of this task."""
        for other in _operators(others):
            link(other, self.linked_operator())

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


def chain(*steps: Any) -> None:
    """`chain(a, [b, c], [d, e], f)`: each step before the next; two lists of equal length are joined pair by pair."""
    for before, after in pairwise(steps):
        if isinstance(before, Linkable) or isinstance(after, Linkable):
            cross_downstream(before, after)
            continue
        left, right = _operators(before), _operators(after)
        if len(left) != len(right):
            raise fault(f"chain() joins neighbouring lists pair by pair, but one has {len(left)}, the next {len(right)} tasks.")
        for one, other in zip(left, right, strict=True):
            link(one, other)


def cross_downstream(from_tasks: Any, to_tasks: Any) -> None:
    """Every task of `from_tasks` before every task of `to_tasks`."""
    after = _operators(to_tasks)
    for one in _operators(from_tasks):
        for other in after:
            link(one, other)


def link(upstream: Operator, downstream: Operator) -> None:
    """The edge itself; a task without a DAG joins the DAG of its neighbour."""
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


def _operators(value: Any) -> Sequence[Operator]:
    if isinstance(value, Linkable):
        return [value.linked_operator()]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return [operator for item in value for operator in _operators(item)]
    raise fault(f"An edge joins tasks, results of tasks, or lists of them, not {value!r} ({type(value).__name__}).")
