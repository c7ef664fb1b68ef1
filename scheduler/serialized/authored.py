"""Serializes the DAG of an author."""

from collections import deque
from datetime import datetime, timedelta

from scheduler.authoring import timetable, weights
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.dag import DAG
from scheduler.authoring.setup_teardown import Scopes, setup_scopes
from scheduler.authoring.task_arguments import DEFAULT_POOL
from scheduler.operators import routing
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import Core, Scheduler


def from_dag(dag: DAG, *, file: str, core: Core, scheduler: Scheduler) -> SerializedDag:
    """Serialize a DAG. `file` is its path relative to the DAGs folder."""
    weight = weights.effective(dag)
    scopes = setup_scopes(dag)
    return SerializedDag(
        dag_id=dag.dag_id,
        file=file,
        schedule=timetable.configured(
            dag.schedule,
            dag.timetable,
            cron_intervals=scheduler.create_cron_data_intervals,
            delta_intervals=scheduler.create_delta_data_intervals,
        ).to_spec(),
        timezone=dag.timezone,
        description=dag.description,
        start_date=_iso(dag.start_date),
        end_date=_iso(dag.end_date),
        catchup=scheduler.catchup_by_default if dag.catchup is None else dag.catchup,
        max_active_runs=core.max_active_runs_per_dag if dag.max_active_runs is None else dag.max_active_runs,
        max_active_tasks=core.max_active_tasks_per_dag if dag.max_active_tasks is None else dag.max_active_tasks,
        is_paused_upon_creation=dag.is_paused_upon_creation,
        tags=tuple(sorted(dag.tags or ())),
        dagrun_timeout_s=_seconds(dag.dagrun_timeout),
        fail_fast=dag.fail_fast,
        max_consecutive_failed_dag_runs=(
            core.max_consecutive_failed_dag_runs_per_dag
            if dag.max_consecutive_failed_dag_runs is None
            else dag.max_consecutive_failed_dag_runs
        ),
        notify=dag.notify,
        params=dag.params_spec,
        deadlines=tuple(dag.deadline_specs),
        sla_miss_callback=dag.sla_miss_callback is not None,
        disable_bundle_versioning=dag.disable_bundle_versioning,
        rerun_with_latest_version=dag.rerun_with_latest_version,
        allowed_run_types=dag.allowed_run_types,
        groups=tuple(dag.group_specs),
        asset_names=dag.asset_names,
        tasks=tuple(_task(dag.task_dict[name], weight[name], scopes[name], core) for name in _topological(dag)),
    )


def _task(task: AbstractOperator, priority_weight: int, scopes: Scopes, core: Core) -> SerializedTask:
    retry_delay_s = _seconds(task.retry_delay)
    max_delay_s = _seconds(task.max_retry_delay)
    return SerializedTask(
        task_id=task.task_id,
        operator=task.operator_class.__name__,
        runtime=task.runtime,
        upstream=tuple(sorted(task.upstream_task_ids)),
        trigger_rule=str(task.trigger_rule),
        retries=core.default_task_retries if task.retries is None else task.retries,
        retry_delay_s=core.default_task_retry_delay if retry_delay_s is None else retry_delay_s,
        retry_exponential_backoff=float(task.retry_exponential_backoff),
        max_retry_delay_s=min(core.max_task_retry_delay, max_delay_s or core.max_task_retry_delay),
        execution_timeout_s=_seconds(task.execution_timeout),
        exclusive=task.exclusive,
        queue=task.queue or routing.default_queue(task, core),
        pool=task.pool,
        cluster=routing.cluster(task) if task.pool == DEFAULT_POOL else None,
        pool_slots=task.pool_slots,
        priority_weight=priority_weight,
        group=task.group_id,
        is_setup=task.is_setup,
        is_teardown=task.is_teardown,
        on_failure_fail_dagrun=task.on_failure_fail_dagrun,
        setups=tuple(scopes.setups),
        scope=tuple(scopes.between),
        expand=task.expand_spec,
        mapped_group=task.mapped_group_id,
        depends_on_past=task.depends_on_past or task.wait_for_downstream,
        wait_for_downstream=task.wait_for_downstream,
        ignore_first_depends_on_past=task.ignore_first_depends_on_past,
        wait_for_past_depends_before_skipping=task.wait_for_past_depends_before_skipping,
        start_date=_iso(task.start_date),
        end_date=_iso(task.end_date),
        max_active_tis_per_dag=task.max_active_tis_per_dag,
        max_active_tis_per_dagrun=task.max_active_tis_per_dagrun,
        notify=task.notify,
        email=task.email,
        sla_s=_seconds(task.sla),
        outlets=tuple(sorted(task.outlet_uris)),
        branches=task.branches,
    )


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


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
