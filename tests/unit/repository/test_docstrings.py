"""The docstrings of all names that DAG files import: each argument is named, and each public method has one."""

import enum
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from paceline import DAG, BaseOperator, BaseSensorOperator
from paceline.authoring.dag import DagArguments
from paceline.authoring.task_arguments import TaskArguments
from paceline.operators import PythonOperator, SparkSubmitOperator
from paceline.operators.python import PythonArguments
from paceline.operators.spark import SparkSubmitArguments
from paceline.sensors.base import SensorArguments

PLACES = (
    "paceline",
    *(f"paceline.{name}" for name in ("operators", "sensors", "timetables", "triggers", "exceptions", "quality")),
)
#: Arguments that every operator or function has, or that need no explanation.
COMMON = {"self", "args", "kwargs", "given", "context", "others", "dag_id", "task_id"}


def public(place: str) -> Iterator[tuple[str, Any]]:
    module = importlib.import_module(place)
    for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
        value = getattr(module, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(("paceline", "scheduler")):
            yield name, value


def documented(value: Any) -> str:
    """The docstring; of a class with those of the classes whose arguments it inherits, and of its methods."""
    kinds = (
        [kind for kind in value.__mro__ if kind.__module__.startswith(("paceline", "scheduler"))]
        if inspect.isclass(value)
        else [value]
    )
    texts = [kind.__dict__.get("__doc__") if inspect.isclass(kind) else kind.__doc__ for kind in kinds]
    texts += [kind.__init__.__doc__ for kind in kinds if inspect.isclass(kind) and "__init__" in vars(kind)]
    return "\n".join(filter(None, texts))


def arguments(value: Any) -> set[str]:
    if inspect.isclass(value) and (issubclass(value, enum.Enum | BaseException) or "__init__" not in vars(value)):
        return set()
    return {
        name
        for name in inspect.signature(value.__init__ if inspect.isclass(value) else value).parameters
        if not name.startswith("_")
    } - COMMON


@pytest.mark.parametrize("place", PLACES)
def test_every_public_name_has_a_docstring_that_names_its_arguments(place: str) -> None:
    lacks = {}
    for name, value in public(place):
        text = documented(value)
        if missing := sorted(argument for argument in arguments(value) if argument not in text):
            lacks[name] = missing
        elif not (value.__doc__ or "").strip():
            lacks[name] = ["a docstring"]
    assert lacks == {}


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (DAG, DagArguments), (BaseOperator, TaskArguments), (BaseSensorOperator, SensorArguments),
        (PythonOperator, PythonArguments), (SparkSubmitOperator, SparkSubmitArguments),
    ],
)  # fmt: skip
def test_arguments_that_other_functions_pass_on_are_named_too(kind: Any, declared: Any) -> None:
    assert sorted(name for name in declared.__annotations__ if f"`{name}`" not in documented(kind)) == []


@pytest.mark.parametrize("place", PLACES)
def test_every_public_method_has_a_docstring(place: str) -> None:
    lacks = [
        f"{name}.{member}"
        for name, value in public(place)
        if inspect.isclass(value) and not issubclass(value, enum.Enum | BaseException)
        for member, function in vars(value).items()
        if not member.startswith("_")
        and (inspect.isfunction(function) or isinstance(function, property | classmethod | staticmethod))
        if not inspect.getdoc(getattr(value, member) if not isinstance(function, property) else function)
    ]
    assert lacks == []
