"""A mypy plugin: checks the arguments of calls and expansions of @task functions, and the types of results among them.

It also checks the arguments of `partial` and `expand` of operators and of @task_group functions.

Enable it with `plugins = ["paceline.testing.mypy_plugin"]` in the settings of mypy.
"""

from collections.abc import Callable
from typing import TypeGuard

from mypy.errorcodes import ARG_TYPE
from mypy.messages import format_type
from mypy.nodes import ARG_NAMED, ARG_NAMED_OPT, ARG_OPT, ARG_POS, ARG_STAR, ARG_STAR2
from mypy.plugin import MethodContext, MethodSigContext, Plugin
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    NoneType,
    Parameters,
    ProperType,
    Type,
    TypeOfAny,
    UnionType,
    get_proper_type,
)

from paceline.authoring.context import KEYS

TASK_FUNCTION = "paceline.decorators.task_decorator.TaskFunction"
OPERATOR_PARTIAL = "paceline.authoring.operator.OperatorPartial"
GROUP_FUNCTION = "paceline.authoring.task_group.GroupFunction"
RESULT = "paceline.authoring.xcom_arg.XComArg"
EXPANDS = {f"{kind}.expand" for kind in (TASK_FUNCTION, GROUP_FUNCTION, OPERATOR_PARTIAL)}
PARTIALS = {f"{kind}.partial" for kind in (TASK_FUNCTION, GROUP_FUNCTION)}
DECORATORS = "paceline.decorators.task_decorator."
#: Parameters that a worker fills: a call in a DAG file leaves them out.
INJECTED = KEYS | {"spark", "sc", "self", "context"}
#: The classes of values that JSON gives back as they were. Others change: a tuple is a list, and a DataFrame a reference.
JSON = {f"builtins.{name}" for name in ("str", "int", "float", "bool", "list", "dict")}
ANY = AnyType(TypeOfAny.explicit)
#: The kind of a parameter once it is optional.
OPTIONAL = {ARG_POS: ARG_OPT, ARG_NAMED: ARG_NAMED_OPT}


class PacelinePlugin(Plugin):
    """Gives mypy the parameters of the function inside a TaskFunction."""

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        if fullname == f"{TASK_FUNCTION}.__call__":
            return _of_call
        if fullname in {*EXPANDS, *PARTIALS}:
            return _of_expansion
        # The name has the class of the operator.
        return _of_partial if fullname.endswith(".partial") else None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        if fullname == f"{TASK_FUNCTION}.__call__":
            return _check_results
        if fullname in PARTIALS:
            return _check_values
        if fullname in EXPANDS:
            return _check_entries
        return _of_decorator if fullname.startswith(DECORATORS) and fullname.endswith(".__call__") else None


def _of_decorator(context: MethodContext) -> Type:
    """The result of a decorator, with the parameters and the result of the function."""
    returned = get_proper_type(context.default_return_type)
    function = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
    if not isinstance(returned, Instance) or returned.type.fullname != TASK_FUNCTION or not isinstance(function, CallableType):
        return context.default_return_type
    own = Parameters(function.arg_types, function.arg_kinds, function.arg_names)
    return returned.copy_modified(args=[own, _result(function)])


def _result(function: CallableType) -> Type:
    """The type of the value that a function returns; of a coroutine that at its end."""
    returned = get_proper_type(function.ret_type)
    is_coroutine = isinstance(returned, Instance) and returned.type.fullname == "typing.Coroutine"
    return returned.args[-1] if isinstance(returned, Instance) and is_coroutine else returned


def _parameters(context: MethodSigContext | MethodContext) -> Parameters | None:
    """The parameters of the decorated function, or of the operator of a `partial`; None if they are not known."""
    kind = get_proper_type(context.type)
    if not isinstance(kind, Instance) or not kind.args:
        return None
    own = get_proper_type(kind.args[0])
    return _of_operator(own) if kind.type.fullname == OPERATOR_PARTIAL else own if isinstance(own, Parameters) else None


def _of_operator(kind: ProperType) -> Parameters | None:
    """The parameters of an operator with the names in its **kwargs."""
    method = kind.type.get_method("__init__") if isinstance(kind, Instance) else None
    signature = get_proper_type(method.type) if method is not None else None
    if not isinstance(signature, CallableType):
        return None
    unpacked = signature.with_unpacked_kwargs()
    return Parameters(unpacked.arg_types[1:], unpacked.arg_kinds[1:], unpacked.arg_names[1:])


def _of_partial(context: MethodSigContext) -> FunctionLike:
    """The arguments of an operator, each optional."""
    signature = context.default_signature
    partial = get_proper_type(signature.ret_type) if isinstance(signature, CallableType) else None
    if not isinstance(partial, Instance) or partial.type.fullname != OPERATOR_PARTIAL:
        return signature
    parameters = _of_operator(get_proper_type(partial.args[0]))
    if parameters is None or ARG_STAR2 in parameters.arg_kinds:
        return signature
    kinds = [ARG_NAMED_OPT] * len(parameters.arg_names)
    return signature.copy_modified(arg_names=parameters.arg_names, arg_kinds=kinds, arg_types=parameters.arg_types)


def _of_call(context: MethodSigContext) -> FunctionLike:
    """The parameters of the function; those that a worker fills are optional."""
    parameters = _parameters(context)
    if parameters is None:
        return context.default_signature
    names, kinds = parameters.arg_names, parameters.arg_kinds
    kinds = [OPTIONAL.get(kind, kind) if name in INJECTED else kind for name, kind in zip(names, kinds, strict=True)]
    return context.default_signature.copy_modified(arg_names=names, arg_kinds=kinds, arg_types=parameters.arg_types)


def _of_expansion(context: MethodSigContext) -> FunctionLike:
    """The names of the parameters of the function, each optional, for lists and results of any type."""
    parameters = _parameters(context)
    if parameters is None or ARG_STAR2 in parameters.arg_kinds:
        return context.default_signature
    names = [name for name, kind in zip(parameters.arg_names, parameters.arg_kinds, strict=True) if kind is not ARG_STAR]
    # With Any, mypy would not infer the type of the entries of a list.
    anything = context.api.named_generic_type("builtins.object", [])
    return context.default_signature.copy_modified(
        arg_names=names, arg_kinds=[ARG_NAMED_OPT] * len(names), arg_types=[anything] * len(names)
    )


def _check_results(context: MethodContext) -> Type:
    """Report each result in a call that does not fit its parameter. mypy itself checks the other arguments."""
    return _check(context, lambda given: _value(given) if _is_result(given) else ANY)


def _check_values(context: MethodContext) -> Type:
    """Report each argument of `partial` that does not fit its parameter. All parameters of a group are optional after it."""
    returned, group, parameters = _check(context, _value), get_proper_type(context.type), _parameters(context)
    if parameters is None or not isinstance(group, Instance) or group.type.fullname != GROUP_FUNCTION:
        return returned
    kinds = [OPTIONAL.get(kind, kind) for kind in parameters.arg_kinds]
    return group.copy_modified(args=[Parameters(parameters.arg_types, kinds, parameters.arg_names)])


def _check_entries(context: MethodContext) -> Type:
    """Report each list in `expand` whose entries do not fit their parameter."""
    return _check(context, lambda given: _entry(_value(given)))


def _check(context: MethodContext, value_of: Callable[[ProperType], ProperType]) -> Type:
    parameters = _parameters(context)
    wanted = dict(zip(parameters.arg_names, parameters.arg_types, strict=True)) if parameters is not None else {}
    for name, types, nodes in zip(context.callee_arg_names, context.arg_types, context.args, strict=True):
        for kind, node in zip(types, nodes, strict=True):
            value = value_of(get_proper_type(kind))
            if name in wanted and not is_subtype(value, wanted[name]):
                given, expected = (format_type(one, context.api.options) for one in (value, wanted[name]))
                context.api.fail(f'Argument "{name}" has a value of type {given}; expected {expected}', node, code=ARG_TYPE)
    return context.default_return_type


def _is_result(given: ProperType) -> TypeGuard[Instance]:
    return isinstance(given, Instance) and given.type.fullname == RESULT


def _value(given: ProperType) -> ProperType:
    """The type of the value that an argument stands for; any of a result that is not known to be read as it was returned."""
    if not _is_result(given):
        return given
    value = get_proper_type(given.args[0])
    return value if _is_json(value) else ANY


def _is_json(kind: Type) -> bool:
    kind = get_proper_type(kind)
    if isinstance(kind, UnionType):
        return all(map(_is_json, kind.items))
    if isinstance(kind, Instance):
        return kind.type.fullname in JSON and all(map(_is_json, kind.args))
    return isinstance(kind, AnyType | NoneType)


def _entry(given: ProperType) -> ProperType:
    """The type of the entries of a list; any of another value, since a mapping gives pairs."""
    is_list = isinstance(given, Instance) and given.type.fullname == "builtins.list"
    return get_proper_type(given.args[0]) if isinstance(given, Instance) and is_list else ANY


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls with its version."""
    return PacelinePlugin
