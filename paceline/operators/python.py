"""Tasks that call a Python function, whose parameters with the name of a context variable receive its value."""

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from paceline.authoring import context as task_context
from paceline.authoring.arguments import ACCEPTED
from paceline.authoring.asset import Metadata
from paceline.authoring.context import OLD_DATES
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import XComError

if TYPE_CHECKING:
    from paceline.authoring.task_instance import Context


_POSITIONAL = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class PythonTaskArguments(TaskArguments, total=False):
    """The arguments of tasks that call a function, except the function and its own arguments."""

    templates_dict: Mapping[str, Any] | None
    templates_exts: Sequence[str] | None
    show_return_value_in_logs: bool


class PythonArguments(PythonTaskArguments, total=False):
    """The arguments of PythonOperator except its function, for operators that pass them on."""

    op_args: Sequence[Any] | XComArg | None
    op_kwargs: Mapping[str, Any] | XComArg | None


class PythonOperator(Operator):
    """Calls `python_callable` with the arguments `op_args` and `op_kwargs`; its return value is the result of the task.

    Parameters of the function with the name of a context variable, such as `ds` or `ti`, receive its value; with **kwargs
    it receives all. `templates_dict` is a dict of templates, and `templates_exts` the extensions of template files.
    Set `show_return_value_in_logs` to False to keep the result out of the log. DagError if the arguments do not fit the function.
    """

    template_fields: Sequence[str] = ("templates_dict", "op_args", "op_kwargs")
    #: The context variables for parameters of the same name.
    injected: frozenset[str] = task_context.KEYS
    #: The parameters that an author never passes: positional arguments go to the others.
    reserved: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] | XComArg | None = None,
        op_kwargs: Mapping[str, Any] | XComArg | None = None,
        templates_dict: Mapping[str, Any] | None = None,
        templates_exts: Sequence[str] | None = None,
        show_return_value_in_logs: bool = True,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.op_args: Any = () if op_args is None else op_args
        self.op_kwargs: Any = {} if op_kwargs is None else op_kwargs
        self.templates_dict: Any = templates_dict
        self.show_return_value_in_logs = show_return_value_in_logs
        if templates_exts:
            self.template_ext = tuple(templates_exts)
        self._check_call()

    def execute(self, context: "Context") -> object:
        return self.call(context)

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.python_callable)

    def call(self, context: Mapping[str, Any]) -> Any:
        """Call the function with its arguments and the context variables that it has parameters for."""
        args, kwargs = self.arguments(context)
        result = self.python_callable(*args, **kwargs)
        if inspect.iscoroutine(result):
            return asyncio.run(result)
        return _drained(result, context) if inspect.isgeneratorfunction(self.python_callable) else result

    def arguments(self, context: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and named arguments of the call."""
        offered = {**context, "templates_dict": self.templates_dict}
        parameters = _parameters(self.python_callable)
        args = self._placed(parameters, offered)
        positional = [p.name for p in parameters if p.kind in _POSITIONAL][: len(args)]
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            filled = {name: value for name, value in offered.items() if name not in positional}
        else:
            by_name = {p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
            filled = {name: offered[name] for name in offered.keys() & by_name if name not in positional}
        return args, filled | dict(self.op_kwargs)

    def _placed(self, parameters: list[inspect.Parameter], offered: Mapping[str, Any]) -> list[Any]:
        """The positional arguments, with the reserved ones inserted at their positions."""
        given, placed = list(self.op_args), list[Any]()
        for p in parameters:
            if p.kind not in _POSITIONAL or not (given or p.name in self.reserved):
                break
            placed.append(offered.get(p.name) if p.name in self.reserved else given.pop(0))
        return [*placed, *given]

    def _check_call(self) -> None:
        checks = self.argument_checks()
        function = self.python_callable
        if not callable(function):
            raise checks.refuse(f"python_callable must be a function, not {function!r}.")
        if inspect.isasyncgenfunction(function):
            raise checks.refuse("an async function cannot yield; return a list.")
        if not isinstance(self.op_args, Sequence | XComArg) or isinstance(self.op_args, bytes):
            raise checks.refuse(f"op_args must be a list, not {self.op_args!r}.")
        if not isinstance(self.op_kwargs, Mapping | XComArg | str):
            raise checks.refuse(f"op_kwargs must be a dict, not {self.op_kwargs!r}.")
        if isinstance(self.op_args, list | tuple) and isinstance(self.op_kwargs, Mapping):
            self._check_binding(self.op_kwargs)

    def _check_binding(self, kwargs: Mapping[str, Any]) -> None:
        try:
            signature = inspect.signature(self.python_callable)
        except ValueError:
            return  # a function in C may have no signature
        placed = self._placed(list(signature.parameters.values()), {})
        # The worker passes these; with a default, the others can be checked without them.
        injected = self.injected.union(OLD_DATES) if ACCEPTED else self.injected
        relaxed = [
            inspect.Parameter(p.name, p.KEYWORD_ONLY, default=None)
            if p.name in injected and p.kind is p.KEYWORD_ONLY
            else p.replace(default=None)
            if p.name in injected and p.kind is p.POSITIONAL_OR_KEYWORD
            else p
            for p in signature.parameters.values()
        ]
        try:
            inspect.Signature(_movable(relaxed, len(placed))).bind(*placed, **kwargs)
        except TypeError as error:
            name = getattr(self.python_callable, "__name__", "python_callable")
            raise self.argument_checks().refuse(f"{name}{signature} cannot be called with these arguments: {error}.") from None


class BaseAsyncOperator(Operator):
    """Base class of operators that are coroutines. Subclasses implement `aexecute`; the task runs it to its end."""

    async def aexecute(self, context: "Context") -> object:
        """Do the work of one try; the return value becomes the XCom `return_value`."""
        raise NotImplementedError(f"{type(self).__name__} has no aexecute().")

    def execute(self, context: "Context") -> object:
        return asyncio.run(self.aexecute(context))


def _drained(generator: Generator[Any, Any, Any], context: Mapping[str, Any]) -> Any:
    """The return value of a generator. The Metadata that it yields become extras of asset events."""
    while True:
        try:
            yielded = next(generator)
        except StopIteration as ended:
            return ended.value
        if not isinstance(yielded, Metadata):
            raise XComError(f"A task can yield only Metadata, not {yielded!r}; return a list instead.")
        events = context["outlet_events"]
        if yielded.alias is not None:
            events[yielded.alias].add(yielded.asset, extra=yielded.extra)
        else:
            events[yielded.asset].add(yielded.extra)


def returns_mapping(function: Callable[..., Any]) -> bool:
    """Whether the return annotation of `function` is a mapping, whose entries become separate XComs."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception:
        return False  # annotations can use names that exist only for a type checker
    kind = typing.get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, Mapping)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return _signed(function)
    except TypeError:  # the function is not hashable
        return _signed.__wrapped__(function)


@functools.lru_cache(maxsize=512)
def _signed(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def _movable(parameters: list[inspect.Parameter], given: int) -> list[inspect.Parameter]:
    """The parameters, with those after the positional arguments as keyword-only, so that defaults can be in any order."""
    fixed, moved, last = [], [], []
    for place, p in enumerate(parameters):
        if p.kind is p.VAR_KEYWORD:
            last.append(p)
        elif p.kind is p.POSITIONAL_OR_KEYWORD and place >= given:
            moved.append(p.replace(kind=p.KEYWORD_ONLY))
        elif p.kind is p.KEYWORD_ONLY:
            moved.append(p)
        else:
            fixed.append(p.replace(default=p.empty) if place < given and p.kind in _POSITIONAL else p)
    return [*fixed, *moved, *last]


class EmptyOperator(Operator):
    """Succeeds without doing anything. A worker does not need its DAG file."""

    worker_runtime: ClassVar[str] = "empty"

    def execute(self, context: Mapping[str, Any]) -> None:
        return None
