"""The runtime of plain Python tasks, and the part that all runtimes share: render, then execute or resume."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from scheduler.authoring import running
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.deferral import decode
from scheduler.authoring.templates import Renderer
from scheduler.settings import Settings
from scheduler.store.worker.claims import Claim

#: Gives the `workers.spark.applications.jobs.Jobs` of a try, a type that only tasks on Spark load.
Jobs = Callable[[], Any]


class Runtime:
    """The runtime of an operator, chosen by `Operator.runtime`: by default, plain Python code that runs in this process."""

    #: Whether processes that the task started stay after it, such as a warm JVM.
    keeps_processes = False

    def run(self, operator: AbstractOperator, values: running.Context, settings: Settings, jobs: Jobs) -> object:
        """Run the operator with its context; its return value. Raises what the user code raises.

        `jobs` gives the stored Spark applications and the progress of the try.
        """
        return run(operator, values)

    def explain(self, error: BaseException) -> str | None:
        """The cause of a failure in one sentence; None if the error itself is the best explanation."""
        return None

    def discard(self, claim: Claim, settings: Settings) -> None:
        """Delete the data that a try wrote, because its report names none of it. The next try deletes its XComs."""


def run(operator: AbstractOperator, values: running.Context) -> object:
    """Render the template fields, then execute; `get_current_context()` works inside both, and is what the label is made from."""
    with running.current(values):
        try:
            result = _execute(operator, values)
        except Exception:
            with suppress(Exception):  # the task's own error is the one to report
                _label(operator, values)
            raise
        _label(operator, values)
        return result


def _execute(operator: AbstractOperator, values: running.Context) -> object:
    values["task"] = rendered = operator.render(values)
    values["ti"].rendered_fields = rendered.rendered_fields
    resume = values["ti"].resume or {}
    if "method" in resume:
        result = rendered.resume_execution(*_continuation(resume), values)
    else:
        rendered.pre_execute(values)
        result = rendered.execute(values)
    rendered.post_execute(values, result)
    return result


def _label(operator: AbstractOperator, values: running.Context) -> None:
    """Name an instance of a mapped task by its map_index_template."""
    if operator.map_index_template is not None and values["ti"].map_index >= 0:
        renderer = Renderer(operator.dag, owner=f"Task {operator.task_id!r}")
        values["ti"].set_map_label(str(renderer.render(operator.map_index_template, values, "map_index_template")))


def _continuation(resume: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method with which a deferred task continues, and its arguments."""
    if "error" in resume:
        return "__fail__", {"error": resume["error"]}
    if "event" not in resume:
        return "__timeout__", {}
    return resume["method"], {**decode(resume.get("kwargs") or {}), "event": decode(resume["event"])}
