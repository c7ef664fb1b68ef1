"""The open `with` blocks of DAGs, task groups and setups, and the collectors of DAGs."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from paceline.authoring import source
from paceline.authoring.graph import Graph, Group, Node
from paceline.exceptions import DagError


class Collected(list[Graph[Any]]):
    """The DAGs that were opened, in this order, and all tasks and `@dag` functions that were created."""

    def __init__(self, *, defers: bool) -> None:
        super().__init__()
        #: Whether errors wait for the end of the file.
        self.defers = defers
        self.tasks: list[Node] = []
        #: Each @dag function, and whether it was called.
        self.functions: dict[Callable[..., Any], bool] = {}
        #: The errors after which the file was read on.
        self.errors: list[DagError] = []


class _OfThread(threading.local):
    """What is open in one thread. A file that hangs in another thread closes no block of the file that this one reads."""

    def __init__(self) -> None:
        self.open: list[tuple[Graph[Any], Group | None]] = []
        self.blocks: list[list[Node]] = []
        self.collectors: list[Collected] = []


_here = _OfThread()
#: The open collectors of all threads, for a file that creates its DAGs in threads of its own.
_everywhere: list[Collected] = []


def _collectors() -> list[Collected]:
    """The collectors of this thread, or those of all threads in a thread that reads no file itself."""
    return _here.collectors or _everywhere


def current_dag() -> Graph[Any] | None:
    """The DAG of the innermost open `with` block."""
    return _here.open[-1][0] if _here.open else None


def current_group(dag: Graph[Any] | None) -> Group | None:
    """The task group of the innermost open `with` block, if that block belongs to `dag`."""
    return _here.open[-1][1] if _here.open and _here.open[-1][0] is dag else None


def place(given: Mapping[str, Any]) -> tuple[Graph[Any] | None, Group | None]:
    """The DAG and the task group of a task: its arguments name them, else the innermost open `with` block does."""
    group = given.get("task_group")
    dag = given.get("dag") or (group.dag if group is not None else current_dag())
    return dag, group if group is not None else current_group(dag)


def enter(dag: Graph[Any]) -> None:
    """Make `dag` the current DAG, and add it to every open `collect()`."""
    _here.open.append((dag, None))
    for collected in _collectors():
        if not any(known is dag for known in collected):
            collected.append(dag)


def enter_group(group: Group) -> None:
    """Make `group` and its DAG the current ones."""
    _here.open.append((group.dag, group))


def defer(error: DagError) -> bool:
    """Keep an error until the end of the file, so that others are found too. False if it must be raised now."""
    if not is_deferring() or source.may_be_caught():
        return False
    _here.collectors[-1].errors.append(error.with_traceback(source.traceback_to(error)))
    return True


def defer_first_of_line(error: DagError) -> None:
    """Keep an error until the end of the file. Raise it if it must be raised now, or if its line already has one.

    This stops a `while` loop whose condition has the error.
    """
    known = _here.collectors[-1].errors if _here.collectors else []
    if any((earlier.file, earlier.line) == (error.file, error.line) for earlier in known) or not defer(error):
        raise error


def is_deferring() -> bool:
    """Whether errors wait for the end of the file."""
    return bool(_here.collectors) and _here.collectors[-1].defers


def note_function(function: Callable[..., Any], *, called: bool) -> None:
    """Add a `@dag` function to every open `collect()`."""
    for collected in _collectors():
        collected.functions[function] = called


def leave() -> None:
    _here.open.pop()


def open_block() -> None:
    """Start to collect the tasks between a setup and its teardown, see `note_tasks`."""
    _here.blocks.append([])


def close_block() -> list[Node]:
    """Close the innermost block, and return the tasks created in it."""
    return _here.blocks.pop()


def note_tasks(*tasks: Node) -> None:
    """Add new tasks to the innermost open block, and to every open `collect()`."""
    for collected in _collectors():
        collected.tasks.extend(tasks)
    if _here.blocks:
        block = _here.blocks[-1]
        block.extend(task for task in tasks if not any(known is task for known in block))


@contextmanager
def collect(*, defer_errors: bool = False) -> Iterator[Collected]:
    """Collect every DAG that is entered inside the `with` block, even if no module variable refers to it."""
    collected = Collected(defers=defer_errors)
    _here.collectors.append(collected)
    _everywhere.append(collected)
    try:
        yield collected
    finally:
        _here.collectors.pop()
        # Not the last one: files that other threads read end in any order.
        _everywhere[:] = [other for other in _everywhere if other is not collected]


class ParsingContext(NamedTuple):
    """The DAG and task for which a file is read; None if it is read for all of them."""

    dag_id: str | None
    task_id: str | None


def get_parsing_context() -> ParsingContext:
    """The DAG and the task for which the file is read. Both are None: a worker reads a file once for all of its DAGs."""
    return ParsingContext(None, None)
