"""The store port: the reads and writes of a try.

`DatabaseStore` in follow.py implements it in PostgreSQL, and `scheduler/testing/in_memory/store.py` in memory.
tests/integration/workers/task/test_store_conformance.py holds both to the same behavior.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from paceline.authoring import xcom
from paceline.authoring.asset import Asset, AssetEvent, EventReads
from paceline.authoring.context import SecretsBackend
from paceline.authoring.state_store import StateBackend
from paceline.authoring.triggers import Counts, Target
from scheduler.catalog.access import Access
from scheduler.serialized.dag import SerializedDag
from scheduler.settings.model import Core
from scheduler.store.dags import assets
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from scheduler.store.worker.external_jobs import Ask
from scheduler.store.worker.hot_path import HotPath
from scheduler.store.worker.xcoms import Source


def retention(core: Core) -> timedelta | None:
    """How long a value of a task is kept; None for as long as its run."""
    return timedelta(days=core.task_state_retention_days) or None


def encoded(key: str, value: Any, limit_bytes: int) -> str:
    """A value as JSON; XComError if it is none, or too large."""
    return xcom.encode(value, limit_bytes, name=f"value of the state {key!r}")


@dataclass(frozen=True, slots=True)
class StoredStates:
    """Over the connection of a pool process. StaleTryError for writes of a try that is not the current one."""

    core: Core
    claim: Claim
    hot: HotPath
    #: Repeats a call until the database answers.
    patient: Callable[[Callable[[], Any]], Any]

    @property
    def retention(self) -> timedelta | None:
        return retention(self.core)

    def get(self, uri: str | None, key: str, default: Any) -> Any:
        return self.patient(lambda: xcoms.get(self.hot, self.claim, uri, key, default=default))

    def set(self, uri: str | None, key: str, value: Any, expires_in_s: float | None) -> None:
        text = encoded(key, value, self.core.max_xcom_bytes)
        self.patient(lambda: xcoms.put(self.hot, self.claim, uri, key, text, expires_in_s=expires_in_s))

    def delete(self, uri: str | None, key: str | None) -> None:
        self.patient(lambda: xcoms.delete(self.hot, self.claim, uri, key))


@dataclass(frozen=True, slots=True)
class StoredEvents:
    """Asset events, which are read when user code accesses them."""

    claim: Claim
    hot: HotPath
    #: Repeats a call until the database answers.
    patient: Callable[[Callable[[], Any]], Any]

    def of_run(self) -> list[AssetEvent]:
        if self.claim.run_type != "asset_triggered":
            return []
        found: list[AssetEvent] = self.patient(lambda: assets.events_of_run(self.hot, self.claim.dag_run_id))
        return found

    def of_assets(self, uris: Sequence[str]) -> list[AssetEvent]:
        found: list[AssetEvent] = self.patient(lambda: assets.events_of_assets(self.hot, uris))
        return found

    def named(self, name: str) -> Asset:
        found: Asset = self.patient(lambda: assets.named(self.hot, name))
        return found


class Store(Protocol):
    """Writes of a try that is no longer the current one change nothing and raise StaleTryError."""

    def claim(self, ti_id: int, dispatch_id: str, worker_id: str, is_ours: Callable[[], bool] = ...) -> Claim | None:
        """Move queued to running for this dispatch. None if the task instance is not queued under it.

        A claim whose answer was lost is repeated. What an earlier attempt has claimed counts if it `is_ours`, and not of another
        process of this worker.
        """

    def dag(self, version_id: int) -> SerializedDag: ...

    def report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Reported | Refused:
        """Move running to the state of the ending, and decide the tasks below. Refused if the try is no longer the current one.

        With `next_in_place`, this process may continue with a task instance that is then running too: the answer has its claim.
        """

    def clear_xcoms(self, claim: Claim) -> None:
        """Delete the XComs of earlier tries."""

    def push_xcom(self, claim: Claim, key: str, json_text: str) -> None: ...

    def pull_xcom(self, claim: Claim, task_id: str, key: str, map_index: int, default: Any) -> Any:
        """Return the XCom of one task instance of the run, or `default`."""

    def pull_xcoms(self, claim: Claim, task_no: int, key: str) -> list[Any]:
        """Return the XComs of the instances of a mapped task, in map order, without instances that pushed none."""

    def pull_other(self, claim: Claim, source: Source, key: str, map_index: int | None) -> list[tuple[int, Any]]:
        """Return the XComs of a task in another run by map index: of one instance, or of all if `map_index` is None."""

    def count_entries(self, claim: Claim, task_no: int, key: str, *, is_mapped: bool) -> int | None:
        """Return the length of a list or dict, or the number of XComs of a mapped task. None if there is no list or dict."""

    def entry(self, claim: Claim, task_no: int, key: str, place: int, *, is_mapped: bool) -> Sequence[Any]:
        """Return the entry at `place` of the list or dict that `count_entries` counts, alone in a list. Empty if there is none.

        An entry of a dict is the pair [key, value].
        """

    def label(self, claim: Claim, text: str) -> None:
        """Set the display name of an instance of a mapped task."""

    def count_instances(self, claim: Claim) -> int:
        """Return the number of instances of the claimed mapped task."""

    def now(self) -> datetime: ...

    def count_states(self, targets: Sequence[Target]) -> list[Counts]:
        """Return the number of task instances (or runs) in each state, for each target."""

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        """Return the tasks of a DAG's newest version, each with its task groups; None if the DAG does not exist."""

    def is_paused(self, dag_id: str) -> bool:
        """Return whether a DAG is paused."""

    def trigger_run(
        self,
        claim: Claim,
        dag_id: str,
        *,
        run_id: str | None,
        logical_date: datetime | None,
        conf: Mapping[str, Any],
        reset: bool,
        adopt_unless: Collection[str] | None,
    ) -> str:
        """Create a run of another DAG, or clear the existing one with `reset`. Returns its run ID. See workers/task/context."""

    def first_start(self, claim: Claim, first_try: int) -> datetime:
        """Return when the try with this number, or the first one after it, started."""

    def previous_success(self, claim: Claim) -> Sequence[datetime | None] | None:
        """Return data interval, start and end of the last successful run of an earlier logical date. None if there is none."""

    def tables(self, claim: Claim) -> Access:
        """Return what the try needs to use the catalog of tables. Its success publishes what it has written."""

    def follow_tables(self, claim: Claim) -> None:
        """Let the try read what is current in the catalog of tables from now on, if it uses that."""

    def secrets(self, claim: Claim) -> SecretsBackend:
        """Return the variables and connections of the try."""

    def events(self, claim: Claim) -> EventReads:
        """Return the asset events that the try can read."""

    def state_backend(self, claim: Claim) -> StateBackend:
        """Return the state of the task instance and of assets."""

    @property
    def ask(self) -> Ask | None:
        """Sends a statement of a runtime, and returns its rows; None in memory."""
