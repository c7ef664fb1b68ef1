"""What provider packages import from Airflow and Paceline has nowhere else."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


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
    """The modules of a namespace package."""
    return pkgutil.iter_modules(ns.__path__, f"{ns.__name__}.")


class ProvidersManager:
    """Airflow's registry of provider packages. This one is empty, so packages use the defaults that they have without it."""


def merge_dicts(dict1: Mapping[str, Any], dict2: Mapping[str, Any]) -> dict[str, Any]:
    """Both dicts in one, with the values of `dict2` where both have a key; dicts in them are merged too."""
    both = {name for name in dict1.keys() & dict2.keys() if isinstance(dict1[name], Mapping) and isinstance(dict2[name], Mapping)}
    return {**dict1, **dict2, **{name: merge_dicts(dict1[name], dict2[name]) for name in both}}


def exactly_one(*args: object) -> bool:
    """Whether exactly one of the values is true."""
    return sum(map(bool, args)) == 1


def at_most_one(*args: object) -> bool:
    """Whether none or one of the values is true."""
    return sum(map(bool, args)) <= 1
