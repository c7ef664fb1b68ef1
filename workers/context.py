"""The task context of a try, made from its claim: Airflow's keys, and the `ti` through which XComs are read and written."""

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
from scheduler.store.worker import external_runs, xcoms
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import MISSING, HotPath
from workers import other_runs, results
from workers.secrets_backend import StoreBackend
from workers.xcom_pull import XComPull

R = TypeVar("R")

MAX_LABEL_CHARACTERS = 250
#: Calls the database until it answers.
Patient = Callable[[Callable[[], R]], R]


class TaskInstance(XComPull):
    """What user code gets as `ti`."""

    def __init__(
        self,
        claim: Claim,
        dag: SerializedDag,
        hot: HotPath,
        *,
        patient: Callable[[Callable[[], Any]], Any],
        settings: Settings,
        branches: bool = False,
    ) -> None:
        self.task_id: str = claim.task_id
        self.dag_id: str = claim.dag_id
        self.run_id: str = claim.run_id
        #: The number that the database gave the run.
        self.run_key: int = claim.dag_run_id
        self.try_number: int = claim.try_number
        self.max_tries: int = claim.max_tries
        self.map_index: int = claim.map_index
        #: The Celery task id of this dispatch, under Airflow's name.
        self.external_executor_id: str = claim.dispatch_id
        self.start_date: datetime = claim.started_at
        self.resume: Mapping[str, Any] | None = claim.resume
        #: What the try decided to skip; None for what is no branch.
        self.skipped: tuple[str, ...] | None = () if branches else None
        super().__init__(dag, claim.task_no, claim.map_index)
        self._claim = claim
        self._hot = hot
        self._patient = patient
        self._settings = settings
        self._max_xcom_bytes = settings.core.max_xcom_bytes

    def pull_one(self, task_id: str, key: str, map_index: int, default: Any) -> Any:
        """What one instance pushed."""
        found = self._patient(lambda: self._hot.pull_xcom(self._claim.dag_run_id, task_id, key, map_index))
        return default if found is MISSING else found

    def pull_all(self, task_id: str, key: str) -> list[Any]:
        """What the instances of a mapped task pushed, in map order."""
        found: list[Any] = self._patient(lambda: xcoms.of_instances(self._hot.read, *self._place(task_id, key)))
        return found

    def xcom_entries(self, task_id: str, key: str) -> Sequence[Any]:
        """What a task pushed as a list or dict to map over (of a mapped task one entry an instance), read as it is used."""
        place, is_mapped = self._place(task_id, key), self.is_many(task_id)

        def length() -> int:
            found = self._patient(lambda: xcoms.length(self._hot.read, *place, is_mapped=is_mapped))
            if found is None:
                raise XComError(f"Task {task_id!r} has pushed no list or dict under {key!r} to map over.")
            return int(found)

        def entry(number: int) -> Any:
            found = self._patient(lambda: xcoms.entry(self._hot.read, *place, number, is_mapped=is_mapped))
            if not found:
                raise XComError(f"What task {task_id!r} pushed under {key!r} has no entry {number} any more; clear this task too.")
            return found[0]

        return Entries(length, entry)

    def set_map_label(self, label: str) -> None:
        """Give this instance of a mapped task a name for people."""
        self._patient(lambda: self._hot.label(self._claim, label[:MAX_LABEL_CHARACTERS]))

    def xcom_push(self, key: str, value: Any) -> None:
        """Store `value` (JSON) under `key` for this task instance."""
        results.check_mapped_over(self._dag, self._claim.task_no, {key: value}, self._settings.core.max_map_length)
        text = xcom.encode(value, self._max_xcom_bytes, name=f"value of XCom {key!r}")
        self._patient(lambda: self._hot.push_xcom(self._claim, key, text))

    def now(self) -> datetime:
        """The time on the database's clock."""
        found: datetime = self._patient(self._hot.now)
        return found

    def skip(self, task_ids: Iterable[str]) -> None:
        """If this try succeeds, skip these tasks below; only for operators with `branches = True`."""
        if self.skipped is None:
            raise PacelineError(f"Task {self.task_id!r} is no branch, so it cannot skip others; its class needs branches = True.")
        self.skipped = tuple(task_ids)

    def states(self, targets: Sequence[Target]) -> list[Counts]:
        """For each target how many task instances (or runs) are in which state."""
        found: list[Counts] = self._patient(lambda: external_runs.states(self._hot.read, self._hot.dag, targets))
        return found

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        """The tasks of a DAG's newest version, each with the groups it lies in; None if there is no such DAG."""
        found: Mapping[str, Sequence[str]] | None = self._patient(
            lambda: external_runs.describe(self._hot.read, self._hot.dag, dag_id)
        )
        return found

    def trigger_run(
        self,
        dag_id: str,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        conf: Mapping[str, Any] | None = None,
        reset: bool = False,
    ) -> str:
        """Make a run of another DAG, or with `reset` clear the one there is; its run id. NotFoundError, ConflictError."""
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
        """Of how many instances of a mapped task this is one; asked of the database once."""
        return self._instances

    def previous(self) -> dict[str, Any]:
        """PREVIOUS_KEYS, each asked of the database when a template or a function first uses it, and then at once for all."""

        @functools.cache
        def found() -> tuple[Any, ...]:
            date = self._claim.logical_date
            row = None if date is None else self._patient(lambda: self._hot.previous_success(self.dag_id, date))
            return row or (None,) * len(context.PREVIOUS_KEYS)

        return {key: Proxy(lambda place=place: found()[place]) for place, key in enumerate(context.PREVIOUS_KEYS)}

    def __repr__(self) -> str:
        return f"<TaskInstance {self.dag_id}.{self.task_id} {self.run_id} try {self.try_number}>"


class StoredEvents:
    """Updates of assets, read when user code looks at them."""

    def __init__(self, claim: Claim, hot: HotPath, patient: Callable[[Callable[[], Any]], Any]) -> None:
        self._claim = claim
        self._hot = hot
        self._patient = patient

    def of_run(self) -> list[AssetEvent]:
        if self._claim.run_type != "asset_triggered":
            return []
        found: list[AssetEvent] = self._patient(lambda: assets.events_of_run(self._hot.read, self._claim.dag_run_id))
        return found

    def of_assets(self, uris: Sequence[str]) -> list[AssetEvent]:
        found: list[AssetEvent] = self._patient(lambda: assets.events_of_assets(self._hot.read, uris))
        return found


def build(claim: Claim, operator: AbstractOperator, ti: TaskInstance) -> context.Context:
    """The context of the try that `claim` allows."""
    assert operator.dag is not None, "an operator that a DAG file gave belongs to a DAG"
    made = context.build(
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
        backend=StoreBackend(ti._settings, claim, ti._hot, ti._patient),
        conf_overrides_params=ti._settings.core.dag_run_conf_overrides_params,
        events=StoredEvents(claim, ti._hot, ti._patient),
    )
    return made if claim.map_index < 0 else made | {"expanded_ti_count": Proxy(ti.count_instances)}
