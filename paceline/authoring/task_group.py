"""Task groups: named groups of tasks, which edges join as one and which can be mapped as a whole; and loops, which are groups whose
tasks run again and again, until a condition holds or for a number of times.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, ParamSpec, Protocol, Self, TypedDict, Unpack, overload

from paceline import secrets_masker
from paceline.authoring import scope, source
from paceline.authoring.arguments import Arguments
from paceline.authoring.expansion import Entries, Expansion, MappedArgument, Product, Values, refuse_repeated, refuse_unnamed
from paceline.authoring.graph import Graph, Group, Node, link
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TriggerRule
from paceline.exceptions import DagError, FailTask
from paceline.states import Branched

if TYPE_CHECKING:

    class TaskGroupArguments(TypedDict, total=False):
        """The arguments of TaskGroup that `@task_group` takes."""

        group_id: str
        prefix_group_id: bool
        parent_group: Group | None
        dag: Graph[Any] | None
        default_args: Mapping[str, Any] | None
        tooltip: str | None
        ui_color: str
        ui_fgcolor: str
        add_suffix_on_collision: bool
        group_display_name: str
        doc_md: str | None

    class GroupDecorator(Protocol):
        """The result of `@task_group` with arguments."""

        def __call__(self, function: Callable[P, Any], /) -> GroupFunction[P]: ...


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


def close_loop(group: Any, *, until: Callable[..., Any] | None, max_iterations: int, checks: Arguments) -> None:
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


def check_loop(max_iterations: object, until: object, checks: Arguments) -> None:
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


P = ParamSpec("P")


_KEY = re.compile(r"[\w-]{1,200}")


class TaskGroup(Group):
    """A named group of tasks: tasks created in `with TaskGroup("load"):` get IDs such as `load.copy`.

    An edge to the group goes to its first tasks, an edge from it starts at its last ones. `prefix_group_id=False` keeps
    the IDs of its tasks as they are. `default_args` are for all of its tasks. `add_suffix_on_collision` adds `__1`, ...
    to an ID that is taken. `parent_group` and `dag` are by default those of the `with` block around it. `group_display_name`,
    `tooltip`, `doc_md`, `ui_color` and `ui_fgcolor` are for display. `expansion` is set by `expand`. DagError if an argument is
    wrong.
    """

    #: Of a loop: the task that completes each iteration.
    gate_task_id: str | None = None

    def __init__(
        self,
        group_id: str,
        *,
        prefix_group_id: bool = True,
        parent_group: Group | None = None,
        dag: Graph[Any] | None = None,
        default_args: Mapping[str, Any] | None = None,
        tooltip: str | None = "",
        ui_color: str = "CornflowerBlue",
        ui_fgcolor: str = "#000",
        add_suffix_on_collision: bool = False,
        group_display_name: str = "",
        doc_md: str | None = None,
        expansion: Expansion | None = None,
    ) -> None:
        self.at = source.here()
        owner = dag or (parent_group.dag if parent_group is not None else scope.current_dag())
        if owner is None:
            raise source.fault(f"Task group {group_id!r} is in no DAG; define it inside `with DAG(...)`.", at=self.at)
        self.dag: Graph[Any] = owner
        self.parent_group = parent_group if parent_group is not None else scope.current_group(owner)
        checks = Arguments(f"Task group {group_id!r} of DAG {owner.dag_id!r}", self.at)
        if not isinstance(group_id, str) or not _KEY.fullmatch(group_id):
            raise checks.refuse("group_id must have 1 to 200 characters: letters, digits, dashes and underscores.")
        self.prefix_group_id = checks.boolean("prefix_group_id", prefix_group_id)
        if add_suffix_on_collision:
            group_id = owner.unique_id(group_id, self.parent_group)
        self.label = group_id
        self.group_id = self.parent_group.child_id(group_id) if self.parent_group is not None else group_id
        inherited = self.parent_group.default_args if self.parent_group is not None else {}
        self.default_args: dict[str, Any] = inherited | checks.mapping("default_args", default_args or {})
        self.tooltip, self.doc_md = tooltip or "", doc_md
        self.ui_color, self.ui_fgcolor, self.group_display_name = ui_color, ui_fgcolor, group_display_name
        self.expansion = expansion
        outer = None if self.parent_group is None else self.parent_group.mapped_group
        if expansion is not None and outer is not None:
            raise checks.refuse(f"it {outer.expansion.inside.format(outer.group_id)}.")
        self.children: dict[str, Node | Group] = {}
        owner.add_group(self)

    def __enter__(self) -> Self:
        scope.enter_group(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scope.leave()
        if kind is None and self.expansion is not None:
            for task in self.iter_tasks():
                if task.trigger_rule == TriggerRule.ALWAYS:
                    raise task.argument_checks().refuse(
                        "a task of a mapped group cannot have trigger_rule='always', because it must wait for the expansion."
                    )
            for result in self.expansion.results():
                for upstream in result.leaves:
                    for root in self.roots:
                        link(upstream, root)

    def __repr__(self) -> str:
        return f"<TaskGroup {self.group_id}>"


class GroupFunction(Generic[P]):
    """A decorated function that creates a task group each time it is called in a DAG."""

    def __init__(self, function: Callable[P, Any], arguments: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
        if not inspect.isfunction(function):
            raise source.fault(f"@task_group decorates a function, not {function!r}; pass its arguments by name.")
        functools.update_wrapper(self, function)
        self.function = function
        self._arguments = dict(arguments)
        self._given = dict(given or {})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Create the group. Returns the return value of the function, or the group if that is None."""
        return self._make(None, args, {**self._given, **kwargs})

    def override(self, **arguments: Unpack[TaskGroupArguments]) -> GroupFunction[P]:
        """The same function, with other arguments of TaskGroup."""
        return GroupFunction(self.function, {**self._arguments, **arguments}, self._given)

    def partial(self, **given: Any) -> GroupFunction[...]:
        """The same function, with arguments that are the same for every instance of a mapped group."""
        self._check_names(given)
        return GroupFunction(self.function, self._arguments, {**self._given, **given})

    def expand(self, *unnamed: Any, **mapped: Any) -> Any:
        """One instance of the group for each value, or for each combination of several arguments."""
        refuse_unnamed(unnamed, self._parameters, self._refuse)
        self._check_names(mapped)
        product = Product(mapped, self._refuse)
        return self._make(product, (), {**self._given, **{name: MappedArgument(product, name) for name in mapped}})

    def expand_kwargs(self, kwargs: Any) -> Any:
        """One instance of the group for each dict of arguments."""
        entries = Entries(kwargs, self._refuse)
        names = entries.names()
        self._check_names(names)
        rest = {name: MappedArgument(entries, name) for name in self._parameters if name not in self._given}
        return self._make(entries, (), {**self._given, **rest})

    def loop(self, *, max_iterations: int, until: Callable[..., Any] | None = None) -> Any:
        """Run the tasks of the group again and again: until `until(loop=...)` returns True, or without it `max_iterations` times.

        Its tasks read `loop` of their context: `loop.index`, from 1 on, and `loop.previous`, the result of the last task of the
        previous iteration; `until` reads `loop.result`. It returns a bool or a LoopDecision, and must be true once in at most
        `max_iterations`, or the loop fails. Edges from the group start when the loop has ended. Returns the group.
        """
        checks = Arguments(f"Task group {self.function.__name__!r}", source.here())
        check_loop(max_iterations, until, checks)
        end = functools.partial(close_loop, until=until, max_iterations=max_iterations, checks=checks)
        return self._make(Iterations(max_iterations), (), self._given, end=end)

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    def _make(
        self,
        expansion: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        end: Callable[[Any], None] | None = None,
    ) -> Any:
        arguments = {"tooltip": inspect.getdoc(self.function) or "", "add_suffix_on_collision": True, **self._arguments}
        group_id = arguments.pop("group_id", None) or self.function.__name__
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
            group = TaskGroup(group_id, expansion=expansion, **arguments)
        except TypeError as error:
            raise self._refuse(f"{error}.") from None
        with group:
            returned = self.function(*args, **kwargs)
            if isinstance(returned, MappedArgument):
                raise self._refuse("it returns one of its own arguments, which differ by instance; return the result of a task.")
            if end is not None:
                end(group)
        return group if returned is None or end is not None else returned

    def _check_names(self, names: Any) -> None:
        """Reject arguments that are given twice, or are not in the signature of the function."""
        refuse_repeated(names, self._given, self._refuse)
        known = self._parameters
        if any(p.kind is p.VAR_KEYWORD for p in known.values()):
            return
        for name in names:
            if name not in known:
                raise self._refuse(f"the function has no argument {name!r}.")

    def _refuse(self, complaint: str) -> DagError:
        return source.fault(f"Task group {self.function.__name__!r}: {complaint}")


@overload
def task_group(group_id: Callable[P, Any], /) -> GroupFunction[P]: ...
@overload
def task_group(group_id: str | None = None, /, **arguments: Unpack[TaskGroupArguments]) -> GroupDecorator: ...
def task_group(group_id: Any = None, /, **arguments: Any) -> Any:
    """Decorate the function that defines a task group; each call creates a group.

    Takes the arguments of TaskGroup; group_id defaults to the name of the function, tooltip to its docstring.
    """
    if callable(group_id):
        return GroupFunction(group_id, {})
    if group_id is not None:
        arguments["group_id"] = group_id
    return lambda function: GroupFunction(function, arguments)
