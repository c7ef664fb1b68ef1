"""The base of `@task.<name>` decorators that provider packages define, on Paceline's decorated functions."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any

from paceline.authoring.operator import Operator
from paceline.decorators.task_decorator import TaskDecorator, TaskFunction
from paceline.operators.python import PythonOperator

__all__ = [
    "SET_DURING_EXECUTION", "DecoratedOperator", "TaskDecorator", "context_merge", "determine_kwargs", "task_decorator_factory",
]  # fmt: skip


class _SetDuringExecution:
    """The value of a field that the task sets itself."""

    def __repr__(self) -> str:
        return "<set during execution>"


SET_DURING_EXECUTION = _SetDuringExecution()


class DecoratedOperator(PythonOperator):
    """An operator that takes some of its fields from the return value of a function. Subclasses implement `execute`."""

    template_fields: Sequence[str] = ("op_args", "op_kwargs")
    template_fields_renderers = {"op_args": "py", "op_kwargs": "py"}
    #: The decorator, for people.
    custom_operator_name: str = ""


def task_decorator_factory(
    python_callable: Callable[..., Any] | None = None, *, decorated_operator_class: type[Operator], **arguments: Any
) -> Any:
    """The decorator for functions that become tasks of this class; with a function, the decorated function."""
    if python_callable is None:
        return functools.partial(TaskFunction, kind=decorated_operator_class, arguments=arguments)
    return TaskFunction(python_callable, decorated_operator_class, arguments)


def determine_kwargs(func: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `kwargs` that the function takes beside the positional arguments: all if it has **kwargs."""
    parameters = list(inspect.signature(func).parameters.values())
    others = {p.name for p in parameters[len(args) :] if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        taken = {p.name for p in parameters[: len(args)]}
        return {name: value for name, value in kwargs.items() if name not in taken}
    return {name: value for name, value in kwargs.items() if name in others}


def context_merge(context: MutableMapping[str, Any], *args: Any, **kwargs: Any) -> None:
    context.update(*args, **kwargs)
