"""The docstrings of all names that DAG files import: each argument is named, and each public method has one."""

import enum
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from docs.generate import argument_meanings, authoring_page
from paceline import DAG, BaseOperator, BaseSensorOperator
from paceline.authoring.dag import DagArguments
from paceline.authoring.task_arguments import TaskArguments
from paceline.operators import PythonOperator, SparkSubmitOperator
from paceline.operators.python import PythonArguments
from paceline.operators.spark import SparkSubmitArguments
from paceline.sensors.base import SensorArguments
from tools.sources import check

PLACES = ("paceline", *(f"paceline.{one}" for one in ("operators", "sensors", "timetables", "triggers", "exceptions", "quality")))
#: Arguments that every operator or function has, or that need no explanation.
COMMON = {"self", "args", "kwargs", "given", "context", "others", "dag_id", "task_id"}
#: Classes and the declarations of the arguments that their functions pass on.
DECLARED: list[tuple[type, Any]] = [
    (DAG, DagArguments), (BaseOperator, TaskArguments), (BaseSensorOperator, SensorArguments),
    (PythonOperator, PythonArguments), (SparkSubmitOperator, SparkSubmitArguments),
]  # fmt: skip


def public() -> Iterator[tuple[str, Any]]:
    """The public classes and functions with their names."""
    for place in PLACES:
        module = importlib.import_module(place)
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(("paceline", "scheduler")):
                yield f"{place}.{name}", value


def documented(value: Any) -> str:
    """The docstring; of a class with those of the classes whose arguments it inherits, and of its methods."""
    if not inspect.isclass(value):
        return value.__doc__ or ""
    kinds = [kind for kind in value.__mro__ if kind.__module__.startswith(("paceline", "scheduler"))]
    texts = [kind.__dict__.get("__doc__") for kind in kinds]
    return "\n".join(filter(None, [*texts, *(vars(kind)["__init__"].__doc__ for kind in kinds if "__init__" in vars(kind))]))


def arguments(value: Any) -> set[str]:
    """The public arguments of a function or of the `__init__` of a class."""
    if inspect.isclass(value) and (issubclass(value, enum.Enum | BaseException) or "__init__" not in vars(value)):
        return set()
    names = inspect.signature(value.__init__ if inspect.isclass(value) else value).parameters
    return {name for name in names if not name.startswith("_")} - COMMON


@check
def public_names_have_docstrings_that_name_their_arguments() -> Iterator[str]:
    """Each argument is named in the docstring of its class or function."""
    for name, value in public():
        text = documented(value)
        yield from (f"{name} does not explain {argument}" for argument in sorted(arguments(value)) if argument not in text)
        if not (value.__doc__ or "").strip():
            yield f"{name} has no docstring"
    for kind, declared in DECLARED:
        lacking = [name for name in declared.__annotations__ if f"`{name}`" not in documented(kind)]
        yield from (f"{kind.__name__} does not explain {name}, which others pass on" for name in lacking)


@check
def public_methods_have_docstrings() -> Iterator[str]:
    """Each public method of a public class has a docstring."""
    for name, value in public():
        if not inspect.isclass(value) or issubclass(value, enum.Enum | BaseException):
            continue
        for member, function in vars(value).items():
            is_method = inspect.isfunction(function) or isinstance(function, property | classmethod | staticmethod)
            of = function if isinstance(function, property) else getattr(value, member)
            if is_method and not member.startswith("_") and not inspect.getdoc(of):
                yield f"{name}.{member} has no docstring"


@check
def the_reference_of_authoring_explains_every_argument() -> Iterator[str]:
    """docs/reference/authoring.md has a section for each public name and a meaning for each argument."""
    for names, meanings in (
        (DagArguments.__annotations__, argument_meanings.DAG),
        (TaskArguments.__annotations__, argument_meanings.TASK),
        (authoring_page.sensor_arguments(), argument_meanings.SENSOR),
    ):
        yield from (f"explain {name} in docs/generate/argument_meanings.py" for name in names if name not in meanings)
    text = "\n".join(authoring_page.lines())
    for module in authoring_page.MODULES:
        for name, thing in authoring_page.public(module):
            if f"\n### `{name}`\n" not in text:
                yield f"{module}.{name} has no section"
            for argument in authoring_page.arguments(thing):
                if not authoring_page.meaning(thing, argument):
                    yield f"{module}.{name}: explain {argument} in the docstring, or in docs/generate/argument_meanings.py"
