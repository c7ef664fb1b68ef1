"""The life of a task inside a pool process: message -> claim -> run -> classify -> report and follow."""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from billiard.einfo import ExceptionInfo
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception

from paceline.authoring import execution, xcom
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.running import Context
from paceline.authoring.xcom import RETURN_KEY
from paceline.exceptions import PacelineError
from paceline.states import TaskState
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask, Traits, traits
from scheduler.settings import Settings, log_paths
from scheduler.store.worker.claims import Claim, Ending, Refused, Reported
from scheduler.store.worker.external_jobs import Ask
from scheduler.store.worker.table_tries import NotPublishedError
from workers.process import logs, trace_properties
from workers.process.guard import Guard
from workers.process.logs import worker_log
from workers.supervision.slots import InPlaceSeries, Running, Slot
from workers.task import context, outcome
from workers.task.outcome import Defer, Fail, Outcome, Reschedule, Retry, Skip, Success, TryFailed
from workers.task.store import Store

if TYPE_CHECKING:
    from workers.task.elsewhere import Elsewhere

#: How long an exclusive task waits for the lease of its worker before it is entered as running. Must be shorter than the time
#: until it counts as lost.
LEASE_WAIT_S = 10.0
REFUSED = "the report was refused: this try is no longer the current one, or a stop was requested"
EMPTY = Ending(TaskState.SUCCESS)
#: Runs a dispatch in this pool process: with the IDs of a task instance and of the dispatch. None for one that was dropped.
Execute = Callable[[int, str], Outcome | None]

_execute: Execute | None = None
_must_be_replaced: Callable[[], bool] = bool


class ReplaceProcessError(SystemExit):
    """Ends a pool process after its last task. The argument is what `run` returns otherwise."""


def executes_with(execute: Execute, must_be_replaced: Callable[[], bool]) -> None:
    """Set the function that runs a dispatch in a pool process, before its first message.

    `must_be_replaced` returns whether the process must end after this dispatch.
    """
    global _execute, _must_be_replaced
    _execute, _must_be_replaced = execute, must_be_replaced


def run(ti_id: int, dispatch_id: str) -> tuple[int, object, float]:
    """Run the dispatch of a message. Returns a tuple for a Celery request: 1 on failure, the result or error, and seconds."""
    assert _execute is not None, "the process is prepared before its first message"
    started = time.monotonic()
    try:
        result = _execute(ti_id, dispatch_id)
        if isinstance(result, Fail | Retry):
            raise TryFailed(result.reason)
        ended: tuple[int, object, float] = (0, repr(None), time.monotonic() - started)
    except Exception:
        raised = ExceptionInfo()
        raised.exception = get_pickleable_exception(sys.exc_info()[1])
        raised.type = get_pickleable_etype(raised.type)
        ended = (1, raised, time.monotonic() - started)
    if _must_be_replaced():
        raise ReplaceProcessError(ended)
    return ended


@dataclass(slots=True)
class TryRunner:
    """All that one pool child keeps between tasks."""

    settings: Settings
    logs_folder: Path
    store: Store
    files: LoadedVersions
    slot: Slot
    guard: Guard
    log: logs.Log
    series: InPlaceSeries
    #: Runs the code of bundles with packages of their own; None if a setting allows none.
    elsewhere: "Elsewhere | None" = None

    def run(self, ti_id: int, dispatch_id: str) -> Outcome | None:
        """Run one dispatch to its report, then the tasks with which the report continues in place. The outcome of the last one.

        None for a dispatch that cannot be claimed (a duplicate) and is dropped.
        """
        self.slot.take(dispatch_id)
        try:
            worker_id = self.slot.worker_id
            claim = self._claim(ti_id, dispatch_id, worker_id)
            if claim is None:
                return None
            while True:
                self.slot.take(claim.dispatch_id, claim.id)
                result, following = self._run_claimed(claim, worker_id)
                if following is None:
                    return result
                claim = following
                self.series.go_on(claim)
                fault_points.point("continue.after")
        finally:
            self.slot.put_down()

    def must_be_replaced(self) -> bool:
        """Whether this process must run no more tasks."""
        return self.series.must_be_replaced

    def _claim(self, ti_id: int, dispatch_id: str, worker_id: str) -> Claim | None:
        self.series.begin(dispatch_id)
        fault_points.point("claim.before")
        claim = self.store.claim(ti_id, dispatch_id, worker_id, lambda: self.slot.is_ours(dispatch_id))
        if claim is None:
            # Or not yet: one queued before a crash of PostgreSQL is sent again in a while, see HotPath.claim.
            worker_log.info("dropped dispatch %s of task instance %s: it is not queued under it any more", dispatch_id, ti_id)
            return None
        fault_points.point("claim.after")
        return claim

    def _run_claimed(self, claim: Claim, worker_id: str) -> tuple[Outcome, Claim | None]:
        """Run the claimed task instance to its report. Also returns the claim of the next one in place."""
        dag = self.store.dag(claim.version_id)
        if claim.task_no >= len(dag.tasks):
            reason = f"the version of DAG {claim.dag_id} with which this run continues has no task {claim.task_id}"
            self.store.report(claim, Ending(TaskState.FAILED, reason=reason))
            return Fail(reason), None
        task = dag.tasks[claim.task_no]
        runtime = runtime_of(task.runtime)
        if not runtime.traits.has_code:
            return Success(), self._report(claim, dag, EMPTY).continues
        return self._run_logged(claim, dag, task, runtime, worker_id)

    def _run_logged(
        self, claim: Claim, dag: SerializedDag, task: SerializedTask, runtime: "Runtime", worker_id: str
    ) -> tuple[Outcome, Claim | None]:
        path = log_paths.try_path(
            self.logs_folder,
            dag_id=claim.dag_id,
            run_id=claim.run_id,
            task_id=claim.task_id,
            map_index=claim.map_index,
            try_number=claim.try_number,
        )
        started = time.monotonic()
        self.log.open(path, _header(claim, worker_id), claim)
        try:
            deadline = None if task.execution_timeout_s is None else started + task.execution_timeout_s
            if task.exclusive:
                # A worker that has just registered gets its lease with its first heartbeat.
                self.slot.await_lease(worker_id, LEASE_WAIT_S)
            running = Running(
                ti_id=claim.id, dispatch_id=claim.dispatch_id, pid=os.getpid(), log=path, deadline=deadline,
                exclusive=task.exclusive, worker=worker_id,
            )  # fmt: skip
            self.slot.enter(running if self.elsewhere is None else replace(running, deadline=None))
            try:
                fault_points.point("code.before")
                with self._exclusively(task, runtime, worker_id):
                    result = self.attempt(claim, dag, task, runtime, path, running=running)
                fault_points.point("code.after")
            finally:
                self.slot.leave()
            if self.guard.unfit is not None:
                self.series.retire()
                self.log.line(self.guard.unfit, "WARNING")
            # Before the report, so that the reason is in the log when the state is visible.
            self.log.line(_footer(result, time.monotonic() - started), "ERROR" if isinstance(result, Fail | Retry) else "INFO")
            try:
                answer = self._report(claim, dag, self._complete(_ending(result)))
            except NotPublishedError as error:
                result = outcome.of_error(error, outcome.Try(claim, task, dag.file))
                self.log.line(_footer(result, time.monotonic() - started), "ERROR")
                answer = self._report(claim, dag, self._complete(_ending(result)))
            if not answer.is_stored:
                self.log.line(REFUSED, "WARNING")
            if not (answer.is_stored and isinstance(result, Success)):
                runtime.discard(claim, self.settings)
            return result, answer.continues
        finally:
            self.log.close()

    def _complete(self, ending: Ending) -> Ending:
        """`ending`, with a note in its reason if lines are missing in the log, which may have no space for the note itself."""
        lost = self.log.lost
        if lost is None:
            return ending
        return replace(ending, reason="; ".join(filter(None, (ending.reason, log_paths.incomplete(lost)))))

    @contextlib.contextmanager
    def _exclusively(self, task: SerializedTask, runtime: "Runtime", worker_id: str) -> Iterator[None]:
        """Begin with a lease, and leave nothing running that the task started."""
        if not task.exclusive:
            yield
            return
        from workers.supervision import descendants

        # This fails only without a lease; then the worker ends this process.
        self.slot.await_lease(worker_id)
        with contextlib.nullcontext() if runtime.traits.keeps_processes else descendants.ended_after():
            yield

    def attempt(
        self,
        claim: Claim,
        dag: SerializedDag,
        task: SerializedTask,
        runtime: "Runtime",
        path: str,
        *,
        running: Running | None = None,
    ) -> Outcome:
        """Run user code, and turn its result or error into one value. The log is open, and the slot has `running`."""
        guarded = functools.partial(self.guard.run, why_stop=lambda: self.slot.take_stop(claim.dispatch_id))
        work: Callable[[], Outcome] = functools.partial(self._user_code, claim, dag, runtime, path)
        result: Outcome
        try:
            if self.elsewhere is not None and running is not None:
                # The time limit is for the code of the task, without the installation of its packages.
                process = guarded(functools.partial(self.elsewhere.process, dag), timeout_s=None)
                if task.execution_timeout_s is not None:
                    self.slot.enter(replace(running, deadline=time.monotonic() + task.execution_timeout_s))
                work = work if process is None else functools.partial(process.run, claim, path, running.worker)
            result = guarded(work, timeout_s=task.execution_timeout_s)
        except BaseException as error:
            cause = runtime.explain(error) or outcome.wrote_to_code(error, self.settings.bundles_folder)
            result = outcome.of_error(error, outcome.Try(claim, task, dag.file), cause)
            if isinstance(result, Fail | Retry):
                self.log.error(error)
        return result

    def _user_code(self, claim: Claim, dag: SerializedDag, runtime: "Runtime", path: str) -> Success:
        """The result of the task as JSON text, and the tasks that it skips; XComError if it is not JSON."""
        if claim.try_number > 1 and claim.resume is None:
            self.store.clear_xcoms(claim)
        # Most tasks are of the version of the task before.
        files = self.files.files if dag.bundle_version == self.files.version else self.files.of(dag.bundle_version)
        operator = files.task(dag.file, claim.dag_id, claim.task_id, (claim.version_id, dag.edges))
        values = context.build(claim, dag, operator, self.store, self.settings.core)
        ti = values["ti"]
        ti.log_url = log_paths.page_of_try(self.settings.flower.pages_url, claim) or path
        if self.settings.tracing.otlp_endpoint:
            trace_properties.enter(self.settings, ti)
        operator = values["task"] = context.decided(operator.unmap(values, claim.map_index), dag.tasks[claim.task_no], claim)
        try:
            value = runtime.run(operator, values, self.settings, claim, self.store.ask)
        finally:
            if ti.rendered_fields:
                logs.keep_rendered(path, ti.rendered_fields)
        if operator.outlets and (events := values["outlet_events"].to_xcom()):
            ti.xcom_push("outlet_events", events)
        # As in Airflow, a task that skips others has no result, unless it is an instance of a mapped task.
        skips = ti.skipped and claim.map_index < 0
        return Success(None if skips else self._stored(claim, dag, operator, value), ti.skipped)

    def _stored(self, claim: Claim, dag: SerializedDag, operator: AbstractOperator, value: object) -> str | None:
        """The JSON text of a return value; with multiple_outputs its parts are stored at once."""
        value = value if operator.do_xcom_push else None
        pushed = {} if value is None else xcom.outputs(value, multiple_outputs=operator.multiple_outputs)
        if claim.task_no in dag.above_mapped:
            context.check_mapped_over(dag, claim.task_no, {RETURN_KEY: None, **pushed}, self.settings.core.max_map_length)
        if not pushed:
            return None
        limit = self.settings.core.max_xcom_bytes
        texts = {
            key: xcom.encode(item, limit, name=f"value of XCom {key!r}" if key != RETURN_KEY else "return value")
            for key, item in pushed.items()
        }
        result = texts.pop(RETURN_KEY)
        for key, text in texts.items():
            self.store.push_xcom(claim, key, text)
        return result

    def _report(self, claim: Claim, dag: SerializedDag, ending: Ending) -> Reported | Refused:
        """Report the ending. The answer may have the claim of the next task in place.

        A process whose files user code has closed is about to die. The next task must not die with it.
        """
        return self.store.report(claim, ending, self.series.after(claim, dag, ending) if self.log.can_close else None)


def _ending(result: Outcome) -> Ending:
    match result:
        case Success(text, skip):
            return Ending(TaskState.SUCCESS, result=text, skip=skip)
        case Skip(reason):
            return Ending(TaskState.SKIPPED, reason=reason)
        case Retry(reason, delay_s):
            return Ending(TaskState.UP_FOR_RETRY, reason=reason, delay_s=delay_s)
        case Fail(reason):
            return Ending(TaskState.FAILED, reason=reason)
        case Reschedule(delay_s, resume):
            return Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=delay_s, resume=resume)
        case Defer(deferral, resume, timeout_s):
            return Ending(TaskState.DEFERRED, delay_s=timeout_s, resume=resume, deferral=deferral)


def _header(claim: Claim, worker_id: str) -> str:
    mapped = f"[{claim.map_index}]" if claim.map_index >= 0 else ""
    tries = f"try {claim.try_number} of {max(claim.max_tries + 1, claim.try_number)}"
    return f"{claim.dag_id}.{claim.task_id}{mapped}, run {claim.run_id}, {tries}, worker {worker_id}, dispatch {claim.dispatch_id}"


def _footer(result: Outcome, seconds: float) -> str:
    match result:
        case Success():
            return f"success after {seconds:.2f} s"
        case Skip(reason):
            return f"skipped: {reason}"
        case Retry(reason, delay_s):
            return f"up for retry in {delay_s:g} s: {reason}"
        case Fail(reason):
            return f"failed: {reason}"
        case Reschedule(delay_s):
            return f"not yet: up for reschedule in {delay_s:g} s"
        case Defer(deferral):
            return f"deferred to {deferral.classpath}"


class Runtime(Protocol):
    """Runs the user code of one kind of task, and explains its failures. See `Operator.worker_runtime`."""

    traits: Traits

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, claim: Claim, ask: Ask | None) -> object:
        """Run the operator with its context; its return value. Raises the exceptions of the user code.

        `ask` is that of the store of the try.
        """

    def explain(self, error: BaseException) -> str | None:
        """The cause of a failure in one sentence; None if the error itself is the best explanation."""

    def discard(self, claim: Claim, settings: Settings) -> None:
        """Delete the data that a try wrote, because its report names none of it. The next try deletes its XComs."""

    def close(self) -> None:
        """End what this process keeps between tasks."""


class Plain:
    """Plain Python code that runs in this process."""

    def __init__(self, name: str) -> None:
        self.traits = traits(name)

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, claim: Claim, ask: Ask | None) -> object:
        return execution.run(operator, values)

    def explain(self, error: BaseException) -> str | None:
        return None

    def discard(self, claim: Claim, settings: Settings) -> None:
        """The task wrote no DataFrames."""

    def close(self) -> None:
        """It keeps nothing."""


class Unknown(Plain):
    """A runtime that only a later release has. A retry may reach a worker of that release."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._name = name

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, claim: Claim, ask: Ask | None) -> object:
        raise PacelineError(
            f"This worker has no runtime {self._name!r}, which task {operator.task_id} needs: upgrade it to the release of the "
            "schedulers."
        )


#: Those on Spark join at the first task that has one.
RUNTIMES: dict[str, Runtime] = {name: Plain(name) for name in ("python", "bash", "empty")}


def runtime_of(name: str) -> Runtime:
    """The runtime with a name."""
    if name not in RUNTIMES and traits(name).on_spark:
        from workers.spark.runtimes import ON_SPARK

        RUNTIMES.update(ON_SPARK)
    return RUNTIMES.get(name) or Unknown(name)


def close() -> None:
    """End what this process keeps between tasks."""
    for runtime in RUNTIMES.values():
        runtime.close()
