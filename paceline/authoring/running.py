"""The context of the task that runs in this process."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.exceptions import PacelineError

Context = dict[str, Any]

#: The environment variables of an application on Spark: the address of the catalog of tables, and the token of the try.
TABLES_URI, TABLES_TOKEN = "PACELINE_TABLES_URI", "PACELINE_TABLES_TOKEN"

#: The contexts of the task that runs and of tasks around it, see execution.current. A list and not a ContextVar, so that threads
#: of user code see the context of their task too.
stack: list[Context] = []
#: The source of variables and connections outside of tasks: in tests.
_outside: list[Any] = []

#: Where a DAG file finds variables while it is loaded. A worker has moved them from the environment of its process.
environment: Mapping[str, str] = os.environ
#: The variables whose default the DAG file took while it was loaded.
defaulted: set[str] = set()


def is_running() -> bool:
    """Whether a task is running in this process."""
    return bool(stack)


def get_current_context() -> Context:
    """The context of the running task: a dict with the keys of templates. PacelineError outside a running task."""
    if not stack:
        raise PacelineError("get_current_context() works only while a task runs; call it inside the task's function.")
    return stack[-1]


@contextmanager
def served_outside(backend: Any) -> Iterator[None]:
    """Serve variables and connections by `backend` outside of tasks too, inside the `with` block."""
    _outside.append(backend)
    try:
        yield
    finally:
        _outside.remove(backend)


def is_served() -> bool:
    """Whether variables and connections can be read now: a task is running, or a test serves them."""
    return bool(stack or _outside)


def secrets_backend(what: str, instead: str = "use it inside the task's function") -> Any:
    """The secrets backend of the running task, see authoring/context.

    Outside a running task it is a PacelineError, which ends with `instead`.
    """
    if is_running():
        return get_current_context()["var"].backend
    if _outside:
        return _outside[-1]
    raise PacelineError(f"{what} works only while a task runs, since loading a DAG file reads no database: {instead}.")
