"""`@task`, `@task.bash`, `@task.branch` and similar: a decorated function creates a task each time it is called in a DAG."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from scheduler.authoring import running, scope, source
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.arguments import near
from scheduler.authoring.expansion import refuse_repeated
from scheduler.authoring.mapping import OperatorPartial
from scheduler.authoring.operator import Operator
from scheduler.authoring.xcom_arg import XComArg
from scheduler.operators import conditions
from scheduler.operators.bash import DecoratedBashOperator
from scheduler.operators.branch import BranchPythonOperator, ShortCircuitOperator
from scheduler.operators.pyspark import PySparkOperator
from scheduler.operators.python import PythonOperator, returns_mapping
from scheduler.operators.sensor import PythonSensor
from scheduler.operators.virtualenv import (
    BranchExternalPythonOperator,
    BranchPythonVirtualenvOperator,
    ExternalPythonOperator,
    PythonVirtualenvOperator,
)

_LATER = (
    "docker",
    "kubernetes",
    "stub",
)
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


class TaskFunction:
    """A decorated function. A call creates a task in the current DAG and returns its future result, an XComArg."""

    def __init__(
        self,
        function: Callable[..., Any],
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

    def __call__(self, *args: Any, **kwargs: Any) -> XComArg:
        if self._given is not None:
            raise source.fault("partial() of a decorated function is only for mapping; add .expand(...) or .expand_kwargs(...).")
        kind: Any = self._kind
        task: Operator = kind(op_args=args, op_kwargs=kwargs, **self._for_task())
        if self._mark is not None:
            self._mark(task)
        return task.output

    def override(self, **arguments: Any) -> TaskFunction:
        """The same function, with other arguments of the operator."""
        return TaskFunction(self.function, self._kind, {**self._arguments, **arguments}, self._mark, self._given)

    def marked(self, mark: Callable[[AbstractOperator], None]) -> TaskFunction:
        """The same function; `mark` is called with each task that it creates."""
        return TaskFunction(self.function, self._kind, self._arguments, mark, self._given)

    def hooked(self, hook: Callable[..., Any]) -> TaskFunction:
        """The same function, with `hook` as the first pre_execute hook."""
        others = self._arguments.get("pre_execute") or ()
        return self.override(pre_execute=[hook, *([others] if callable(others) else others)])

    def partial(self, **given: Any) -> TaskFunction:
        """The same function, with arguments that are the same for every instance of a mapped task."""
        known = self._given or {}
        refuse_repeated(given, known, source.fault)
        return TaskFunction(self.function, self._kind, self._arguments, self._mark, {**known, **given})

    def expand(self, *unnamed: Any, **mapped: Any) -> XComArg:
        """Create a mapped task: one instance for each value, or for each combination of several arguments."""
        return self._shared().expand(*unnamed, **mapped).output

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg:
        """Create a mapped task: one instance for each dict of arguments."""
        return self._shared().expand_kwargs(kwargs, strict=strict).output

    def __rshift__(self, other: object) -> NoReturn:
        name = self.function.__name__
        raise source.fault(f"{name} is a function; a call of it creates the task: write {name}() in place of {name}.")

    __lshift__ = __rrshift__ = __rlshift__ = __rshift__

    def _shared(self) -> OperatorPartial:
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


class TaskDecorator:
    """A decorator for functions that become tasks: `@task`, `@task()`, or with arguments of the operator, `@task(retries=2)`.

    `@task.bash`, `@task.branch`, `@task.short_circuit`, `@task.sensor` and `@task.pyspark` use other operators.
    """

    def __init__(self, kind: type[Operator]) -> None:
        self._kind = kind

    def __call__(self, function: Callable[..., Any] | None = None, /, **arguments: Any) -> Any:
        if function is None:
            return functools.partial(TaskFunction, kind=self._kind, arguments=arguments)
        return TaskFunction(function, self._kind, arguments)

    def run_if(self, condition: conditions.Condition, skip_message: str | None = None) -> Callable[[TaskFunction], TaskFunction]:
        """Decorator above @task: skip the task unless `condition(context)` is true."""
        return _hooked(conditions.hook(condition, wanted=True, skip_message=skip_message))

    def skip_if(self, condition: conditions.Condition, skip_message: str | None = None) -> Callable[[TaskFunction], TaskFunction]:
        """Decorator above @task: skip the task if `condition(context)` is true."""
        return _hooked(conditions.hook(condition, wanted=False, skip_message=skip_message))

    def __getattr__(self, name: str) -> TaskDecorator:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _KINDS:
            return TaskDecorator(_KINDS[name])
        if name in _LATER:
            supported = ", ".join(f"@task.{kind}" for kind in _KINDS)
            raise source.fault(f"@task.{name} is not supported yet; use one of {supported}.")
        raise source.fault(f"There is no @task.{name}{near(name, [*_KINDS, *_LATER])}")


def _hooked(hook: Callable[..., Any]) -> Callable[[TaskFunction], TaskFunction]:
    def decorate(function: TaskFunction) -> TaskFunction:
        if not isinstance(function, TaskFunction):
            raise source.fault("@task.run_if and @task.skip_if must be above another @task decorator.")
        return function.hooked(hook)

    return decorate


task = TaskDecorator(PythonOperator)
