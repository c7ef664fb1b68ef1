"""Loops: task groups whose tasks run again and again, until a condition holds or for a number of times."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline import secrets_masker
from paceline.authoring.arguments import Arguments
from paceline.authoring.expansion import Expansion, Values
from paceline.authoring.graph import Node, link
from paceline.authoring.operator import Operator
from paceline.exceptions import FailTask
from paceline.states import Branched

MOST_REASON_BYTES = 512
MOST_ITERATIONS = 1000


@dataclass(frozen=True, slots=True)
class LoopDecision:
    """A result of `until` of a loop: whether to `stop`, and a `reason`, which the log of the gate shows."""

    stop: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LoopContext:
    """`loop` in the context of a task in a loop. `index` is the number of the iteration, from 1 on."""

    index: int
    max_iterations: int
    _ti: Any
    _terminal: str

    @property
    def previous(self) -> Any:
        """The result of the last task of the previous iteration; None in the first one."""
        return None if self.index == 1 else self._ti.xcom_pull(task_ids=self._terminal, map_indexes=self.index - 2)

    @property
    def result(self) -> Any:
        """The result of the last task of this iteration, for `until`."""
        return self._ti.xcom_pull(task_ids=self._terminal, map_indexes=self.index - 1)


class Iterations(Expansion):
    """The expansion of a loop: an instance of each task for each iteration that there may be."""

    inside = (
        "is in the loop {!r}, where nothing can be mapped and no other loop can be; go through the values in a function, or run"
        " a separate DAG with TriggerDagRunOperator"
    )

    def __init__(self, most: int) -> None:
        self.inputs = ()
        self._refs = [{"literal": most}]

    def values(self, context: Mapping[str, Any], map_index: int) -> Values:
        return Values()


class LoopGate(Operator):
    """The last task of each iteration: it stops the loop, or lets the next iteration start. Its ID is the name of `until`."""

    branches: ClassVar[bool] = True

    def __init__(self, *, until: Callable[..., Any] | None, max_iterations: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.until, self.max_iterations = until, max_iterations

    def execute(self, context: Mapping[str, Any]) -> None:
        loop: LoopContext = context["loop"]
        is_last = loop.index >= self.max_iterations
        decision = LoopDecision(is_last) if self.until is None else _decision(self.until(**_arguments(self.until, context)))
        why = f": {secrets_masker.redact(decision.reason)}" if decision.reason else ""
        if is_last and not decision.stop:
            raise FailTask(f"the condition of the loop was still false after max_iterations={self.max_iterations}{why}")
        word = "stop" if decision.stop else "continue"
        self.log.info("Iteration %s of at most %s: %s%s", loop.index, self.max_iterations, word, why)
        if decision.stop:
            context["ti"].skip([Branched.LOOP_STOP])


def close(group: Any, *, until: Callable[..., Any] | None, max_iterations: int, checks: Arguments) -> None:
    """Add the gate after the one last task of the body, inside the `with` block of the group."""
    ids = {task.task_id for task in group.iter_tasks()}
    last = [task for task in group.iter_tasks() if not task.downstream_task_ids & ids]
    if len(last) != 1:
        names = ", ".join(sorted(task.task_id for task in last)) or "no task"
        raise checks.refuse(f"the body of a loop must end with one task, whose result is that of the iteration, not with {names}.")
    name = getattr(until, "__name__", "")
    gate = LoopGate(
        task_id=name if name.isidentifier() and name.isascii() else "loop_gate",
        until=until,
        max_iterations=max_iterations,
        doc_md=inspect.getdoc(until) if inspect.isroutine(until) else None,
    )
    link(last[0], gate)
    group.gate_task_id = gate.task_id


def gate_of(task: Node) -> str | None:
    """The gate of the loop that a task is in."""
    group: Any = task.task_group
    while group is not None and group.gate_task_id is None:
        group = group.parent_group
    return None if group is None else str(group.gate_task_id)


def check(max_iterations: object, until: object, checks: Arguments) -> None:
    """DagError if an argument of `.loop()` is wrong."""
    if type(max_iterations) is not int or not 1 <= max_iterations <= MOST_ITERATIONS:
        raise checks.refuse(f"max_iterations must be a whole number from 1 to {MOST_ITERATIONS:,}, not {max_iterations!r}.")
    if until is not None and (not callable(until) or inspect.iscoroutinefunction(until)):
        raise checks.refuse(f"until must be a function that is not async, not {until!r}.")


def _decision(given: object) -> LoopDecision:
    if isinstance(given, bool):
        return LoopDecision(given)
    if not isinstance(given, LoopDecision) or not isinstance(given.stop, bool):
        raise FailTask(f"until must return True, False or a LoopDecision, not {given!r}")
    if given.reason is not None and (not isinstance(given.reason, str) or len(given.reason.encode()) > MOST_REASON_BYTES):
        raise FailTask(f"the reason of a LoopDecision must be a text of at most {MOST_REASON_BYTES} bytes")
    return given


def _arguments(until: Callable[..., Any], context: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of the context that a function has parameters for."""
    parameters = inspect.signature(until).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return context
    return {name: context[name] for name in parameters if name in context}
