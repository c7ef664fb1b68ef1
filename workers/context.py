"""The task context of a try, built from its claim: Airflow's keys, and the `ti` that reads and writes XComs."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from celery.local import Proxy

from scheduler.authoring import context, xcom
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.asset_events import AssetEvent
from scheduler.authoring.external import Counts, Target
from scheduler.authoring.xcom_sequence import Entries
from scheduler.exceptions import PacelineError, XComError
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags import assets
from scheduler.store.worker import dispatches, external_runs, xcoms
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.worker_connection import WorkerConnection
from workers import other_runs, results
from workers.secrets_backend import StoreBackend
from workers.xcom_pull import XComPull

R = TypeVar("R")

MAX_LABEL_CHARACTERS = 250
#: Retries a call of the database until it answers.
Patient = Callable[[Callable[[], R]], R]


class TaskInstance(XComPull):
    """The task instance that user code receives as `ti`."""

    def __init__(
        self,
        claim: Claim,
        dag: SerializedDag,
        hot: WorkerConnection,
        *,
        patient: Callable[[Callable[[], Any]], Any],
        settings: Settings,
        branches: bool = False,
    ) -> None:
        self.task_id: str = claim.task_id
        self.dag_id: str = claim.dag_id
        self.run_id: str = claim.run_id
        #: The number of the run in the database.
        self.run_key: int = claim.dag_run_id
        self.try_number: int = claim.try_number
        self.max_tries: int = claim.max_tries
        self.map_index: int = claim.map_index
        #: The Celery task ID of this dispatch, under Airflow's name.
        self.external_executor_id: str = claim.dispatch_id
        self.start_date: datetime = claim.started_at
        self.resume: Mapping[str, Any] | None = claim.resume
        #: The tasks that this branch skips; None if the task is not a branch.
        self.skipped: tuple[str, ...] | None = () if branches else None
        super().__init__(dag, claim.task_no, claim.map_index)
        self._claim = claim
        self._hot = hot
        self._patient = patient
        self._settings = settings
        self._max_xcom_bytes = settings.core.max_xcom_bytes

    def pull_one(self, task_id: str, key: str, map_index: int, default: Any) -> Any:
        """Return the XCom of one task instance, or `default`."""
        value = self._patient(lambda: xcoms.pull(self._hot, self._claim.dag_run_id, task_id, key, map_index))
        return default if value is xcoms.MISSING else value

    def pull_all(self, task_id: str, key: str) -> list[Any]:
        """Return the XComs of the instances of a mapped task, in map order."""
        values: list[Any] = self._patient(lambda: xcoms.of_instances(self._hot, *self._place(task_id, key)))
        return values

    def xcom_entries(self, task_id: str, key: str) -> Sequence[Any]:
        """Return the entries of a list or dict that a task pushed, or one entry for each instance of a mapped task.

        Each entry is read when it is used.
        """
        place, is_mapped = self._place(task_id, key), self.is_many(task_id)

        def length() -> int:
            size = self._patient(lambda: xcoms.length(self._hot, *place, is_mapped=is_mapped))
            if size is None:
                raise XComError(f"Task {task_id!r} has pushed no list or dict under {key!r} to map over.")
            return int(size)

        def entry(number: int) -> Any:
            row = self._patient(lambda: xcoms.entry(self._hot, *place, number, is_mapped=is_mapped))
            if not row:
                raise XComError(f"The XCom {key!r} of task {task_id!r} has no entry {number} any more; clear this task too.")
            return row[0]

        return Entries(length, entry)

    def set_map_label(self, label: str) -> None:
        """Set the display name of this instance of a mapped task."""
        self._patient(lambda: dispatches.label(self._hot, self._claim, label[:MAX_LABEL_CHARACTERS]))

    def xcom_push(self, key: str, value: Any) -> None:
        """Store `value` (JSON) under `key` for this task instance."""
        results.check_mapped_over(self._dag, self._claim.task_no, {key: value}, self._settings.core.max_map_length)
        text = xcom.encode(value, self._max_xcom_bytes, name=f"value of XCom {key!r}")
        self._patient(lambda: xcoms.push(self._hot, self._claim, key, text))

    def now(self) -> datetime:
        """Return the time of the database's clock."""
        moment: datetime = self._patient(self._hot.now)
        return moment

    def skip(self, task_ids: Iterable[str]) -> None:
        """Skip these downstream tasks if this try succeeds. Only for operators with `branches = True`."""
        if self.skipped is None:
            raise PacelineError(
                f"Task {self.task_id!r} is not a branch, so it cannot skip others; set branches = True in its class."
            )
        self.skipped = tuple(task_ids)

    def states(self, targets: Sequence[Target]) -> list[Counts]:
        """Return the number of task instances (or runs) in each state, for each target."""
        counts: list[Counts] = self._patient(lambda: external_runs.states(self._hot.read, self._hot.dag, targets))
        return counts

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        """Return the tasks of a DAG's newest version, each with its task groups; None if the DAG does not exist."""
        groups: Mapping[str, Sequence[str]] | None = self._patient(
            lambda: external_runs.describe(self._hot.read, self._hot.dag, dag_id)
        )
        return groups

    def trigger_run(
        self,
        dag_id: str,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        conf: Mapping[str, Any] | None = None,
        reset: bool = False,
    ) -> str:
        """Create a run of another DAG, or clear the existing one with `reset`. Returns its run ID.

        NotFoundError if the DAG does not exist; ConflictError if the run exists.
        """
        return other_runs.trigger(
            self._settings,
            dag_id,
            run_id=run_id,
            logical_date=logical_date,
            conf=conf or {},
            reset=reset,
            claim=self._claim,
            now=self.now,
            patient=self._patient,
        )

    def _place(self, task_id: str, key: str) -> tuple[int, int, str]:
        return self._claim.dag_run_id, self._dag.number[task_id], key

    @functools.cached_property
    def _instances(self) -> int:
        place = ([0], [self._claim.dag_run_id], [self._claim.task_no])
        return sum(row[2] for row in self._patient(lambda: self._hot.read(external_runs.INSTANCES, place)))

    def count_instances(self) -> int:
        """Return the number of instances of this mapped task. It is read from the database once."""
        return self._instances

    def previous(self) -> dict[str, Any]:
        """Return lazy values for PREVIOUS_KEYS. The first use of one of them reads all from the database."""

        @functools.cache
        def values() -> tuple[Any, ...]:
            date = self._claim.logical_date
            row = None if date is None else self._patient(lambda: external_runs.previous_success(self._hot.read, self.dag_id, date))
            return row or (None,) * len(context.PREVIOUS_KEYS)

        return {key: Proxy(lambda index=index: values()[index]) for index, key in enumerate(context.PREVIOUS_KEYS)}

    def __repr__(self) -> str:
        return f"<TaskInstance {self.dag_id}.{self.task_id} {self.run_id} try {self.try_number}>"


class StoredEvents:
    """Asset events, which are read when user code accesses them."""

    def __init__(self, claim: Claim, hot: WorkerConnection, patient: Callable[[Callable[[], Any]], Any]) -> None:
        self._claim = claim
        self._hot = hot
        self._patient = patient

    def of_run(self) -> list[AssetEvent]:
        if self._claim.run_type != "asset_triggered":
            return []
        events: list[AssetEvent] = self._patient(lambda: assets.events_of_run(self._hot.read, self._claim.dag_run_id))
        return events

    def of_assets(self, uris: Sequence[str]) -> list[AssetEvent]:
        events: list[AssetEvent] = self._patient(lambda: assets.events_of_assets(self._hot.read, uris))
        return events


def build(claim: Claim, operator: AbstractOperator, ti: TaskInstance) -> context.Context:
    """Build the context of the try that was claimed."""
    assert operator.dag is not None, "an operator of a DAG file belongs to a DAG"
    values = context.build(
        dag=operator.dag,
        task=operator,
        ti=ti,
        dag_run=context.DagRun(
            dag_id=claim.dag_id,
            run_id=claim.run_id,
            run_type=claim.run_type,
            logical_date=claim.logical_date,
            data_interval_start=claim.data_interval_start,
            data_interval_end=claim.data_interval_end,
            start_date=claim.run_started_at,
            run_after=claim.run_after,
            conf=claim.conf,
        ),
        previous=ti.previous(),
        backend=StoreBackend(settings=ti._settings, claim=claim, hot=ti._hot, patient=ti._patient),
        conf_overrides_params=ti._settings.core.dag_run_conf_overrides_params,
        events=StoredEvents(claim, ti._hot, ti._patient),
    )
    return values if claim.map_index < 0 else values | {"expanded_ti_count": Proxy(ti.count_instances)}
