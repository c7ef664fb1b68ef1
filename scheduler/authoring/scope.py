"""Which DAG and task group are being written: the `with` blocks that are open, and who collects the finished DAGs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scheduler.authoring.graph import Graph, Group, Node

_open: list[tuple[Graph[Any], Group | None]] = []
_blocks: list[list[Node]] = []
_collectors: list[list[Graph[Any]]] = []


def current_dag() -> Graph[Any] | None:
    """The DAG of the innermost open `with` block."""
    return _open[-1][0] if _open else None


def current_group(dag: Graph[Any] | None) -> Group | None:
    """The task group of the innermost open `with` block, if that is a block of `dag`."""
    return _open[-1][1] if _open and _open[-1][0] is dag else None


def enter(dag: Graph[Any]) -> None:
    """Make `dag` the current one; every open `collect()` gets it."""
    _open.append((dag, None))
    for collected in _collectors:
        if not any(known is dag for known in collected):
            collected.append(dag)


def enter_group(group: Group) -> None:
    """Make `group`, and its DAG, the current one."""
    _open.append((group.dag, group))


def leave() -> None:
    """Close the innermost `with` block."""
    _open.pop()


def open_block() -> None:
    """From now on `made` collects the tasks between a setup and its teardown."""
    _blocks.append([])


def close_block() -> list[Node]:
    """The tasks made since the innermost `open_block`."""
    return _blocks.pop()


def made(*tasks: Node) -> None:
    """Put new tasks into the innermost open block."""
    if _blocks:
        _blocks[-1].extend(task for task in tasks if not any(known is task for known in _blocks[-1]))


@contextmanager
def collect() -> Iterator[list[Graph[Any]]]:
    """While open, the yielded list receives every DAG that is entered, also those no module variable names."""
    collected: list[Graph[Any]] = []
    _collectors.append(collected)
    try:
        yield collected
    finally:
        _collectors.remove(collected)
