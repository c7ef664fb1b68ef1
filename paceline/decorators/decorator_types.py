"""The types of `@task`, `@task.bash` and the others, for editors and type checkers. Nothing here runs.

A decorated function has no parameters for them: pyright would ignore a decorator whose result has unknown parts, which a
function without annotations gives it. The mypy plugin in paceline/testing adds the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Unpack, overload

from paceline.decorators.decorator_arguments import (
    BashTaskArguments,
    ExternalPythonTaskArguments,
    PySparkTaskArguments,
    SensorTaskArguments,
    ShortCircuitTaskArguments,
    VirtualenvTaskArguments,
)
from paceline.decorators.task_function import TaskFunction
from paceline.operators.python import PythonTaskArguments


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
