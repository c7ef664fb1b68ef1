"""Setup and teardown tasks: which setups a task needs, and what a teardown waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.authoring.dag import DAG


@dataclass(frozen=True, slots=True)
class Scopes:
    """Of one task: the setups that must have succeeded, and for a teardown the tasks between its setups and itself."""

    setups: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def setup_scopes(dag: DAG) -> dict[str, Scopes]:
    """The Scopes of every task of `dag`, by task_id."""
    return {task_id: Scopes() for task_id in dag.task_dict}
