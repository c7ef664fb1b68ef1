"""A batch of events, as the observers of the follower receive it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection

from scheduler.exceptions import UnreadableVersionError
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.dags.versions import Versions
from scheduler.store.queries.event_feed import Event, Started


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

    def task(self, one: Started | Event) -> SerializedTask | None:
        """The task of an event; None if its version cannot be read."""
        dag = self.dag(one.version_id)
        if dag is None or one.task_no is None or one.task_no >= len(dag.tasks):
            return None
        return dag.tasks[one.task_no]


class Observer(Protocol):
    """Receives each batch, in the thread of the follower."""

    def observe_batch(self, batch: Batch) -> None:
        """Take what it needs of a batch. It may query the connection, which reads only, but it may not wait for another server."""

    def flush(self) -> None:
        """Called each second or so: pass on what waits, without waiting for long."""

    def reader_left(self) -> None:
        """Another scheduler may read the next batches."""

    def close(self) -> None:
        """The process ends."""
