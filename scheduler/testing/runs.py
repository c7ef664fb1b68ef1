"""Runs a DAG, or one task of it, in this process: with the decisions of the engine, without a database, broker or workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.authoring import context, source, zones
from paceline.authoring import params as params_
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import Arguments
from paceline.authoring.dag import DAG
from paceline.exceptions import PacelineError
from paceline.testing.results import RunResult, TaskResult, key_of
from scheduler.serialized.authored import from_dag
from scheduler.settings import Settings, data_folder
from scheduler.testing.in_memory.run import MemoryRun
from scheduler.testing.in_memory.store import NO_NUMBER
from workers.task import execute


def prepare(
    dag: DAG,
    settings: Settings,
    *,
    file: str,
    logical_date: datetime | None = None,
    conf: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    run_id: str | None = None,
    run_type: str = "manual",
    data_interval: tuple[datetime, datetime] | None = None,
    retries: bool = False,
    partition_key: str | None = None,
) -> MemoryRun:
    """A run that has not begun. The logical date is by default now, and the data interval that moment. `params` add to `conf`.

    A time without a time zone is in core.default_timezone. ParamError if the conf does not fit the params; DagError if the DAG
    is not valid, or a time is no datetime.
    """
    dag.validate()
    plan = from_dag(dag, file=file, core=settings.core, scheduler=settings.scheduler)
    given = {**(conf or {}), **(params or {})}
    params_.check_size(given, settings.core.max_conf_bytes, dag_id=dag.dag_id)
    params_.check_names(plan.params, given, dag_id=dag.dag_id)
    params_.check(plan.params, given, dag_id=dag.dag_id, conf_overrides=settings.core.dag_run_conf_overrides_params)
    checks = Arguments(f"A run of DAG {dag.dag_id!r}", source.here())
    zones.set_default(settings.core.default_timezone)
    moment = datetime.now(UTC) if logical_date is None else checks.moment("logical_date", logical_date)
    start, end = (checks.moment("data_interval", one) for one in data_interval or (moment, moment))
    dag_run = context.DagRun(
        dag_id=dag.dag_id,
        run_id=run_id or f"test__{moment.astimezone(UTC).isoformat()}",
        run_type=run_type,
        logical_date=moment,
        data_interval_start=start,
        data_interval_end=end,
        start_date=datetime.now(UTC),
        run_after=moment,
        conf=given,
        partition_key=partition_key,
    )
    return MemoryRun(settings, dag, plan, dag_run, retries=retries)


def finished(settings: Settings, run: MemoryRun) -> Iterator[dict[str, Any]]:
    """Run to the end, and yield a row for each task instance when it ends. Deletes the DataFrames of the run afterwards."""
    os.environ["PACELINE_HOME"] = str(settings.home)
    try:
        yield from run.rows()
    finally:
        # The run is not in the database, so the returned DataFrames would never be deleted.
        data_folder.delete_run(settings.data_url, run.store.dag_run.dag_id, run.store.dag_run.run_id, NO_NUMBER)


def run_dag(dag: DAG, settings: Settings | None = None, *, file: str | None = None, **options: Any) -> RunResult:
    """Run a DAG to its end. `options` are those of `prepare`."""
    settings = settings or Settings.load(os.environ)
    run = prepare(dag, settings, file=file or Path(dag.fileloc).name, **options)
    rows = {key_of(row["task_id"], row["map_index"]): row for row in finished(settings, run)}
    errors = {name: run.error_of(row["task_id"], row["map_index"]) for name, row in rows.items()}
    return RunResult(
        dag_id=dag.dag_id,
        run_id=run.store.dag_run.run_id,
        state=str(run.state),
        order=list(rows),
        states={name: row["state"] for name, row in rows.items()},
        xcoms={name: row["result"] for name, row in rows.items() if row["result"] is not None},
        all_xcoms={name: row["xcoms"] for name, row in rows.items()},
        reasons={name: row["reason"] for name, row in rows.items() if row["reason"]},
        durations={name: row["took_s"] for name, row in rows.items()},
        errors={name: error for name, error in errors.items() if error is not None},
        triggered=run.store.triggered,
    )


def run_and_print(dag: DAG, *, logical_date: datetime | None, conf: Mapping[str, Any] | None) -> RunResult:
    """Run a DAG to its end, and print the state of each task: the entry point of `DAG.test`."""
    result = run_dag(dag, logical_date=logical_date, conf=conf)
    for name, state in result.states.items():
        print(f"{name}: {state}{': ' + result.reasons[name] if name in result.reasons else ''}")  # noqa: T201
    end_spark()
    return result


def run_task(task: Any, settings: Settings | None = None, *, xcoms: Mapping[str, Any] | None = None, **options: Any) -> TaskResult:
    """Run one task alone, as if all tasks upstream of it had succeeded. `task` is an operator or the result of a task.

    `xcoms` holds the return values of other tasks by task ID.
    `options` are those of `prepare`.
    """
    operator = operator_of(task)
    run = _before(operator, settings, xcoms=xcoms, **options)
    rows = list(run.rows_of(operator.task_id))
    first = rows[0]
    return TaskResult(
        task_id=operator.task_id,
        state=next((row["state"] for row in rows if row["state"] != "success"), first["state"]),
        result=[row["result"] for row in rows] if first["map_index"] >= 0 else first["result"],
        xcoms=first["xcoms"],
        reason=next((row["reason"] for row in rows if row["reason"]), ""),
        skipped=tuple(sorted(name for one in run.store.branched for name in one.skip)),
        error=run.errors[-1][1] if run.errors else None,
    )


def context_of(task: Any, settings: Settings | None = None, *, map_index: int = -1, **options: Any) -> dict[str, Any]:
    """The context that a task would get. `options` are those of `run_task`."""
    operator = operator_of(task)
    return _before(operator, settings, **options).context_of(operator, map_index)


def render_task(task: Any, settings: Settings | None = None, *, map_index: int = -1, **options: Any) -> dict[str, Any]:
    """The template fields of a task with their values. `options` are those of `run_task`. TemplateError if that fails."""
    values = context_of(task, settings, map_index=map_index, **options)
    rendered = values["task"].render(values)
    return {field: getattr(rendered, field) for field in rendered.template_fields}


def operator_of(task: Any) -> AbstractOperator:
    """The operator of a task, which may be given by its result. One that is in no DAG becomes the task of a new one.

    PacelineError if it is neither.
    """
    operator = getattr(task, "operator", task)
    if not isinstance(operator, AbstractOperator):
        raise PacelineError(f"A task is needed, not {task!r}; write dag.get_task('task_id').")
    if operator.dag is None:
        DAG("test_dag", schedule=None).add_task(operator)
    return operator


def end_spark() -> None:
    """End the Spark session that tasks of this process shared."""
    with contextlib.suppress(Exception):
        execute.close()


def _before(
    operator: AbstractOperator, settings: Settings | None, *, xcoms: Mapping[str, Any] | None = None, **options: Any
) -> MemoryRun:
    dag = operator.dag
    assert isinstance(dag, DAG)
    run = prepare(dag, settings or Settings.load(os.environ), file=Path(dag.fileloc).name, **options)
    upstream = operator.get_flat_relative_ids(upstream=True)
    values = dict(xcoms or {})
    for name in sorted(upstream | values.keys() - {operator.task_id}):
        dag.get_task(name)  # NotFoundError suggests the nearest ID
        run.store.end_as_given(run.store.plan.number[name], values.get(name))
    run.store.make_ready(run.store.plan.number[operator.task_id])
    return run
