"""The effective priority of every task of a DAG: its own weight, plus the weights of its downstream or upstream tasks."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from graphlib import TopologicalSorter
from typing import Any

from paceline.authoring.graph import Graph

DOWNSTREAM, UPSTREAM, ABSOLUTE = RULES = ("downstream", "upstream", "absolute")
_LARGEST = 2**31 - 1


class WeightRule(StrEnum):
    """The weight rules of tasks."""

    DOWNSTREAM = DOWNSTREAM
    UPSTREAM = UPSTREAM
    ABSOLUTE = ABSOLUTE


def effective(dag: Graph[Any]) -> dict[str, int]:
    """The effective priority of every task of `dag`, by task_id."""
    tasks = dag.task_dict
    return effective_weights(
        {task_id: task.priority_weight for task_id, task in tasks.items()},
        rules={task_id: task.weight_rule for task_id, task in tasks.items()},
        downstream={task_id: task.downstream_task_ids for task_id, task in tasks.items()},
    )


def effective_weights(
    own: Mapping[str, int], *, rules: Mapping[str, str], downstream: Mapping[str, Iterable[str]]
) -> dict[str, int]:
    """The effective priority by task: its own weight (rule absolute), plus all transitive downstream or upstream weights.

    It is limited to 32 bits. `downstream` holds the direct edges of a DAG without cycles; a task may be missing in it.
    """
    below = {task: list(downstream.get(task, ())) for task in own}
    above: dict[str, list[str]] = {task: [] for task in own}
    for task, children in below.items():
        for child in children:
            above[child].append(task)
    order = list(TopologicalSorter(above).static_order())
    number = {task: bit for bit, task in enumerate(order)}
    total = _Sum(own, number)
    result = dict(own)
    for rule, edges, walk in ((DOWNSTREAM, below, list(reversed(order))), (UPSTREAM, above, order)):
        if any(rules[task] == rule for task in own):
            closures = _closures(edges, walk, number)
            result |= {task: total(closures[task]) for task in own if rules[task] == rule}
    return {task: max(-_LARGEST, min(_LARGEST, weight)) for task, weight in result.items()}


def _closures(edges: Mapping[str, list[str]], walk: Iterable[str], number: Mapping[str, int]) -> dict[str, int]:
    """A bit set for each task: itself and every task that its edges reach."""
    closures: dict[str, int] = {}
    for task in walk:
        reached = 1 << number[task]
        for neighbor in edges[task]:
            reached |= closures[neighbor]
        closures[task] = reached
    return closures


class _Sum:
    """Sums the weights of a bit set of tasks, one bit of the weights at a time: about 32 popcounts for any number of tasks."""

    def __init__(self, own: Mapping[str, int], number: Mapping[str, int]) -> None:
        self._least = min(0, *own.values()) if own else 0
        self._masks: dict[int, int] = {}
        for task, weight in own.items():
            rest = weight - self._least
            while rest:
                low = rest & -rest
                self._masks[low] = self._masks.get(low, 0) | 1 << number[task]
                rest ^= low

    def __call__(self, tasks: int) -> int:
        lifted = sum(value * (tasks & mask).bit_count() for value, mask in self._masks.items())
        return lifted + self._least * tasks.bit_count()
