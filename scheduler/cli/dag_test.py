"""Run a DAG in this process: tasks in topological order, XComs in memory, no database, no broker, no workers."""

import asyncio
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from scheduler import serialized
from scheduler.authoring import context, params, xcom, zones
from scheduler.authoring.dag import DAG
from scheduler.authoring.deferral import TaskDeferred, TaskRescheduled, encode, first_event
from scheduler.authoring.external import Counts, Target
from scheduler.authoring.operator import Operator
from scheduler.dagfiles import load, problem
from scheduler.dagfiles.watch import Watch
from scheduler.deciding import evaluate, rules
from scheduler.exceptions import DagError, NotFoundError, PacelineError, SkipTask
from scheduler.serialized import SerializedDag
from scheduler.settings import Settings
from scheduler.states import TaskState
from workers.vault import EnvironmentVault

XComs = dict[tuple[str, str], str]


@dataclass(slots=True)
class TaskInstance:
    """What user code gets as `ti`: XComs live in a dict, as JSON, so that what a worker refuses is refused here."""

    task_id: str
    dag_id: str
    run_id: str
    xcoms: XComs
    max_xcom_bytes: int
    try_number: int = 1
    max_tries: int = 0
    map_index: int = -1
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))
    resume: dict[str, Any] | None = None
    skipped: tuple[str, ...] = ()

    def now(self) -> datetime:
        """The time on this machine's clock."""
        return datetime.now(UTC)

    def skip(self, task_ids: Iterable[str]) -> None:
        """Skip these tasks below."""
        self.skipped = tuple(task_ids)

    def states(self, targets: Sequence[Target]) -> list[Counts]:
        """There is no other DAG here."""
        raise PacelineError(f"`paceline dags test` has no database, so it cannot look at DAG {targets[0].dag_id!r}.")

    def describe_dag(self, dag_id: str) -> None:
        """There is no other DAG here."""

    def trigger_run(self, dag_id: str, **_: Any) -> str:
        """There is no other DAG here."""
        raise PacelineError(f"`paceline dags test` has no database, so it cannot trigger DAG {dag_id!r}.")

    def xcom_pull(
        self,
        task_ids: str | Iterable[str] | None = None,
        key: str = "return_value",
        map_indexes: int | Iterable[int] | None = None,
        default: Any = None,
    ) -> Any:
        """What the tasks pushed under `key`; a list if `task_ids` is one; `default` if nothing was pushed."""
        if task_ids is not None and not isinstance(task_ids, str):
            return [self.xcom_pull(task_id, key, map_indexes, default) for task_id in task_ids]
        text = self.xcoms.get((task_ids or self.task_id, key))
        return default if text is None else xcom.decode(text)

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep `value` (JSON) under `key` for the tasks after this one."""
        self.xcoms[self.task_id, key] = xcom.encode(value, self.max_xcom_bytes, name=f"value of XCom {key!r}")


def run(settings: Settings, dag_id: str, *, logical_date: datetime, conf: dict[str, Any], quiet: bool = False) -> dict[str, Any]:
    """Run the DAG of the DAGs folder and return its state and, by task, state, seconds, result and reason.

    `quiet` keeps stdout free of what tasks print. NotFoundError, or DagError if the file cannot be loaded.
    """
    dag, file = find(settings, dag_id)
    plan = serialized.from_dag(dag, file=file, core=settings.core, scheduler=settings.scheduler)
    params.check(plan.params, conf, dag_id=dag_id, conf_overrides=settings.core.dag_run_conf_overrides_params)
    os.environ["PACELINE_HOME"] = str(settings.home)
    dag_run = context.DagRun(
        dag_id=dag_id,
        run_id=f"test__{logical_date.astimezone(UTC).isoformat()}",
        run_type="manual",
        logical_date=logical_date,
        data_interval_start=logical_date,
        data_interval_end=logical_date,
        start_date=datetime.now(UTC),
        run_after=logical_date,
        conf=conf,
    )
    tasks = []
    with _spark_ended_afterwards(), contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout):
        for row in _each(settings, dag, plan, dag_run):
            if not quiet:
                click.echo(f"{row['task_id']}: {row['state']}{': ' + row['reason'] if row['reason'] else ''}")
            tasks.append(row)
    ended = {no: {-1: TaskState(row["state"])} for no, row in enumerate(tasks)}
    return {"dag_id": dag_id, "run_id": dag_run.run_id, "state": str(evaluate.run_state(plan, ended)), "tasks": tasks}


def find(settings: Settings, dag_id: str) -> tuple[DAG, str]:
    """The DAG and its file in the DAGs folder; files that mention the id are read first."""
    zones.set_default(settings.core.default_timezone)
    folder = settings.dags_folder
    listing = Watch(folder, list_interval_s=1).look()
    if listing is None:
        raise NotFoundError(f"The DAGs folder {folder} cannot be read: correct PACELINE_DAGS_FOLDER.")
    failed: dict[str, str] = {}
    for file in sorted(listing.files, key=lambda file: (not _mentions(folder / file, dag_id), file)):
        try:
            dags = load.load(folder, file)
        except (Exception, SystemExit) as error:
            limit_mb = settings.scheduler.dag_file_memory_limit_mb
            failed[file] = problem.of_exception(error, folder / file, memory_limit_mb=limit_mb).message
            continue
        if dag_id in dags:
            return dags[dag_id], file
    for file, message in failed.items():
        if _mentions(folder / file, dag_id):
            raise DagError(f"{folder / file}, which mentions {dag_id!r}, cannot be read: {message}")
    raise NotFoundError(f"No file in {folder} defines a DAG {dag_id!r}: correct the id, or PACELINE_DAGS_FOLDER.")


def _mentions(path: Path, dag_id: str) -> bool:
    with contextlib.suppress(OSError):
        return dag_id.encode() in path.read_bytes()
    return False


def _each(settings: Settings, dag: DAG, plan: SerializedDag, dag_run: context.DagRun) -> Iterator[dict[str, Any]]:
    xcoms: XComs = {}
    ended: dict[str, TaskState] = {}
    skipped: dict[str, str] = {}
    for task in plan.tasks:
        verdict = rules.decide(task.trigger_rule, rules.Upstream.of(ended[name] for name in task.upstream))
        started = time.monotonic()
        state, reason = verdict.state or TaskState.UPSTREAM_FAILED, verdict.reason
        if task.task_id in skipped:
            state, reason = TaskState.SKIPPED, f"{skipped[task.task_id]} decided to skip it"
        if state == TaskState.SCHEDULED:
            operator = dag.task_dict[task.task_id]
            ti = TaskInstance(task.task_id, dag.dag_id, dag_run.run_id, xcoms, settings.core.max_xcom_bytes)
            values = context.build(
                dag=dag,
                task=operator,
                ti=ti,
                dag_run=dag_run,
                vault=EnvironmentVault(os.environ),
                conf_overrides_params=settings.core.dag_run_conf_overrides_params,
            )
            state, reason = _try(settings, operator, ti, values)
            skipped |= dict.fromkeys(ti.skipped if state == TaskState.SUCCESS else (), task.task_id)
        ended[task.task_id] = state
        result = xcoms.get((task.task_id, "return_value"))
        yield {
            "task_id": task.task_id,
            "state": state.value,
            "took_s": round(time.monotonic() - started, 3),
            "result": None if result is None else xcom.decode(result),
            "reason": reason,
        }


def _try(settings: Settings, operator: Operator, ti: TaskInstance, values: context.Context) -> tuple[TaskState, str]:
    """One try: how it ended and, unless well, why."""
    from workers.runtimes import spark

    try:
        on_spark = operator.runtime == "pyspark"
        value = spark.run(operator, values, settings) if on_spark else _run_through(operator, ti, values)
        if operator.do_xcom_push and value is not None:
            for key, part in xcom.outputs(value, multiple_outputs=operator.multiple_outputs).items():
                ti.xcom_push(key, part)
    except SkipTask as skip:
        return TaskState.SKIPPED, str(skip)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return TaskState.FAILED, f"{type(error).__name__}: {error}"
    return TaskState.SUCCESS, ""


def _run_through(operator: Operator, ti: TaskInstance, values: context.Context) -> object:
    """Run a task to its end: what waits without a worker elsewhere waits here."""
    from workers.runtimes import python

    while True:
        try:
            return python.run(operator, values)
        except TaskRescheduled as later:
            time.sleep(later.delay_s)
            ti.resume = later.resume
        except TaskDeferred as deferred:
            ti.resume = {"method": deferred.method_name, "kwargs": encode(deferred.kwargs, "kwargs of defer()")}
            with contextlib.suppress(TimeoutError):
                event = asyncio.run(asyncio.wait_for(first_event(deferred.trigger), deferred.timeout_s))
                ti.resume["event"] = encode(event, "the event")


@contextlib.contextmanager
def _spark_ended_afterwards() -> Iterator[None]:
    try:
        yield
    finally:
        if "workers.runtimes.spark" in sys.modules:
            from workers.runtimes import spark

            spark.shutdown()
