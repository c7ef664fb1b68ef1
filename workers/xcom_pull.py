"""`ti.xcom_pull`: selects the tasks and instances whose XComs are read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scheduler.serialized.dag import SerializedDag


@dataclass(eq=False, repr=False)
class XComPull:
    """The part of a `ti` that reads XComs. Subclasses implement the access to them."""

    _dag: SerializedDag
    _task_no: int
    _map_index: int

    def pull_one(self, task_id: str, key: str, map_index: int, default: Any) -> Any:
        """Return the XCom of one task instance, or `default`."""
        raise NotImplementedError

    def pull_all(self, task_id: str, key: str) -> list[Any]:
        """Return the XComs of the instances of a mapped task, in map order, without instances that pushed none."""
        raise NotImplementedError

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        key: str = "return_value",
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
    ) -> Any:
        """Return the value that a task pushed under `key`, or `default`. Returns a list of values if `task_ids` is a list.

        For a mapped task, it returns all values. In the same mapped group, it returns the value of the own instance.
        """
        if task_ids is not None and not isinstance(task_ids, str):
            return [self.xcom_pull(each, key, map_indexes, default) for each in task_ids]
        task_id = self._dag.tasks[self._task_no].task_id if task_ids is None else task_ids
        if map_indexes is not None and not isinstance(map_indexes, int):
            return [self.pull_one(task_id, key, index, default) for index in map_indexes]
        if map_indexes is not None:
            return self.pull_one(task_id, key, map_indexes, default)
        if task_ids is not None and self.is_many(task_id):
            return self.pull_all(task_id, key)
        return self.pull_one(task_id, key, self._index_in(task_id), default)

    def is_many(self, task_id: str) -> bool:
        """Whether the task is mapped and not in the mapped group of this task."""
        no = self._dag.number.get(task_id)
        return no is not None and self._dag.tasks[no].is_mapped and not self._is_peer(no)

    def _index_in(self, task_id: str) -> int:
        """Return the own map index for this task and tasks of the same mapped group, or -1 for others."""
        no = self._dag.number.get(task_id)
        return self._map_index if no == self._task_no or (no is not None and self._is_peer(no)) else -1

    def _is_peer(self, no: int) -> bool:
        group = self._dag.tasks[self._task_no].mapped_group
        return group is not None and self._dag.tasks[no].mapped_group == group
