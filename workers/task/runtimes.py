"""The runtimes: each runs the user code of one kind of task, and explains its failures.

Those on Spark import the code of their tasks when they run first, so that a worker for plain tasks never loads PySpark.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from paceline.authoring import retry_policy, running, task_instance
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.deferral import TaskRescheduled, decode
from paceline.authoring.running import Context
from paceline.authoring.templates import Renderer
from paceline.exceptions import AirflowRescheduleException, DownstreamTasksSkipped, PacelineError, TaskStopped, TaskTimeout
from scheduler.process import extras
from scheduler.serialized.traits import traits
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim

#: Gives the `workers.spark.applications.jobs.Jobs` of a try, a type that only tasks on Spark load.
Jobs = Callable[[], Any]


class Runtime:
    """The runtime of an operator, chosen by `Operator.worker_runtime`: by default, plain Python code that runs in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.traits = traits(name)

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        """Run the operator with its context; its return value. Raises the exceptions of the user code.

        `jobs` gives the stored Spark applications and the progress of the try.
        """
        return run(operator, values)

    def explain(self, error: BaseException) -> str | None:
        """The cause of a failure in one sentence; None if the error itself is the best explanation."""
        return None

    def discard(self, claim: Claim, settings: Settings) -> None:
        """Delete the data that a try wrote, because its report names none of it. The next try deletes its XComs."""

    def close(self) -> None:
        """End what this process keeps between tasks."""


class PySpark(Runtime):
    """A Spark session of the task's own, usually in a warm JVM."""

    _has_run = False

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        from workers.spark.sessions import task

        self._has_run = True
        return task.run(operator, values, settings, jobs().reported, run)

    def explain(self, error: BaseException) -> str | None:
        from workers.spark.sessions import task

        if isinstance(error, ModuleNotFoundError):
            missing = extras.as_paceline_error(error, "A Spark task")
            return None if missing is None else f"{missing} Or send the task to a queue whose workers have it."
        return task.cause(error)

    def discard(self, claim: Claim, settings: Settings) -> None:
        from workers.spark import frames

        frames.discard(claim, settings)

    def close(self) -> None:
        if self._has_run:
            from workers.spark.sessions import session_pool

            session_pool.shutdown()


class SparkSubmit(Runtime):
    """An application with a driver of its own; the task follows it."""

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        from workers.spark.applications import submitter

        return submitter.run(operator, values, settings, jobs(), run)


class Unknown(Runtime):
    """A runtime that only a later release has. A retry may reach a worker of that release."""

    def run(self, operator: AbstractOperator, values: Context, settings: Settings, jobs: Jobs) -> object:
        raise PacelineError(
            f"This worker has no runtime {self.name!r}, which task {operator.task_id} needs: upgrade it to the release of the "
            "schedulers."
        )


_KINDS = {"python": Runtime, "bash": Runtime, "empty": Runtime, "pyspark": PySpark, "spark_submit": SparkSubmit}
#: By `Operator.worker_runtime`.
RUNTIMES = {name: kind(name) for name, kind in _KINDS.items()}


def of(name: str) -> Runtime:
    """The runtime with a name."""
    return RUNTIMES.get(name) or Unknown(name)


def close() -> None:
    """End what this process keeps between tasks."""
    for runtime in RUNTIMES.values():
        runtime.close()


def run(operator: AbstractOperator, values: Context) -> object:
    """Render the template fields, then execute; `get_current_context()` works inside both, and the label is rendered from it."""
    with running.current(values):
        try:
            result = _execute(operator, values)
        except Exception as error:
            with suppress(Exception):  # the task's own error is the one to report
                _label(operator, values)
            if (
                operator.retry_policy is not None
                and (decided := retry_policy.apply(operator.retry_policy, error, values)) is not error
            ):
                raise decided from error
            raise
        _label(operator, values)
        return result


def _execute(operator: AbstractOperator, values: Context) -> object:
    values["task"] = values["ti"].task = rendered = operator.render(values)
    values["ti"].rendered_fields = rendered.rendered_fields
    resume = values["ti"].resume or {}
    context = cast(task_instance.Context, values)
    try:
        # Also before a task continues after its trigger, as in Airflow.
        for hook in (*rendered.execute_hooks["pre_execute"], rendered.pre_execute):
            hook(context)
        goes_on = "method" in resume
        result = rendered.resume_execution(*_resume_call(resume), values) if goes_on else rendered.execute(context)
        for hook in (*rendered.execute_hooks["post_execute"], rendered.post_execute):
            hook(context, result)
    except AirflowRescheduleException as error:
        raise TaskRescheduled(max(0.0, (error.reschedule_date - values["ti"].now()).total_seconds()), resume) from None
    except DownstreamTasksSkipped as error:
        values["ti"].skip(error.tasks)
        result = None
    except BaseException as error:
        if _was_stopped(error):
            _kill(rendered)
        elif isinstance(error, Exception):
            _store_links(rendered, values)
        raise
    _store_links(rendered, values)
    return result


def _was_stopped(error: BaseException | None) -> bool:
    """Whether a timeout or a stop ended the task. Libraries such as py4j wrap it in an error of their own."""
    while error is not None and not isinstance(error, TaskTimeout | TaskStopped):
        error = error.__context__
    return error is not None


def _kill(operator: AbstractOperator) -> None:
    """Call `on_kill`, which ends everything that the operator started. The worker kills the process if that takes too long."""
    try:
        operator.on_kill()
    except Exception:
        operator.log.exception("on_kill() of task %s failed", operator.task_id)


def _store_links(operator: AbstractOperator, values: Context) -> None:
    """Push each extra link as an XCom with the key that Airflow uses, and log it."""
    for link in operator.operator_extra_links:
        try:
            address = link.get_link(operator, ti_key=values["ti"])
            values["ti"].xcom_push(key=link.xcom_key, value=address)
            operator.log.info("%s: %s", link.name, address)
        except Exception:
            operator.log.exception("The link %s of task %s cannot be created", type(link).__name__, operator.task_id)


def _label(operator: AbstractOperator, values: Context) -> None:
    """Name an instance of a mapped task by its map_index_template."""
    if operator.map_index_template is not None and values["ti"].map_index >= 0:
        renderer = Renderer(operator.dag, owner=f"Task {operator.task_id!r}")
        values["ti"].set_map_label(str(renderer.render(operator.map_index_template, values, "map_index_template")))


def _resume_call(resume: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method with which a deferred task continues, and its arguments."""
    if "error" in resume:
        return "__fail__", {"error": resume["error"]}
    if "event" not in resume:
        return "__timeout__", {}
    return resume["method"], {**decode(resume.get("kwargs") or {}), "event": decode(resume["event"])}
