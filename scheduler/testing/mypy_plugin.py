"""A mypy plugin: checks the names of arguments in calls and expansions of @task functions.

Enable it with `plugins = ["scheduler.testing.mypy_plugin"]` in the settings of mypy.
"""

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT, ARG_STAR, ARG_STAR2
from mypy.plugin import MethodContext, MethodSigContext, Plugin
from mypy.types import AnyType, CallableType, FunctionLike, Instance, Parameters, Type, TypeOfAny, get_proper_type

from scheduler.authoring.context import KEYS

TASK_FUNCTION = "scheduler.operators.task_function.TaskFunction"
DECORATORS = ("scheduler.operators.decorators.", "scheduler.operators.decorator_types.")
#: Parameters that a worker fills: a call in a DAG file leaves them out.
INJECTED = KEYS | {"spark", "sc", "self", "context"}


class PacelinePlugin(Plugin):
    """Knows the parameters of the function inside a TaskFunction."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        if fullname == f"{TASK_FUNCTION}.__call__":
            return _of_call
        if fullname in {f"{TASK_FUNCTION}.expand", f"{TASK_FUNCTION}.partial"}:
            return _of_expansion
        return None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _of_decorator if fullname.startswith(DECORATORS) and fullname.endswith(".__call__") else None


def _of_decorator(context: MethodContext) -> Type:
    """The result of a decorator, with the parameters and the result of the function."""
    made = get_proper_type(context.default_return_type)
    function = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
    if not isinstance(made, Instance) or made.type.fullname != TASK_FUNCTION or not isinstance(function, CallableType):
        return context.default_return_type
    own = Parameters(function.arg_types, function.arg_kinds, function.arg_names)
    return made.copy_modified(args=[own, function.ret_type])


def _parameters(context: MethodSigContext) -> Parameters | None:
    kind = get_proper_type(context.type)
    found = get_proper_type(kind.args[0]) if isinstance(kind, Instance) and kind.args else None
    return found if isinstance(found, Parameters) else None


def _of_call(context: MethodSigContext) -> FunctionLike:
    """The parameters of the function; those that a worker fills are optional."""
    found = _parameters(context)
    if found is None:
        return context.default_signature
    each = list(zip(found.arg_names, found.arg_kinds, found.arg_types, strict=True))
    own = [one for one in each if one[0] not in INJECTED]
    filled = [(name, ARG_NAMED_OPT, kind) for name, _, kind in each if name in INJECTED]
    # A **kwargs comes last.
    last = [one for one in own if one[1] is ARG_STAR2]
    ordered = [*(one for one in own if one[1] is not ARG_STAR2), *filled, *last]
    names, kinds, types = ([one[place] for one in ordered] for place in range(3))
    return context.default_signature.copy_modified(arg_names=names, arg_kinds=kinds, arg_types=types)


def _of_expansion(context: MethodSigContext) -> FunctionLike:
    """The names of the parameters of the function, each optional, for lists and results of any type."""
    found = _parameters(context)
    if found is None or ARG_STAR2 in found.arg_kinds:
        return context.default_signature
    names = [name for name, kind in zip(found.arg_names, found.arg_kinds, strict=True) if kind is not ARG_STAR]
    return context.default_signature.copy_modified(
        arg_names=names, arg_kinds=[ARG_NAMED_OPT] * len(names), arg_types=[AnyType(TypeOfAny.explicit)] * len(names)
    )


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls with its version."""
    return PacelinePlugin
