"""The neighbors of a task or a task group in its DAG."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from paceline.authoring.source import fault
from paceline.exceptions import DagCycleError


class Relatives:
    """A task or a task group, of which the upstream and downstream tasks can be listed. The names are those of Airflow."""

    __slots__ = ()

    if TYPE_CHECKING:
        dag: Any
        upstream_task_ids: set[str]
        downstream_task_ids: set[str]

    @property
    def node_id(self) -> str:
        """The ID of the task or of the group."""
        raise NotImplementedError

    @property
    def dag_id(self) -> str:
        """The ID of its DAG; "_in_memory_dag_" without one, as in Airflow."""
        return self.dag.dag_id if self.dag is not None else "_in_memory_dag_"

    @property
    def log(self) -> logging.Logger:
        """A logger with the name of the class. Its lines while a task runs are in the log of the task."""
        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    def has_dag(self) -> bool:
        return self.dag is not None

    def get_dag(self) -> Any:
        return self.dag

    @property
    def upstream_list(self) -> list[Any]:
        """The direct upstream tasks."""
        return self._tasks(self.upstream_task_ids)

    @property
    def downstream_list(self) -> list[Any]:
        """The direct downstream tasks."""
        return self._tasks(self.downstream_task_ids)

    def get_direct_relative_ids(self, upstream: bool = False) -> set[str]:
        """The IDs of the direct downstream tasks, or of the direct upstream tasks."""
        return self.upstream_task_ids if upstream else self.downstream_task_ids

    def get_direct_relatives(self, upstream: bool = False) -> list[Any]:
        """The direct downstream tasks, or the direct upstream tasks."""
        return self._tasks(self.get_direct_relative_ids(upstream))

    def get_flat_relative_ids(self, *, upstream: bool = False, depth: int | None = None) -> set[str]:
        """The IDs of all tasks downstream (or upstream) of this one, at most `depth` edges away."""
        tasks = {} if self.dag is None else self.dag.task_dict
        relatives: set[str] = set()
        added = self.get_direct_relative_ids(upstream)
        while added and (depth is None or depth > 0):
            relatives |= added
            added = {other for name in added for other in tasks[name].get_direct_relative_ids(upstream)} - relatives
            depth = None if depth is None else depth - 1
        return relatives

    def get_flat_relatives(self, upstream: bool = False) -> list[Any]:
        """All tasks downstream (or upstream) of this one."""
        return self._tasks(self.get_flat_relative_ids(upstream=upstream))

    def _tasks(self, task_ids: Iterable[str]) -> list[Any]:
        """The tasks with these IDs, in order of definition."""
        if self.dag is None:
            return []
        wanted = set(task_ids)
        return [task for name, task in self.dag.task_dict.items() if name in wanted]


class TaskLists:
    """A DAG, of which the tasks can be listed. The names are those of Airflow."""

    if TYPE_CHECKING:
        task_dict: dict[str, Any]
        task_group_dict: dict[str, Any]
        edge_labels: dict[tuple[str, str], str]

        def add_task(self, task: Any) -> None: ...

    @property
    def roots(self) -> list[Any]:
        """The tasks without an upstream task."""
        return [task for task in self.task_dict.values() if not task.upstream_task_ids]

    @property
    def leaves(self) -> list[Any]:
        """The tasks without a downstream task."""
        return [task for task in self.task_dict.values() if not task.downstream_task_ids]

    def topological_sort(self) -> list[Any]:
        """All tasks, each after its upstream tasks."""
        return [self.task_dict[name] for name in sorted_by_edges({n: t.upstream_task_ids for n, t in self.task_dict.items()})]

    def has_task(self, task_id: str) -> bool:
        return task_id in self.task_dict

    def has_task_group(self, task_group_id: str) -> bool:
        return task_group_id in self.task_group_dict

    def add_tasks(self, tasks: Iterable[Any]) -> None:
        for task in tasks:
            self.add_task(task)

    def get_edge_info(self, upstream_task_id: str, downstream_task_id: str) -> dict[str, str]:
        """The label of an edge as {"label": ...}; empty if it has none."""
        label = self.edge_labels.get((upstream_task_id, downstream_task_id))
        return {} if label is None else {"label": label}


def sorted_by_edges(upstream: Mapping[str, Iterable[str]]) -> list[str]:
    """The IDs, each after its upstream IDs, and otherwise in the given order. DagCycleError if they form a cycle."""
    sorter = TopologicalSorter({name: sorted(above) for name, above in upstream.items()})
    try:
        return list(sorter.static_order())
    except CycleError as error:
        raise fault(f"The tasks form a cycle: {' -> '.join(reversed(error.args[1]))}.", kind=DagCycleError) from None
