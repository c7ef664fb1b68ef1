"""The task context of a try, made from its claim: Airflow's keys, and the `ti` through which XComs are read and written."""

import functools
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from celery.local import Proxy

from scheduler.authoring import context, xcom
from scheduler.authoring.operator import Operator
from scheduler.store.claims import Claim
from scheduler.store.hot import MISSING, HotPath

R = TypeVar("R")

#: Calls the database until it answers.
Patient = Callable[[Callable[[], R]], R]


class TaskInstance:
    """What user code gets as `ti`."""

    def __init__(self, claim: Claim, hot: HotPath, *, patient: Callable[[Callable[[], Any]], Any], max_xcom_bytes: int) -> None:
        self.task_id: str = claim.task_id
        self.dag_id: str = claim.dag_id
        self.run_id: str = claim.run_id
        self.try_number: int = claim.try_number
        self.max_tries: int = claim.max_tries
        self.map_index: int = claim.map_index
        self.start_date: datetime = claim.started_at
        self._claim = claim
        self._hot = hot
        self._patient = patient
        self._max_xcom_bytes = max_xcom_bytes

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
    )
