"""The message that carries one task instance to a worker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A task instance on its way to a worker: nothing secret, and harmless when it arrives twice."""

    ti_id: int
    dispatch_id: str
    queue: str
    #: What people read in Flower: dag.task and its run.
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    priority_weight: int = 1
