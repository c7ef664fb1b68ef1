"""The context of the task that runs in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scheduler.exceptions import PacelineError

Context = dict[str, Any]

# A plain list and no ContextVar: threads that user code starts see the context of their task too.
_stack: list[Context] = []


@contextmanager
def current(context: Context) -> Iterator[Context]:
    """While open, `get_current_context()` gives `context`."""
    _stack.append(context)
    try:
        yield context
    finally:
        _stack.pop()


def is_running() -> bool:
    """Whether a task runs in this process."""
    return bool(_stack)


def get_current_context() -> Context:
    """The context of the running task; PacelineError outside of one."""
    if not _stack:
        raise PacelineError("get_current_context() works only while a task runs; call it inside the task's function.")
    return _stack[-1]


def secrets_backend(what: str) -> Any:
    """The secrets backend of the running task, see authoring/secrets_backend; PacelineError outside of one."""
    if not is_running():
        raise PacelineError(
            f"{what} works only while a task runs: use it inside the task's function, or a template such as "
            "{{ var.value.name }} or {{ conn.name.host }}, so that reading a DAG file asks no database."
        )
    return get_current_context()["var"].backend
