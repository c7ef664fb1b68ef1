"""A batch of events, as the observers of the follower receive it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from paceline.exceptions import UnreadableVersionError
from paceline.states import STARTED, SUSPENDED
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.dags.versions import Versions
from scheduler.store.read.event_feed import Event, Started


@dataclass(frozen=True, slots=True)
class Batch:
    """New events in the order of their time, and the tries whose start is new. `behind_s` is how old the newest event may be."""

    connection: Connection
    versions: Versions
    events: Sequence[Event]
    starts: Sequence[Started | Event]
    behind_s: float

    def dag(self, version_id: int | None) -> SerializedDag | None:
        """A version of a DAG; None if it cannot be read any more."""
        if version_id is None:
            return None
        try:
            return self.versions.dag(self.connection, version_id)
        except UnreadableVersionError:
            return None

    def task(self, event: Started | Event) -> SerializedTask | None:
        """The task of an event; None if its version cannot be read."""
        dag = self.dag(event.version_id)
        if dag is None or event.task_no is None or event.task_no >= len(dag.tasks):
            return None
        return dag.tasks[event.task_no]


class Observer:
    """The base of observers, which receive each batch in the thread of the follower."""

    def observe_batch(self, batch: Batch) -> None:
        """Use a batch. This may query the connection, which reads only, but it may not wait for another server."""
        raise NotImplementedError

    def flush(self) -> None:
        """Called about once a second: send waiting data, without waiting for long."""

    def reader_left(self) -> None:
        """Called when another scheduler may read the next batches."""

    def close(self) -> None:
        """Called at the end of the process."""


def ends_try(event: Event) -> bool:
    """Whether a worker had the task instance until this event, and its try does not continue."""
    return event.from_state in STARTED and event.to_state not in STARTED | SUSPENDED


def index_of(event: Started | Event) -> int:
    """The map index; -1 if the task is not mapped."""
    return -1 if event.map_index is None else event.map_index
