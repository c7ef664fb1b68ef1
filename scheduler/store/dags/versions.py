"""A cache of DAG versions as objects: each is read once, since a version never changes. It drops the least recently used."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import UnreadableVersionError
from scheduler.serialized.dag import SerializedDag

MAX_CACHED = 512
#: Takes the ID of a version, which exists as long as a run or a DAG refers to it.
READ = """
select case when bundle_version_id is null then data else data || jsonb_build_object('bundle_version', bundle_version_id) end
  from dag_version where id = %s
"""


class Versions:
    """The DAG versions of one process. Threads may share it."""

    def __init__(self) -> None:
        self._dags: OrderedDict[int, SerializedDag] = OrderedDict()
        self._lock = threading.Lock()

    def dag(self, connection: Connection, version_id: int) -> SerializedDag:
        """The DAG of a version."""
        return self.get(version_id, lambda: connection.exec_driver_sql(READ, (version_id,)).scalar_one())

    def get(self, version_id: int, read: Callable[[], Any]) -> SerializedDag:
        """The DAG of a version; `read` returns its stored data if it is not cached. UnreadableVersionError."""
        dag = self._dags.get(version_id) or parsed(version_id, read())
        with self._lock:
            self._dags[version_id] = dag
            self._dags.move_to_end(version_id)
            if len(self._dags) > MAX_CACHED:
                self._dags.popitem(last=False)
        return dag


def parsed(version_id: int, data: Any) -> SerializedDag:
    """The DAG of the stored data of a version. UnreadableVersionError."""
    try:
        return SerializedDag.from_json(data)
    except Exception as error:  # stored data can be wrong in any way
        raise UnreadableVersionError(
            f"The stored DAG version {version_id} cannot be read ({type(error).__name__}: {error}):"
            " clear its runs with the newest version (`paceline runs clear DAG RUN --latest`), or mark them."
        ) from error
