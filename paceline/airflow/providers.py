"""Names that provider packages import from Airflow and that Paceline has nowhere else, with the base of the decorators they
define.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, TypeVar

from paceline.authoring.operator import Operator
from paceline.decorators.task_decorator import TaskDecorator, TaskFunction  # noqa: F401  names.cfg lists TaskDecorator here
from paceline.operators.python import PythonOperator
from paceline.sensors.base import BaseSensorOperator

S = TypeVar("S", bound=BaseSensorOperator)


def import_string(dotted_path: str) -> Any:
    """The object with the name `package.module.name`; ImportError if there is none."""
    module, dot, name = dotted_path.rpartition(".")
    if not dot:
        raise ImportError(f"{dotted_path!r} must be a dotted name such as package.module.name.")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ImportError(f"The module {module!r} has no {name!r}.") from None


def qualname(o: object, use_qualname: bool = False, exclude_module: bool = False) -> str:
    """The dotted name of a class or function, or of the class of any other object; `import_string` reads it back.

    With `use_qualname`, names of classes around it are included. `exclude_module` leaves out the module.
    """
    named: Any = o if callable(o) and hasattr(o, "__name__") else type(o)
    name = named.__qualname__ if use_qualname or exclude_module or isinstance(named, type) else named.__name__
    return name if exclude_module else f"{named.__module__}.{name}"


def iter_namespace(ns: ModuleType) -> Iterator[pkgutil.ModuleInfo]:
    return pkgutil.iter_modules(ns.__path__, f"{ns.__name__}.")


class ProvidersManager:
    """Airflow's registry of provider packages. This one is empty, so packages use the defaults that they have without it."""


def merge_dicts(dict1: Mapping[str, Any], dict2: Mapping[str, Any]) -> dict[str, Any]:
    """Both dicts in one, with the values of `dict2` where both have a key; dicts in them are merged too."""
    both = {name for name in dict1.keys() & dict2.keys() if isinstance(dict1[name], Mapping) and isinstance(dict2[name], Mapping)}
    return {**dict1, **dict2, **{name: merge_dicts(dict1[name], dict2[name]) for name in both}}


def prune_dict(val: Any, mode: str = "strict") -> Any:
    """A dict or list without empty values, at every depth: without None, or with mode="truthy" without all that is false."""
    if mode not in {"strict", "truthy"}:
        raise ValueError("allowable values for `mode` include 'truthy' and 'strict'")
    if isinstance(val, dict):
        pairs = ((name, prune_dict(value, mode)) for name, value in val.items())
        return {name: value for name, value in pairs if not _is_empty(value, mode)}
    if isinstance(val, list):
        return [value for value in (prune_dict(item, mode) for item in val) if not _is_empty(value, mode)]
    return val


def _is_empty(value: Any, mode: str) -> bool:
    return value is None if mode == "strict" else not value


def chunks(items: list[Any], chunk_size: int) -> Iterator[list[Any]]:
    """The items in lists of `chunk_size`; ValueError if it is not positive."""
    if chunk_size <= 0:
        raise ValueError("Chunk size must be a positive integer")
    return (items[start : start + chunk_size] for start in range(0, len(items), chunk_size))


def poke_mode_only(cls: type[S]) -> type[S]:
    """Class decorator of sensors that cannot run with mode="reschedule": such an argument is a ValueError."""
    create = cls.__init__

    @functools.wraps(create)
    def checked(self: S, **kwargs: Any) -> None:
        if kwargs.get("mode", "poke") != "poke":
            raise ValueError(f"{cls.__name__} can only run with mode='poke'.")
        create(self, **kwargs)

    cls.__init__ = checked  # type: ignore[method-assign,assignment]
    return cls


def exactly_one(*args: object) -> bool:
    return sum(map(bool, args)) == 1


def at_most_one(*args: object) -> bool:
    return sum(map(bool, args)) <= 1


def to_boolean(astring: str | None) -> bool:
    """Whether a text means yes: on, t, true, y, yes or 1, in any case."""
    return (astring or "").strip().lower() in {"on", "t", "true", "y", "yes", "1"}


class NoLineage:
    """A collector of lineage that takes everything and sends nothing."""

    has_collected = False
    collected_assets = SimpleNamespace(inputs=(), outputs=(), extra=())
    #: Without it, `common.compat` takes this for a collector of Airflow 3.1 and adds `add_extra` itself.
    _extra: Mapping[str, Any] = MappingProxyType({})

    def create_asset(self, **_arguments: Any) -> None:
        """Return None: there is no asset for what a hook names."""

    def add_input_asset(self, *_arguments: Any, **_named: Any) -> None:
        """Take an asset that a hook read."""

    def add_output_asset(self, *_arguments: Any, **_named: Any) -> None:
        """Take an asset that a hook wrote."""

    def add_extra(self, *_arguments: Any, **_named: Any) -> None:
        """Take any other information."""


def get_hook_lineage_collector() -> NoLineage:
    """The collector to which hooks report what they read and write."""
    return NoLineage()


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
