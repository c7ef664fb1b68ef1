"""`@task`, `@task.bash`, `@task.branch` and the like: a function becomes a task each time it is called in a DAG."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from scheduler.authoring import context as task_context
from scheduler.authoring import scope, source
from scheduler.authoring.arguments import near
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

    def __init__(self, function: Callable[..., Any], kind: type[Operator], arguments: Mapping[str, Any]) -> None:
        if not callable(function):
            raise source.fault(f"@task decorates a function, not {function!r}; give arguments by name.")
        functools.update_wrapper(self, function)
        self.function = function
        self._kind = kind
        self._arguments = dict(arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> XComArg:
        arguments = {
            "multiple_outputs": returns_mapping(self.function),
            "doc_md": self.function.__doc__,
            **self._arguments,
        }
        if task_context.is_running():
            name = self.function.__name__
            raise source.fault(f"{name}() was called while a task runs; {name}.function() is the plain function.")
        dag = arguments.get("dag") or scope.current_dag()
        task_id = arguments.pop("task_id", None) or self.function.__name__
        if dag is not None and isinstance(task_id, str):
            task_id = dag.unique_task_id(task_id)
        task: Operator = self._kind(task_id=task_id, python_callable=self.function, op_args=args, op_kwargs=kwargs, **arguments)
        return task.output

    def override(self, **arguments: Any) -> TaskFunction:
        """The same function with other arguments for its tasks."""
        return TaskFunction(self.function, self._kind, {**self._arguments, **arguments})

    def only(self, hook: Callable[..., Any]) -> TaskFunction:
        """The same function with one more hook before it."""
        known = self._arguments.get("pre_execute") or ()
        return self.override(pre_execute=[hook, *([known] if callable(known) else known)])

    def partial(self, **_: Any) -> NoReturn:
        raise self._no_mapping("partial")

    def expand(self, **_: Any) -> NoReturn:
        raise self._no_mapping("expand")

    def expand_kwargs(self, *_: Any, **__: Any) -> NoReturn:
        raise self._no_mapping("expand_kwargs")

    def _no_mapping(self, name: str) -> Exception:
        return source.fault(f"Task {self.function.__name__!r}: .{name}() is not supported yet; loop over a list in the DAG file.")


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
