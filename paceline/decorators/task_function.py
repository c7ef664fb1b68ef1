"""A function with a @task decorator: each call in a DAG creates a task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, TypeVar, Unpack

from paceline.authoring import running, scope, source
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import NO_LOOPS
from paceline.authoring.expansion import refuse_repeated
from paceline.authoring.operator import Operator, OperatorPartial
from paceline.authoring.xcom_arg import XComArg
from paceline.operators.python import PythonTaskArguments, returns_mapping
from paceline.operators.virtualenv import OtherPythonTaskArguments
from paceline.sensors.base import SensorArguments


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
