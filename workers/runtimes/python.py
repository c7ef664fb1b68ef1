"""Calls the operator of a task, in any runtime: renders it, then executes or resumes it."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from scheduler.authoring import running
from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.deferral import decode
from scheduler.authoring.templates import Renderer


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
