"""Which DAG and task group are being written: the `with` blocks that are open, and who collects the finished DAGs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.authoring.dag import DAG
    from scheduler.authoring.operator import Operator
    from scheduler.authoring.task_group import TaskGroup

_open: list["tuple[DAG, TaskGroup | None]"] = []
_blocks: list[list["Operator"]] = []
_collectors: list[list["DAG"]] = []


def current_dag() -> "DAG | None":
    """The DAG of the innermost open `with` block."""
    return _open[-1][0] if _open else None


def current_group(dag: "DAG | None") -> "TaskGroup | None":
    """The task group of the innermost open `with` block, if that is a block of `dag`."""
    return _open[-1][1] if _open and _open[-1][0] is dag else None


def enter(dag: "DAG") -> None:
    """Make `dag` the current one; every open `collect()` gets it."""
    _open.append((dag, None))
    for collected in _collectors:
        if not any(known is dag for known in collected):
            collected.append(dag)


def enter_group(group: "TaskGroup") -> None:
    """Make `group`, and its DAG, the current one."""
    _open.append((group.dag, group))


def leave() -> None:
    """Close the innermost `with` block."""
    _open.pop()


def open_block() -> None:
    """From now on `made` collects the tasks between a setup and its teardown."""
    _blocks.append([])


def close_block() -> list["Operator"]:
    """The tasks made since the innermost `open_block`."""
    return _blocks.pop()


def made(*tasks: "Operator") -> None:
    """Put new tasks into the innermost open block."""
    if _blocks:
        _blocks[-1].extend(task for task in tasks if not any(known is task for known in _blocks[-1]))


@contextmanager
def collect() -> Iterator[list["DAG"]]:
    """While open, the yielded list receives every DAG that is entered, also those no module variable names."""
    collected: list[DAG] = []
    _collectors.append(collected)
    try:
        yield collected
    finally:
        _collectors.remove(collected)
