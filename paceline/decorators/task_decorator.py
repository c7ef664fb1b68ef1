"""`@task`, `@task.bash`, `@task.branch` and similar: a decorated function creates a task each time it is called in a DAG."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from paceline.authoring import connection, running, scope, source
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import NO_LOOPS, near
from paceline.authoring.expansion import refuse_repeated
from paceline.authoring.operator import Operator, OperatorPartial
from paceline.authoring.setup_teardown import mark_setup, mark_teardown
from paceline.authoring.xcom_arg import XComArg
from paceline.operators.bash import DecoratedBashOperator
from paceline.operators.branch import BranchPythonOperator, Condition, ShortCircuitOperator, condition_hook
from paceline.operators.python import PythonOperator, PythonTaskArguments, returns_mapping
from paceline.operators.spark import PySparkOperator
from paceline.operators.sql import DecoratedSQLOperator, SqlTaskArguments
from paceline.operators.virtualenv import (
    BranchExternalPythonOperator,
    BranchPythonVirtualenvOperator,
    ExternalPythonOperator,
    OtherPythonTaskArguments,
    PythonVirtualenvOperator,
)
from paceline.sensors.base import PythonSensor, SensorArguments


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
    conn_id: str | None
    heavy: bool
    warm: bool


class DecoratedSQLArguments(SqlTaskArguments, PythonTaskArguments, total=False):
    """The arguments of @task.sql."""

    output_processor: Callable[[Any], Any] | None


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
    BashTaskArguments, ShortCircuitTaskArguments, SensorTaskArguments, SqlTaskArguments, VirtualenvTaskArguments, total=False
):
    """The arguments of `override`, which is the same for all decorators."""

    python: str


P = ParamSpec("P")
R = TypeVar("R")


class TaskFunction(Generic[P, R]):
    """A decorated function. A call creates a task in the current DAG and returns its future result, an XComArg."""

    def __init__(
        self,
        function: Callable[P, R],
        kind: type[Operator],
        arguments: Mapping[str, Any],
        mark: Callable[[AbstractOperator], None] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(function):
            raise source.fault(f"@task decorates a function, not {function!r}; pass its arguments by name.")
        functools.update_wrapper(self, function)
        self.function = function
        self._kind = kind
        self._arguments = dict(arguments)
        self._mark = mark
        #: The arguments that all instances of a mapped task share; None before `partial`.
        self._given = given

    def __call__(self, *args: Any, **kwargs: Any) -> XComArg[R]:
        # P.args would demand the parameters that a worker fills; the mypy plugin in paceline/testing leaves them out.
        if self._given is not None:
            raise source.fault("partial() of a decorated function is only for mapping; add .expand(...) or .expand_kwargs(...).")
        kind: Any = self._kind
        task: Operator = kind(op_args=args, op_kwargs=kwargs, **self._for_task())
        if self._mark is not None:
            self._mark(task)
        return task.output

    def override(self, **arguments: Unpack[OverrideArguments]) -> TaskFunction[P, R]:
        """The same function, with other arguments of the operator."""
        return TaskFunction(self.function, self._kind, {**self._arguments, **arguments}, self._mark, self._given)

    def marked(self, mark: Callable[[AbstractOperator], None]) -> TaskFunction[P, R]:
        """The same function; `mark` is called with each task that it creates."""
        return TaskFunction(self.function, self._kind, self._arguments, mark, self._given)

    def hooked(self, hook: Callable[..., Any]) -> TaskFunction[P, R]:
        """The same function, with `hook` as the first pre_execute hook."""
        others = self._arguments.get("pre_execute") or ()
        arguments = {**self._arguments, "pre_execute": [hook, *([others] if callable(others) else others)]}
        return TaskFunction(self.function, self._kind, arguments, self._mark, self._given)

    def partial(self, **given: Any) -> TaskFunction[P, R]:
        """The same function, with arguments that are the same for every instance of a mapped task."""
        known = self._given or {}
        refuse_repeated(given, known, source.fault)
        return TaskFunction(self.function, self._kind, self._arguments, self._mark, {**known, **given})

    def expand(self, *unnamed: Any, **mapped: Any) -> XComArg[list[R]]:
        """Create a mapped task: one instance for each value, or for each combination of several arguments."""
        return self._shared().expand(*unnamed, **mapped).output

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg[list[R]]:
        """Create a mapped task: one instance for each dict of arguments."""
        return self._shared().expand_kwargs(kwargs, strict=strict).output

    if not TYPE_CHECKING:  # type checkers find that it does not exist

        def loop(self, *_: Any, **__: Any) -> NoReturn:
            raise source.fault(f"{self.function.__name__}.loop(): {NO_LOOPS}")

    def __rshift__(self, other: object) -> NoReturn:
        name = self.function.__name__
        raise source.fault(f"{name} is a function; a call of it creates the task: write {name}() in place of {name}.")

    __lshift__ = __rrshift__ = __rlshift__ = __rshift__

    def _shared(self) -> OperatorPartial[Operator]:
        given = dict(self._given or {})
        return OperatorPartial(self._kind, {"op_kwargs": given, **self._for_task()}, into="op_kwargs", mark=self._mark)

    def _for_task(self) -> dict[str, Any]:
        """The arguments of the operator, with a task ID that is still free."""
        name = self.function.__name__
        if running.is_running():
            raise source.fault(f"{name}() was called inside a running task; call {name}.function(), the plain function.")
        arguments = {
            "multiple_outputs": returns_mapping(self.function),
            "doc_md": self.function.__doc__,
            "python_callable": self.function,
            **self._arguments,
        }
        dag, group = scope.place(arguments)
        task_id = arguments.get("task_id") or name
        if dag is not None and isinstance(task_id, str):
            task_id = dag.unique_id(task_id, group)
        return arguments | {"task_id": task_id}


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


class SQLDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[..., Any], /) -> TaskFunction[..., Any]: ...
    @overload
    def __call__(self, **arguments: Unpack[DecoratedSQLArguments]) -> Decorated: ...


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
    "sql": DecoratedSQLOperator,
    "virtualenv": PythonVirtualenvOperator,
    "external_python": ExternalPythonOperator,
    "branch_virtualenv": BranchPythonVirtualenvOperator,
    "branch_external_python": BranchExternalPythonOperator,
}


class TaskDecorator:
    """A decorator for functions that become tasks: `@task`, `@task()`, or with arguments of the operator, `@task(retries=2)`.

    `@task.bash`, `@task.branch`, `@task.short_circuit`, `@task.sensor`, `@task.pyspark` and `@task.sql` use other operators.
    """

    if TYPE_CHECKING:
        python: PythonDecorator
        bash: BashDecorator
        branch: PythonDecorator
        short_circuit: ShortCircuitDecorator
        sensor: SensorDecorator
        pyspark: PySparkDecorator
        sql: SQLDecorator
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
