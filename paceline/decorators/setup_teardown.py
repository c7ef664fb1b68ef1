"""`@setup` and `@teardown`: decorated functions whose tasks prepare a resource for other tasks, and clean it up."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, overload

from paceline.authoring import source
from paceline.authoring.setup_teardown import mark_setup, mark_teardown
from paceline.decorators.task_decorator import task
from paceline.decorators.task_function import TaskFunction


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
