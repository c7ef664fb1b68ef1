"""`@task`, `@task.bash`, `@task.branch` and the like: a function becomes a task each time it is called in a DAG."""

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

_LATER = (
    "virtualenv",
    "external_python",
    "branch_virtualenv",
    "branch_external_python",
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
}


class TaskFunction:
    """A function that makes a task of the open DAG when it is called, and gives its result to pass on."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: type[Operator],
        arguments: Mapping[str, Any],
        mark: Callable[[AbstractOperator], None] | None = None,
    ) -> None:
        if not callable(function):
            raise source.fault(f"@task decorates a function, not {function!r}; give arguments by name.")
        functools.update_wrapper(self, function)
        self.function = function
        self._kind = kind
        self._arguments = dict(arguments)
        self._mark = mark

    def __call__(self, *args: Any, **kwargs: Any) -> XComArg:
        kind: Any = self._kind
        task: Operator = kind(op_args=args, op_kwargs=kwargs, **self._for_task())
        if self._mark is not None:
            self._mark(task)
        return task.output

    def override(self, **arguments: Any) -> TaskFunction:
        """The same function with other arguments for its tasks."""
        return TaskFunction(self.function, self._kind, {**self._arguments, **arguments}, self._mark)

    def marked(self, mark: Callable[[AbstractOperator], None]) -> TaskFunction:
        """The same function; `mark` is called with each task it makes."""
        return TaskFunction(self.function, self._kind, self._arguments, mark)

    def only(self, hook: Callable[..., Any]) -> TaskFunction:
        """The same function with one more hook before it."""
        known = self._arguments.get("pre_execute") or ()
        return self.override(pre_execute=[hook, *([known] if callable(known) else known)])

    def partial(self, **given: Any) -> MappedFunction:
        """Arguments that are the same for every instance of a mapped task."""
        return MappedFunction(self.shared, given)

    def expand(self, **mapped: Any) -> XComArg:
        """A mapped task: an instance for each value; for several arguments each combination of their values."""
        return self.shared({}).expand(**mapped).output

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg:
        """A mapped task: an instance for each dict of arguments."""
        return self.shared({}).expand_kwargs(kwargs, strict=strict).output

    def shared(self, given: Mapping[str, Any]) -> OperatorPartial:
        """The mapped task to be, with what all its instances share."""
        return OperatorPartial(self._kind, {"op_kwargs": dict(given), **self._for_task()}, into="op_kwargs", mark=self._mark)

    def _for_task(self) -> dict[str, Any]:
        """What the operator needs beside the arguments of the function; the id is one that is still free."""
        name = self.function.__name__
        if running.is_running():
            raise source.fault(f"{name}() was called while a task runs; {name}.function() is the plain function.")
        arguments = {
            "multiple_outputs": returns_mapping(self.function),
            "doc_md": self.function.__doc__,
            "python_callable": self.function,
            **self._arguments,
        }
        group = arguments.get("task_group")
        dag = arguments.get("dag") or (group.dag if group is not None else scope.current_dag())
        task_id = arguments.get("task_id") or name
        if dag is not None and isinstance(task_id, str):
            task_id = dag.unique_id(task_id, group or scope.current_group(dag))
        return arguments | {"task_id": task_id}


class MappedFunction:
    """A decorated function with the arguments that all instances of a mapped task share."""

    def __init__(self, shared: Callable[[Mapping[str, Any]], OperatorPartial], given: Mapping[str, Any]) -> None:
        self._shared = shared
        self._given = dict(given)

    def partial(self, **given: Any) -> MappedFunction:
        """With further arguments."""
        refuse_repeated(given, self._given, source.fault)
        return MappedFunction(self._shared, {**self._given, **given})

    def expand(self, **mapped: Any) -> XComArg:
        """A mapped task: an instance for each value; for several arguments each combination of their values."""
        return self._shared(self._given).expand(**mapped).output

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> XComArg:
        """A mapped task: an instance for each dict of arguments."""
        return self._shared(self._given).expand_kwargs(kwargs, strict=strict).output

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise source.fault("partial() of a decorated function is only for mapping; add .expand(...) or .expand_kwargs(...).")


class TaskDecorator:
    """Usable plain, with parentheses, or with the arguments of the operator: `@task`, `@task()`, `@task(retries=2)`."""

    def __init__(self, kind: type[Operator]) -> None:
        self._kind = kind

    def __call__(self, function: Callable[..., Any] | None = None, /, **arguments: Any) -> Any:
        if function is None:
            return functools.partial(TaskFunction, kind=self._kind, arguments=arguments)
        return TaskFunction(function, self._kind, arguments)

    def run_if(self, condition: conditions.Condition, skip_message: str | None = None) -> Callable[[TaskFunction], TaskFunction]:
        """Written above @task: skip the task unless `condition(context)` is true."""
        return _only(conditions.hook(condition, wanted=True, skip_message=skip_message))

    def skip_if(self, condition: conditions.Condition, skip_message: str | None = None) -> Callable[[TaskFunction], TaskFunction]:
        """Written above @task: skip the task if `condition(context)` is true."""
        return _only(conditions.hook(condition, wanted=False, skip_message=skip_message))

    def __getattr__(self, name: str) -> TaskDecorator:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in _KINDS:
            return TaskDecorator(_KINDS[name])
        if name in _LATER:
            known = ", ".join(f"@task.{one}" for one in _KINDS)
            raise source.fault(f"@task.{name} is not supported yet; known are {known}.")
        raise source.fault(f"There is no @task.{name}{near(name, [*_KINDS, *_LATER])}")


def _only(hook: Callable[..., Any]) -> Callable[[TaskFunction], TaskFunction]:
    def decorate(function: TaskFunction) -> TaskFunction:
        if not isinstance(function, TaskFunction):
            raise source.fault("@task.run_if and @task.skip_if stand above another @task decorator.")
        return function.only(hook)

    return decorate


task = TaskDecorator(PythonOperator)
