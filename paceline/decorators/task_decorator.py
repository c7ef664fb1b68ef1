"""`@task`, `@task.bash`, `@task.branch` and similar: a decorated function creates a task each time it is called in a DAG."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, overload

from paceline.authoring import connection, source
from paceline.authoring.arguments import near
from paceline.authoring.operator import Operator
from paceline.authoring.setup_teardown import mark_setup, mark_teardown
from paceline.decorators.task_function import (
    BashTaskArguments,
    ExternalPythonTaskArguments,
    PySparkTaskArguments,
    SensorTaskArguments,
    ShortCircuitTaskArguments,
    TaskFunction,
    VirtualenvTaskArguments,
)
from paceline.operators.bash import DecoratedBashOperator
from paceline.operators.branch import BranchPythonOperator, Condition, ShortCircuitOperator, condition_hook
from paceline.operators.python import PythonOperator, PythonTaskArguments
from paceline.operators.spark import PySparkOperator
from paceline.operators.virtualenv import (
    BranchExternalPythonOperator,
    BranchPythonVirtualenvOperator,
    ExternalPythonOperator,
    PythonVirtualenvOperator,
)
from paceline.sensors.base import PythonSensor


class Decorated(Protocol):
    """The result of a decorator with arguments."""

    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...


class PythonDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[PythonTaskArguments]) -> Decorated: ...


class BashDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[BashTaskArguments]) -> Decorated: ...


class ShortCircuitDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[ShortCircuitTaskArguments]) -> Decorated: ...


class SensorDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[SensorTaskArguments]) -> Decorated: ...


class PySparkDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[PySparkTaskArguments]) -> Decorated: ...


class ExternalPythonDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[ExternalPythonTaskArguments]) -> Decorated: ...


class VirtualenvDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[VirtualenvTaskArguments]) -> Decorated: ...


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
        python: PythonDecorator
        bash: BashDecorator
        branch: PythonDecorator
        short_circuit: ShortCircuitDecorator
        sensor: SensorDecorator
        pyspark: PySparkDecorator
        virtualenv: VirtualenvDecorator
        external_python: ExternalPythonDecorator
        branch_virtualenv: VirtualenvDecorator
        branch_external_python: ExternalPythonDecorator

    def __init__(self, kind: type[Operator]) -> None:
        self._kind = kind

    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[PythonTaskArguments]) -> Decorated: ...
    def __call__(self, *function: Callable[..., Any], **arguments: Any) -> Any:
        if not function:
            return functools.partial(TaskFunction, kind=self._kind, arguments=arguments)
        return TaskFunction(function[0], self._kind, arguments)

    def run_if(self, condition: Condition, skip_message: str | None = None) -> Callable[[F], F]:
        """Decorator above @task: skip the task unless `condition(context)` is true."""
        return _hooked(condition_hook(condition, wanted=True, skip_message=skip_message))

    def skip_if(self, condition: Condition, skip_message: str | None = None) -> Callable[[F], F]:
        """Decorator above @task: skip the task if `condition(context)` is true."""
        return _hooked(condition_hook(condition, wanted=False, skip_message=skip_message))

    if not TYPE_CHECKING:  # type checkers find the attributes above

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            if name in _KINDS:
                return TaskDecorator(_KINDS[name])
            if name in _LATER:
                supported = ", ".join(f"@task.{kind}" for kind in _KINDS)
                raise source.fault(f"@task.{name} is not supported yet; use one of {supported}.")
            if (decorator := connection.task_decorator(name)) is not None:
                return decorator
            raise source.fault(f"There is no @task.{name}{near(name, [*_KINDS, *_LATER])}")


def _hooked(hook: Callable[..., Any]) -> Callable[[F], F]:
    def decorate(function: Any) -> Any:
        if not isinstance(function, TaskFunction):
            raise source.fault("@task.run_if and @task.skip_if must be above another @task decorator.")
        return function.hooked(hook)

    return decorate


task = TaskDecorator(PythonOperator)


def setup(function: Callable[..., Any]) -> TaskFunction[..., Any]:
    """Decorate a function, or a @task function, whose tasks are setups."""
    return _task_function(function, "setup").marked(mark_setup)


@overload
def teardown(function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
@overload
def teardown(*, on_failure_fail_dagrun: bool = False) -> Callable[[Callable[..., Any]], TaskFunction[..., Any]]: ...
def teardown(function: Any = None, /, *, on_failure_fail_dagrun: bool = False) -> Any:
    """Decorate a function, or a @task function, whose tasks are teardowns.

    The failure of a teardown fails the run only with `on_failure_fail_dagrun=True`.
    """
    if function is None:
        return partial(_teardown, on_failure_fail_dagrun=on_failure_fail_dagrun)
    return _teardown(function, on_failure_fail_dagrun=on_failure_fail_dagrun)


def _teardown(function: Callable[..., Any], *, on_failure_fail_dagrun: bool) -> TaskFunction[..., Any]:
    mark = partial(mark_teardown, on_failure_fail_dagrun=on_failure_fail_dagrun)
    return _task_function(function, "teardown").marked(mark)


def _task_function(function: Any, name: str) -> TaskFunction[..., Any]:
    decorated = task(function) if inspect.isfunction(function) else function
    if not isinstance(decorated, TaskFunction):
        raise source.fault(f"@{name} decorates a function or a @task function, not {function!r}.")
    return decorated
