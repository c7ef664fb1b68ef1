"""Checks values over which other tasks are mapped when they are pushed, so that the task with the mistake fails."""

from collections.abc import Mapping
from typing import Any

from scheduler.deciding import expansion
from scheduler.exceptions import XComError
from scheduler.serialized.dag import SerializedDag


def check_mapped_over(dag: SerializedDag, task_no: int, pushed: Mapping[str, Any], most: int) -> None:
    """Raise XComError if a downstream task is mapped over one of the `pushed` values, and the value is unsuitable or too long.

    Any value of a mapped task is allowed, because each of its instances is one entry.
    """
    if task_no in dag.mapped:
        return
    task_id = dag.tasks[task_no].task_id
    readers = {
        key: dag.tasks[no].task_id
        for no in dag.downstream[task_no]
        for source, key in expansion.reads(dag.tasks[no].expand or {"inputs": []})
        if source == task_id
    }
    for key in readers.keys() & pushed.keys():
        value = pushed[key]
        name = "return value" if key == "return_value" else f"value of XCom {key!r}"
        if not isinstance(value, list | tuple | dict):
            kind = "None" if value is None else f"of type {type(value).__name__}"
            raise XComError(f"The {name} is {kind}, but task {readers[key]!r} is mapped over it; return a list or a dict.")
        if len(value) > most:
            raise XComError(
                f"The {name} has {len(value):,} entries, and task {readers[key]!r} is mapped over it; "
                f"{most:,} are allowed (core.max_map_length)."
            )
