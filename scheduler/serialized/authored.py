"""Serializes the DAG of an author."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, TypeVar

from paceline.authoring import task_arguments, task_group, timetable
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.asset import TABLE
from paceline.authoring.dag import DAG
from paceline.authoring.operator import MappedOperator
from paceline.authoring.setup_teardown import Scopes, setup_scopes
from paceline.authoring.task_arguments import DEFAULT_POOL
from scheduler.serialized.dag import SerializedDag, param_order
from scheduler.serialized.tasks import SerializedTask, traits
from scheduler.settings import Core, Scheduler

#: Spark's units of memory in MiB; a number without a unit is MiB for spark.executor.memory.
_UNITS = {"b": 1 / 2**20, "k": 1 / 2**10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}
#: A local master with its number of threads.
_LOCAL = re.compile(r"local\[(\d+)[],]")
_MEMORY = re.compile(r"(\d+)\s*([bkmgtp])?b?", re.IGNORECASE)


def default_queue(task: AbstractOperator, core: Core) -> str | None:
    """The queue of a Spark task without a queue of its own; None for other tasks."""
    if not traits(task.worker_runtime).on_spark:
        return None
    return core.heavy_spark_queue if is_heavy(arguments(task), core) else core.default_spark_queue


def cluster(task: AbstractOperator) -> str | None:
    """The connection ID of the cluster or Connect server of a Spark task. A pool with the same name limits that cluster."""
    if not traits(task.worker_runtime).on_spark:
        return None
    given = arguments(task).get("conn_id")
    return given if isinstance(given, str) else getattr(task.operator_class, "conn_id_default", None)


def is_heavy(given: Mapping[str, Any], core: Core) -> bool:
    """Whether these arguments of a Spark operator have `heavy`, or a driver or executors at or above a limit of the settings."""
    if given.get("heavy"):
        return True
    conf = given.get("conf")
    conf = conf if isinstance(conf, Mapping) else {}
    memory, cores = (
        max(measure(given.get(f"{part}_{size}") or conf.get(f"spark.{part}.{size}")) for part in ("driver", "executor"))
        for size, measure in (("memory", megabytes), ("cores", _whole))
    )
    threads = _LOCAL.match(str(given.get("master") or conf.get("spark.master")))
    cores = max(cores, int(threads[1]) if threads else 0)
    return (0 < core.heavy_spark_memory_mb <= memory) or (0 < core.heavy_spark_cores <= cores)


def megabytes(text: object) -> float:
    """A Spark size (512m, 8g, 1024) in MiB; 0 for any other text, such as a template."""
    size = _MEMORY.fullmatch(str(text).strip()) if text is not None else None
    return 0.0 if size is None else int(size[1]) * _UNITS[(size[2] or "m").lower()]


def arguments(task: AbstractOperator) -> dict[str, Any]:
    """The arguments of a Spark task; for a mapped task, the arguments that all instances share."""
    if isinstance(task, MappedOperator):
        return task.given
    names = ("heavy", "driver_memory", "executor_memory", "executor_cores", "master", "conn_id")
    values = {name: getattr(task, name, None) for name in names}
    return values | {"conf": getattr(task, "spark_conf", None) or getattr(task, "conf", None)}


def _whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0


S = TypeVar("S", SerializedDag, SerializedTask)


def from_dag(dag: DAG, *, file: str, core: Core, scheduler: Scheduler, defaulted_variables: tuple[str, ...] = ()) -> SerializedDag:
    """Serialize a DAG. `file` is its path relative to the DAGs folder."""
    weight = task_arguments.effective_priorities(dag)
    scopes = setup_scopes(dag)
    return _like(
        dag,
        SerializedDag,
        file=file,
        schedule=timetable.configured(
            dag.schedule,
            dag.timetable,
            cron_intervals=scheduler.create_cron_data_intervals or dag.has_airflow_2_dates,
            delta_intervals=scheduler.create_delta_data_intervals or dag.has_airflow_2_dates,
        ).to_spec(),
        start_date=_iso(dag.start_date),
        end_date=_iso(dag.end_date),
        catchup=scheduler.catchup_by_default if dag.catchup is None else dag.catchup,
        max_active_runs=core.max_active_runs_per_dag if dag.max_active_runs is None else dag.max_active_runs,
        max_active_tasks=core.max_active_tasks_per_dag if dag.max_active_tasks is None else dag.max_active_tasks,
        tags=tuple(sorted(dag.tags or ())),
        owners=tuple(sorted({str(task.owner) for task in dag.task_dict.values()})),
        doc_md=_text(dag.doc_md),
        dagrun_timeout_s=_seconds(dag.dagrun_timeout),
        max_consecutive_failed_dag_runs=(
            core.max_consecutive_failed_dag_runs_per_dag
            if dag.max_consecutive_failed_dag_runs is None
            else dag.max_consecutive_failed_dag_runs
        ),
        params=dag.params_spec,
        param_order=param_order(dag.params_spec),
        deadlines=tuple(alert.to_spec() for alert in dag.deadline),
        sla_miss_callback=dag.sla_miss_callback is not None,
        groups=tuple(group.spec for group in dag.task_group_dict.values()),
        defaulted_variables=defaulted_variables,
        bundle_version=None,
        tasks=tuple(_task(dag.task_dict[name], weight[name], scopes[name], core) for name in _topological(dag)),
    )


def _task(task: AbstractOperator, priority_weight: int, scopes: Scopes, core: Core) -> SerializedTask:
    retry_delay_s = _seconds(task.retry_delay)
    max_delay_s = _seconds(task.max_retry_delay)
    return _like(
        task,
        SerializedTask,
        operator=task.operator_class.__name__,
        upstream=tuple(sorted(task.upstream_task_ids)),
        trigger_rule=str(task.trigger_rule),
        retries=core.default_task_retries if task.retries is None else task.retries,
        retry_delay_s=core.default_task_retry_delay if retry_delay_s is None else retry_delay_s,
        retry_exponential_backoff=float(task.retry_exponential_backoff),
        max_retry_delay_s=min(core.max_task_retry_delay, max_delay_s or core.max_task_retry_delay),
        execution_timeout_s=_seconds(task.execution_timeout),
        owner=str(task.owner),
        doc_md=_text(task.doc_md),
        queue=task.queue or default_queue(task, core),
        cluster=cluster(task) if task.pool == DEFAULT_POOL else None,
        priority_weight=priority_weight,
        group=task.parent_group_id,
        runtime=task.worker_runtime,
        notify=task.noticed_events,
        setups=scopes.setups,
        scope=scopes.between,
        expand=task.expand_spec,
        mapped_group=task.mapped_group_id,
        loop_gate=task_group.gate_of(task),
        depends_on_past=task.depends_on_past or task.wait_for_downstream,
        start_date=_iso(task.start_date),
        end_date=_iso(task.end_date),
        sla_s=_seconds(task.sla),
        outlets=tuple(sorted(task.outlet_uris)),
        lineage=_lineage(task),
    )


def _lineage(task: AbstractOperator) -> dict[str, Any] | None:
    """The tables that a task reads, and the sources of the columns that its SQL writes, as JSON."""
    inputs = sorted(asset.uri for asset in task.inlets if asset.uri.startswith(TABLE))
    columns = {
        name: {column: [list(source) for source in sources] for column, sources in of_table.items()}
        for name, of_table in getattr(task, "sql_columns", {}).items()
    }
    found = {"inputs": inputs, "columns": columns}
    return {name: value for name, value in found.items() if value} or None


def _like(source: object, kind: type[S], **given: Any) -> S:
    """A `kind` with the given fields; every other field has the value of the attribute of `source` with its name."""
    names = (field.name for field in fields(kind) if field.name not in given)
    return kind(**{name: getattr(source, name) for name in names}, **given)


def _topological(dag: DAG) -> list[str]:
    """The tasks in topological order by Kahn's algorithm with a FIFO queue, so that tasks of one level are neighbors."""
    waits_for = {name: len(task.upstream_task_ids) for name, task in dag.task_dict.items()}
    ready = deque(name for name, count in waits_for.items() if count == 0)
    order = []
    position = {name: place for place, name in enumerate(dag.task_dict)}
    while ready:
        name = ready.popleft()
        order.append(name)
        for below in sorted(dag.task_dict[name].downstream_task_ids, key=position.__getitem__):
            waits_for[below] -= 1
            if waits_for[below] == 0:
                ready.append(below)
    return order


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
