"""The task context of a try, made from its claim: Airflow's keys, and the `ti` through which XComs are read and written."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from celery.local import Proxy
from sqlalchemy.exc import DBAPIError

from scheduler.authoring import context, xcom
from scheduler.authoring.external import Counts, Target
from scheduler.authoring.operator import Operator
from scheduler.exceptions import PacelineError
from scheduler.settings import Settings
from scheduler.store import database, external, runs
from scheduler.store.claims import Claim
from scheduler.store.hot import MISSING, HotPath
from workers.vault import StoreVault

R = TypeVar("R")

#: Calls the database until it answers.
Patient = Callable[[Callable[[], R]], R]


class TaskInstance:
    """What user code gets as `ti`."""

    def __init__(
        self,
        claim: Claim,
        hot: HotPath,
        *,
        patient: Callable[[Callable[[], Any]], Any],
        settings: Settings,
        branches: bool = False,
    ) -> None:
        self.task_id: str = claim.task_id
        self.dag_id: str = claim.dag_id
        self.run_id: str = claim.run_id
        self.try_number: int = claim.try_number
        self.max_tries: int = claim.max_tries
        self.map_index: int = claim.map_index
        self.start_date: datetime = claim.started_at
        self.resume: Mapping[str, Any] | None = claim.resume
        #: What the try decided to skip; None for what is no branch.
        self.skipped: tuple[str, ...] | None = () if branches else None
        self._claim = claim
        self._hot = hot
        self._patient = patient
        self._settings = settings
        self._max_xcom_bytes = settings.core.max_xcom_bytes

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        key: str = "return_value",
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
    ) -> Any:
        """What the tasks pushed under `key`; a list if `task_ids` is one; `default` if nothing was pushed."""
        if task_ids is not None and not isinstance(task_ids, str):
            return [self.xcom_pull(one, key, map_indexes, default) for one in task_ids]
        task_id = self.task_id if task_ids is None else task_ids
        if map_indexes is not None and not isinstance(map_indexes, int):
            return [self._pull(task_id, key, index, default) for index in map_indexes]
        return self._pull(task_id, key, -1 if map_indexes is None else map_indexes, default)

    def xcom_push(self, key: str, value: Any) -> None:
        """Store `value` (JSON) under `key` for this task instance."""
        text = xcom.encode(value, self._max_xcom_bytes, name=f"value of XCom {key!r}")
        self._patient(lambda: self._hot.push_xcom(self._claim.id, key, text))

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
        found: list[Counts] = self._patient(lambda: external.states(self._hot.read, self._hot.dag, targets))
        return found

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        """The tasks of a DAG's newest version, each with the groups it lies in; None if there is no such DAG."""
        found: Mapping[str, Sequence[str]] | None = self._patient(lambda: external.describe(self._hot.read, self._hot.dag, dag_id))
        return found

    def trigger_run(
        self, dag_id: str, *, run_id: str | None = None, logical_date: datetime | None = None, conf: Mapping[str, Any] | None = None
    ) -> str:
        """Make a run of another DAG; its run id. NotFoundError if there is no such DAG, ConflictError if there is such a run."""
        # A connection of its own for a rare thing: the one of the hot path stays as it is.
        engine = database.create(self._settings, pool_size=1, application="paceline worker")

        def trigger() -> str:
            try:
                return runs.trigger(
                    engine,
                    dag_id,
                    run_id=run_id,
                    logical_date=logical_date,
                    conf=dict(conf or {}),
                    triggered_by=f"{self.dag_id}.{self.task_id}",
                    default_queue=self._settings.core.default_queue,
                ).run_id
            except DBAPIError as error:
                raise error.orig or error from None

        try:
            made: str = self._patient(trigger)
            return made
        finally:
            engine.dispose()

    def _pull(self, task_id: str, key: str, map_index: int, default: Any) -> Any:
        found = self._patient(lambda: self._hot.pull_xcom(self._claim.dag_run_id, task_id, key, map_index))
        return default if found is MISSING else found

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


def build(claim: Claim, operator: Operator, ti: TaskInstance) -> context.Context:
    """The context of the try that `claim` allows."""
    assert operator.dag is not None, "an operator that a DAG file gave belongs to a DAG"
    return context.build(
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
        vault=StoreVault(ti._settings, ti._hot, ti._patient),
        conf_overrides_params=ti._settings.core.dag_run_conf_overrides_params,
    )
