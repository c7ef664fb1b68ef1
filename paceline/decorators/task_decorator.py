"""`@task`, `@task.bash`, `@task.branch` and similar: a decorated function creates a task each time it is called in a DAG."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from paceline.authoring import providers, source
from paceline.authoring.arguments import near
from paceline.authoring.operator import Operator
from paceline.decorators.task_function import TaskFunction
from paceline.operators import conditions
from paceline.operators.bash import DecoratedBashOperator
from paceline.operators.branch import BranchPythonOperator, ShortCircuitOperator
from paceline.operators.pyspark import PySparkOperator
from paceline.operators.python import PythonOperator, PythonTaskArguments
from paceline.operators.virtualenv import (
    BranchExternalPythonOperator,
    BranchPythonVirtualenvOperator,
    ExternalPythonOperator,
    PythonVirtualenvOperator,
)
from paceline.sensors.base import PythonSensor

if TYPE_CHECKING:
    from paceline.decorators import decorator_types as types

F = TypeVar("F", bound="TaskFunction[..., Any]")
_LATER = ("docker", "kubernetes", "stub")
_KINDS: Mapping[str, type[Operator]] = {
    "python": PythonOperator,
    "bash": DecoratedBashOperator,
    "branch": BranchPythonOperator,
    "short_circuit": ShortCircuitOperator,
    "sensor": PythonSensor,
    "pyspark": PySparkOperator,
    "virtualenv": PythonVirtualenvOperator,
    "external_python": ExternalPythonOperator,
    "branch_virtualenv": BranchPythonVirtualenvOperator,
    "branch_external_python": BranchExternalPythonOperator,
}


class TaskDecorator:
    """A decorator for functions that become tasks: `@task`, `@task()`, or with arguments of the operator, `@task(retries=2)`.

    `@task.bash`, `@task.branch`, `@task.short_circuit`, `@task.sensor` and `@task.pyspark` use other operators.
    """

    if TYPE_CHECKING:
        python: types.PythonDecorator
        bash: types.BashDecorator
        branch: types.PythonDecorator
        short_circuit: types.ShortCircuitDecorator
        sensor: types.SensorDecorator
        pyspark: types.PySparkDecorator
        virtualenv: types.VirtualenvDecorator
        external_python: types.ExternalPythonDecorator
        branch_virtualenv: types.VirtualenvDecorator
        branch_external_python: types.ExternalPythonDecorator

    def __init__(self, kind: type[Operator]) -> None:
        self._kind = kind

    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[PythonTaskArguments]) -> types.Decorated: ...
    def __call__(self, *function: Callable[..., Any], **arguments: Any) -> Any:
        if not function:
            return functools.partial(TaskFunction, kind=self._kind, arguments=arguments)
        return TaskFunction(function[0], self._kind, arguments)

    def run_if(self, condition: conditions.Condition, skip_message: str | None = None) -> Callable[[F], F]:
        """Decorator above @task: skip the task unless `condition(context)` is true."""
        return _hooked(conditions.hook(condition, wanted=True, skip_message=skip_message))

    def skip_if(self, condition: conditions.Condition, skip_message: str | None = None) -> Callable[[F], F]:
        """Decorator above @task: skip the task if `condition(context)` is true."""
        return _hooked(conditions.hook(condition, wanted=False, skip_message=skip_message))

    if not TYPE_CHECKING:  # type checkers find the attributes above

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if name in _KINDS:
                return TaskDecorator(_KINDS[name])
            if name in _LATER:
                supported = ", ".join(f"@task.{kind}" for kind in _KINDS)
                raise source.fault(f"@task.{name} is not supported yet; use one of {supported}.")
            if (decorator := providers.task_decorator(name)) is not None:
                return decorator
            raise source.fault(f"There is no @task.{name}{near(name, [*_KINDS, *_LATER])}")


def _hooked(hook: Callable[..., Any]) -> Callable[[F], F]:
    def decorate(function: Any) -> Any:
        if not isinstance(function, TaskFunction):
            raise source.fault("@task.run_if and @task.skip_if must be above another @task decorator.")
        return function.hooked(hook)

    return decorate


task = TaskDecorator(PythonOperator)
