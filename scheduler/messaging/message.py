"""The message that carries one task instance to a worker."""

from dataclasses import dataclass

#: The version of the format of messages. A release reads this version and older ones. A new format takes two releases: the first
#: one reads it, and the second one sends it, so that workers of the release before can read what schedulers send.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The message of a dispatch. It holds no secrets and is harmless when it arrives twice."""

    ti_id: int
    dispatch_id: str
    queue: str
    #: For display in Flower: dag.task and its run.
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    priority_weight: int = 1
