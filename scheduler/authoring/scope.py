"""Which DAG is being written: the `with DAG(...)` blocks that are open, and who collects the finished ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.authoring.dag import DAG

_open: list["DAG"] = []
_collectors: list[list["DAG"]] = []


def current_dag() -> "DAG | None":
    """The DAG of the innermost open `with` block."""
    return _open[-1] if _open else None


def enter(dag: "DAG") -> None:
    """Make `dag` the current one; every open `collect()` gets it."""
    _open.append(dag)
    for collected in _collectors:
        if not any(known is dag for known in collected):
            collected.append(dag)


def leave() -> None:
    """Close the innermost `with` block."""
    _open.pop()


@contextmanager
def collect() -> Iterator[list["DAG"]]:
    """While open, the yielded list receives every DAG that is entered, also those no module variable names."""
    collected: list[DAG] = []
    _collectors.append(collected)
    try:
        yield collected
    finally:
        _collectors.remove(collected)
