"""Tasks that are plain Python, and the part that every kind of task shares: render, then execute or go on."""

from collections.abc import Mapping
from typing import Any

from scheduler.authoring import context
from scheduler.authoring.deferral import decode
from scheduler.authoring.operator import Operator


def run(operator: Operator, values: context.Context) -> object:
    """Render the template fields, then execute; `get_current_context()` works inside both."""
    with context.current(values):
        rendered = operator.render(values)
        values = {**values, "task": rendered}
        resume = values["ti"].resume or {}
        if "method" in resume:
            result = rendered.resume_execution(*_continuation(resume), values)
        else:
            rendered.pre_execute(values)
            result = rendered.execute(values)
        rendered.post_execute(values, result)
        return result


def _continuation(resume: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method a deferred task goes on with, and its arguments."""
    if "error" in resume:
        return "__fail__", {"error": resume["error"]}
    if "event" not in resume:
        return "__timeout__", {}
    return resume["method"], {**decode(resume.get("kwargs") or {}), "event": decode(resume["event"])}
