"""The task context of a try, built from its claim: Airflow's keys, and the `ti` that reads and writes XComs."""

import copy
import functools
import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn

from celery.local import Proxy

from paceline.authoring import context, running, xcom
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.task_group import LoopContext
from paceline.authoring.task_instance import lacks
from paceline.authoring.triggers import Counts, Target
from paceline.authoring.xcom_arg import Entries
from paceline.exceptions import PacelineError, XComError
from paceline.states import TaskState
from scheduler.deciding import expansion
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings.model import Core
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.xcoms import Source
from workers.task.store import Store

MAX_LABEL_CHARACTERS = 250


class _Many(list[Any]):
    """The values of several instances of a mapped task."""


class TaskInstance:
    """The task instance that user code receives as `ti`. Its methods are described in authoring/task_instance."""

    def __init__(self, claim: Claim, dag: SerializedDag, store: Store, core: Core, *, branches: bool = False) -> None:
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
        self.end_date: datetime | None = None
        self.state: str = TaskState.RUNNING
        self.queue: str = claim.queue
        self.pool: str = claim.pool
        #: The operator, once its templates are rendered with their results.
        self.task: AbstractOperator | None = None
        #: The log of this try.
        self.log_url = ""
        self.resume: Mapping[str, Any] | None = claim.resume
        #: The tasks that this branch skips; None if the task is not a branch.
        self.skipped: tuple[str, ...] | None = () if branches else None
        #: The results of templates by field.
        self.rendered_fields: Mapping[str, Any] = {}
        self._claim = claim
        self._dag = dag
        self._store = store
        self._core = core

    @property
    def hostname(self) -> str:
        return socket.gethostname()

    @property
    def duration(self) -> float:
        return (self.now() - self.start_date).total_seconds()

    @property
    def is_mapped(self) -> bool:
        """Whether it is an instance of a mapped task."""
        return self.map_index >= 0

    @property
    def key(self) -> "TaskInstance":
        """Itself: it has the attributes of Airflow's key, such as dag_id and try_number."""
        return self

    @property
    def dag_run(self) -> Any:
        """The run, as `dag_run` of the context."""
        return self.get_template_context()["dag_run"]

    def get_dagrun(self) -> Any:
        """The run, under its name in Airflow 2."""
        return self.dag_run

    @property
    def logical_date(self) -> datetime | None:
        """The logical date of the run."""
        date: datetime | None = self.get_template_context().get("logical_date")
        return date

    execution_date = logical_date

    @property
    def operator(self) -> str | None:
        """The name of the class of the operator."""
        return None if self.task is None else self.task.task_type

    @property
    def task_display_name(self) -> str:
        """The name for display of the task."""
        return self.task_id if self.task is None else self.task.task_display_name

    @property
    def priority_weight(self) -> int:
        """The weight of the task with those of the tasks around it."""
        return self._claim.priority_weight

    @property
    def pid(self) -> int:
        """The number of the process of this try."""
        return os.getpid()

    def __getattr__(self, name: str) -> NoReturn:
        raise lacks("A task instance, ti,", name)

    def get_template_context(self) -> context.Context:
        return running.get_current_context()

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        dag_id: str | None = None,
        key: str = "return_value",
        include_prior_dates: bool = False,
        *,
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
        run_id: str | None = None,
    ) -> Any:
        where = None
        if dag_id not in (None, self.dag_id) or run_id not in (None, self.run_id) or include_prior_dates:
            date = self._claim.logical_date or self._claim.run_after or self.start_date
            where = Source(dag_id or self.dag_id, run_id or self.run_id, "", include_prior_dates, date)

        def of_one(task_id: str | None) -> Any:
            if map_indexes is not None and not isinstance(map_indexes, int):
                return _Many(self._pull(task_id, key, index, default, where) for index in map_indexes)
            return self._pull(task_id, key, map_indexes, default, where)

        if task_ids is None or isinstance(task_ids, str):
            value = of_one(task_ids)
            return list(value) if isinstance(value, _Many) else value
        values: list[Any] = []
        for task_id in task_ids:
            value = of_one(task_id)
            values.extend(value if isinstance(value, _Many) else [value])
        return values

    def _pull(self, task_ids: str | None, key: str, map_index: int | None, default: Any, where: Source | None) -> Any:
        """The value of one task; _Many for all those of a mapped task."""
        task_id = self.task_id if task_ids is None else task_ids
        is_many = map_index is None and task_ids is not None and self.is_many(task_id)
        if where is not None:
            is_own = where.dag_id == self.dag_id and task_id in self._dag.number and not is_many
            index = self._index_in(task_id) if map_index is None and is_own else map_index
            found = self._store.pull_other(self._claim, replace(where, task_id=task_id), key, index)
            is_many = index is None and any(at >= 0 for at, _ in found)
            return _Many(value for _, value in found) if is_many else next((value for _, value in found), default)
        if is_many:
            return _Many(self._store.pull_xcoms(self._claim, self._dag.number[task_id], key))
        return self._store.pull_xcom(
            self._claim, task_id, key, self._index_in(task_id) if map_index is None else map_index, default
        )

    def is_many(self, task_id: str) -> bool:
        """Whether the task is mapped and not in the mapped group of this task."""
        no = self._dag.number.get(task_id)
        return no is not None and self._dag.tasks[no].is_mapped and not self._is_peer(no)

    def xcom_entries(self, task_id: str, key: str) -> Sequence[Any]:
        no, is_mapped = self._dag.number[task_id], self.is_many(task_id)

        def length() -> int:
            size = self._store.count_entries(self._claim, no, key, is_mapped=is_mapped)
            if size is None:
                raise XComError(f"Task {task_id!r} has pushed no list or dict under {key!r} to map over.")
            return size

        def entry(place: int) -> Any:
            entries = self._store.entry(self._claim, no, key, place, is_mapped=is_mapped)
            if not entries:
                raise XComError(f"The XCom {key!r} of task {task_id!r} has no entry {place} any more; clear this task too.")
            return entries[0]

        return Entries(length, entry)

    def set_map_label(self, label: str) -> None:
        self._store.label(self._claim, label[:MAX_LABEL_CHARACTERS])

    def xcom_push(self, key: str, value: Any) -> None:
        check_mapped_over(self._dag, self._claim.task_no, {key: value}, self._core.max_map_length)
        self._store.push_xcom(self._claim, key, xcom.encode(value, self._core.max_xcom_bytes, name=f"value of XCom {key!r}"))

    async def axcom_pull(self, *args: Any, **kwargs: Any) -> Any:
        """`xcom_pull` for coroutines. It waits for the database, which takes about a millisecond."""
        return self.xcom_pull(*args, **kwargs)

    async def axcom_push(self, key: str, value: Any) -> None:
        self.xcom_push(key, value)

    def now(self) -> datetime:
        return self._store.now()

    def skip(self, task_ids: Iterable[str]) -> None:
        if self.skipped is None:
            raise PacelineError(
                f"Task {self.task_id!r} is not a branch, so it cannot skip others; set branches = True in its class."
            )
        self.skipped = tuple(task_ids)

    @functools.cached_property
    def catalog(self) -> Any:
        """The tables, as a catalog of pyiceberg. What is written with it appears when this task succeeds.

        NoTablesError where tables are off.
        """
        access = self._store.tables(self._claim)
        from pyiceberg.catalog import load_catalog

        return load_catalog(access.catalog, **access.properties)

    def follow_tables(self) -> None:
        """Read what is current in the catalog from now on, and not the tables as of the start of the try: for a streaming query."""
        self._store.follow_tables(self._claim)

    def states(self, targets: Sequence[Target]) -> list[Counts]:
        return self._store.count_states(targets)

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        return self._store.describe_dag(dag_id)

    def first_start(self, retries: int) -> datetime:
        first = self.max_tries - retries + 1
        return self._store.first_start(self._claim, first) if first < self.try_number else self.start_date

    def is_paused(self, dag_id: str) -> bool:
        return self._store.is_paused(dag_id)

    def trigger_run(
        self,
        dag_id: str,
        *,
        run_id: str | None = None,
        logical_date: datetime | None = None,
        conf: Mapping[str, Any] | None = None,
        reset: bool = False,
        adopt_unless: Collection[str] | None = None,
    ) -> str:
        return self._store.trigger_run(
            self._claim, dag_id, run_id=run_id, logical_date=logical_date, conf=conf or {}, reset=reset, adopt_unless=adopt_unless
        )

    @functools.cached_property
    def _instances(self) -> int:
        return self._store.count_instances(self._claim)

    def count_instances(self) -> int:
        """Return the number of instances of this mapped task. It is read only once."""
        return self._instances

    @functools.cached_property
    def _previous(self) -> Sequence[Any]:
        moments = self._store.previous_success(self._claim) or (None,) * len(context.PREVIOUS_KEYS)
        return [context.in_utc(moment) for moment in moments]

    def previous(self) -> dict[str, Any]:
        """Return lazy values for PREVIOUS_KEYS. The first use of one of them reads all."""

        def value(index: int) -> Any:
            return self._previous[index]

        return {key: Proxy(value, (index,)) for index, key in enumerate(context.PREVIOUS_KEYS)}

    def _index_in(self, task_id: str) -> int:
        """Return the own map index for this task and tasks of the same mapped group, or -1 for others."""
        no = self._dag.number.get(task_id)
        return self.map_index if no == self._claim.task_no or (no is not None and self._is_peer(no)) else -1

    def _is_peer(self, no: int) -> bool:
        group = self._dag.tasks[self._claim.task_no].mapped_group
        return group is not None and self._dag.tasks[no].mapped_group == group

    def __repr__(self) -> str:
        return f"<TaskInstance {self.dag_id}.{self.task_id} {self.run_id} try {self.try_number}>"


def build(claim: Claim, dag: SerializedDag, operator: AbstractOperator, store: Store, core: Core) -> context.Context:
    """Build the context of the try that was claimed."""
    assert operator.dag is not None, "an operator of a DAG file belongs to a DAG"
    ti = TaskInstance(claim, dag, store, core, branches=operator.branches)
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
            # A claim in place shares its conf with the task before, whose code may have changed it.
            conf=copy.deepcopy(claim.conf),
            partition_key=claim.partition_key,
            partition_date=claim.partition_date,
        ),
        previous=ti.previous(),
        backend=store.secrets(claim),
        conf_overrides_params=core.dag_run_conf_overrides_params,
        events=store.events(claim),
        states=store.state_backend(claim),
    )
    if (gate := dag.tasks[claim.task_no].loop_gate) is not None:
        (terminal,) = dag.tasks[dag.number[gate]].upstream
        values["loop"] = LoopContext(claim.map_index + 1, ti.count_instances(), ti, terminal)
    return values if claim.map_index < 0 else values | {"expanded_ti_count": Proxy(ti.count_instances)}


def decided(operator: AbstractOperator, task: SerializedTask, claim: Claim) -> AbstractOperator:
    """The operator with the values that its author left to the settings, so that code and templates can read them."""
    values = {"retries": task.retries, "retry_delay": timedelta(seconds=task.retry_delay_s), "queue": claim.queue}
    left = {name: value for name, value in values.items() if getattr(operator, name) is None}
    if left:
        operator = copy.copy(operator)  # other runs share it, and their version may have other settings
        vars(operator).update(left)
    return operator


def check_mapped_over(dag: SerializedDag, task_no: int, pushed: Mapping[str, Any], most: int) -> None:
    """Raise XComError if a downstream task is mapped over one of the `pushed` values, and the value is unsuitable or too long.

    Any value of a mapped task is allowed, because each of its instances is one entry.
    """
    if task_no in dag.mapped:
        return
    task_id = dag.tasks[task_no].task_id
    readers = {
        key: dag.tasks[no].task_id
        for no in dag.downstream[task_no]
        for source, key in expansion.reads(dag.tasks[no].expand or {"inputs": []})
        if source == task_id
    }
    for key in readers.keys() & pushed.keys():
        name = "return value" if key == "return_value" else f"value of XCom {key!r}"
        value = xcom.plain(pushed[key], name)
        if not isinstance(value, list | tuple | dict):
            kind = "None" if value is None else f"of type {type(value).__name__}"
            raise XComError(f"The {name} is {kind}, but task {readers[key]!r} is mapped over it; return a list or a dict.")
        if len(value) > most:
            raise XComError(
                f"The {name} has {len(value):,} entries, and task {readers[key]!r} is mapped over it; "
                f"{most:,} are allowed (core.max_map_length)."
            )
