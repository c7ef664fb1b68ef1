"""The types of `@task`, `@task.bash` and the others, for editors and type checkers. Nothing here runs.

A decorated function has no parameters for them: pyright would ignore a decorator whose result has unknown parts, which a
function without annotations gives it. The mypy plugin in scheduler/testing adds the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Unpack, overload

from scheduler.authoring.xcom_arg import XComArg
from scheduler.operators.python import PythonTaskArguments
from scheduler.operators.sensor import SensorArguments
from scheduler.operators.task_function import TaskFunction
from scheduler.operators.virtualenv import OtherPythonTaskArguments


class BashTaskArguments(PythonTaskArguments, total=False):
    env: Mapping[str, str] | XComArg | None
    append_env: bool
    output_encoding: str
    skip_on_exit_code: int | Iterable[int] | None
    cwd: str | XComArg | None
    output_processor: Callable[[str], Any]


class ShortCircuitTaskArguments(PythonTaskArguments, total=False):
    ignore_downstream_trigger_rules: bool


class SensorTaskArguments(SensorArguments, total=False):
    templates_dict: Mapping[str, Any] | None


class PySparkTaskArguments(PythonTaskArguments, total=False):
    conf: Mapping[str, Any] | None
    heavy: bool
    warm: bool


class ExternalPythonTaskArguments(OtherPythonTaskArguments, total=False):
    python: str


class VirtualenvTaskArguments(OtherPythonTaskArguments, total=False):
    requirements: Iterable[str] | str | None
    python_version: str | None
    system_site_packages: bool
    pip_install_options: Iterable[str] | None
    index_urls: Iterable[str] | str | None
    venv_cache_path: str | None


class OverrideArguments(
    BashTaskArguments, ShortCircuitTaskArguments, SensorTaskArguments, PySparkTaskArguments, VirtualenvTaskArguments, total=False
):
    """The arguments of `override`, which is the same for all decorators."""

    python: str


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
