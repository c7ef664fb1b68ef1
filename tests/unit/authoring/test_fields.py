"""Arguments that are declared in a TypedDict."""

import inspect
from typing import Annotated, TypedDict, get_type_hints

import pytest

from paceline import DAG, BaseOperator, BaseSensorOperator
from paceline.authoring.arguments import Arguments
from paceline.authoring.dag import DagArguments
from paceline.authoring.fields import Field, anything, checked, integer, mapping, parameters
from paceline.authoring.source import Location
from paceline.authoring.task_arguments import TaskArguments
from paceline.exceptions import DagError
from paceline.sensors.base import SensorArguments

CHECKS = Arguments("Task 't'", Location("d.py", 3))


class Some(TypedDict, total=False):
    where: str
    count: Annotated[int, Field(2, integer(least=1))]
    options: Annotated[dict[str, object], Field(None, mapping)]


class More(Some, total=False):
    name: Annotated[str, Field("n", anything)]


def test_values_are_checked_and_defaults_fill_the_gaps() -> None:
    assert checked(Some, {"where": "here", "count": 5}, CHECKS) == {"count": 5, "options": {}}
    with pytest.raises(DagError, match="Task 't': count must be an int of at least 1, not 0"):
        checked(Some, {"count": 0}, CHECKS)


def test_a_dict_is_never_shared() -> None:
    assert checked(Some, {}, CHECKS)["options"] is not checked(Some, {}, CHECKS)["options"]


def test_the_arguments_that_a_base_declares_come_first() -> None:
    assert list(checked(More, {"name": "m", "count": 3}, CHECKS).items()) == [("count", 3), ("options", {}), ("name", "m")]


@pytest.mark.parametrize(
    ("kind", "declared"), [(DAG, DagArguments), (BaseOperator, TaskArguments), (BaseSensorOperator, SensorArguments)]
)
def test_editors_see_the_declared_arguments(kind: type, declared: type) -> None:
    """The signature names the TypedDict, and every name in it is an argument."""
    (kwargs,) = [
        parameter for parameter in inspect.signature(kind.__init__).parameters.values() if parameter.kind is parameter.VAR_KEYWORD
    ]  # type: ignore[misc]

    assert declared.__name__ in str(kwargs.annotation)
    assert get_type_hints(declared).keys() <= set(parameters(kind))
