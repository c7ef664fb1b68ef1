"""Executes an operator: one try of a task as its author sees it, from the rendering of its templates to `post_execute`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

from paceline.authoring import retry_policy as retry_policies
from paceline.authoring import running
from paceline.authoring.deferral import TaskRescheduled, decode
from paceline.authoring.templates import Renderer, Templated
from paceline.exceptions import (
    AirflowRescheduleException,
    DownstreamTasksSkipped,
    PacelineError,
    TaskDeferralError,
    TaskDeferralTimeout,
    TaskDeferred,
    TaskStopped,
    TaskTimeout,
)  # fmt: skip

if TYPE_CHECKING:
    from paceline.authoring.task_instance import Context


@contextmanager
def current(context: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Make `get_current_context()` return `context` inside the `with` block."""
    running.stack.append(context)
    try:
        yield context
    finally:
        running.stack.pop()


class BaseOperatorLink:
    """A link that `operator_extra_links` of an operator lists. Subclasses set `name` and implement `get_link`.

    After each try, the link is a line of its log and the XCom `xcom_key`.
    """

    #: The text of the link.
    name: str = ""

    @property
    def xcom_key(self) -> str:
        """The key under which the address is stored."""
        return f"_link_{type(self).__name__}"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address. `ti_key` is the task instance, with dag_id, task_id, run_id, try_number and map_index."""
        raise NotImplementedError(f"{type(self).__name__} has no get_link().")


class Executable(Templated):
    """The part of an operator that is called in a try. Its methods have Airflow's names, for subclasses."""

    task_id: str
    retry_policy: retry_policies.RetryPolicy | None
    map_index_template: str | None
    #: The functions of `pre_execute=` and `post_execute=`.
    execute_hooks: Mapping[str, Collection[Callable[..., Any]]]
    #: Links to other systems: after a try, each is an XCom and a line of the log.
    operator_extra_links: Collection[BaseOperatorLink] = ()

    if TYPE_CHECKING:

        @property
        def log(self) -> logging.Logger:
            """See AbstractOperator.log."""

    def unmap(self, context: Mapping[str, Any], map_index: int) -> Any:
        """The operator of one instance: this one, unless it is mapped."""
        return self

    def execute(self, context: Context) -> object:
        """Do the work of one try; the return value becomes the XCom `return_value`."""
        raise NotImplementedError(f"{type(self).__name__} has no execute().")

    def pre_execute(self, context: Context) -> None:
        """Called before `execute`, after the function `pre_execute=`, with rendered template fields. Raise SkipTask to skip."""

    def post_execute(self, context: Context, result: object = None) -> None:
        """Called after `execute` and the function `post_execute=`, with the return value."""

    def on_kill(self) -> None:
        """Called when a timeout, a clear, a mark or the end of its worker stops the task. Stop everything here that it started."""

    def defer(
        self,
        *,
        trigger: Any,
        method_name: str,
        kwargs: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> NoReturn:
        """Release the worker until `trigger` fires; this try then continues in `method_name(context, event=..., **kwargs)`.

        `timeout` is a timedelta or seconds; when it has passed, the method is not called and TaskDeferralTimeout is raised.
        """
        if not callable(getattr(self, method_name, None)):
            raise PacelineError(f"defer(method_name={method_name!r}): {type(self).__name__} has no such method.")
        raise TaskDeferred(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: Mapping[str, Any] | None, context: Mapping[str, Any]) -> object:
        """Continue after a deferral. TaskDeferralError if its trigger failed, TaskDeferralTimeout if it fired too late."""
        arguments = dict(next_kwargs or {})
        if next_method == "__timeout__":
            raise TaskDeferralTimeout
        if next_method == "__fail__":
            raise TaskDeferralError(f"The trigger failed: {arguments.get('error')}")
        return getattr(self, next_method)(context, **arguments)

    def render(self, context: Mapping[str, Any]) -> Self:
        """A copy whose template fields have the values for this try; TemplateError names the field."""
        rendered = copy.copy(self)
        rendered.prepare_template()
        rendered.render_template_fields(context)
        return rendered

    @property
    def template_owner(self) -> str:
        return f"Task {self.task_id!r}"


def run(operator: Executable, values: dict[str, Any]) -> object:
    """Render the template fields, then execute; `get_current_context()` works inside both, and the label is rendered from it."""
    with current(values):
        try:
            result = _execute(operator, values)
        except Exception as error:
            with suppress(Exception):  # the task's own error is the one to report
                _label(operator, values)
            if (
                operator.retry_policy is not None
                and (decided := retry_policies.apply(operator.retry_policy, error, values)) is not error
            ):
                raise decided from error
            raise
        _label(operator, values)
        return result


def _execute(operator: Executable, values: dict[str, Any]) -> object:
    values["task"] = values["ti"].task = rendered = operator.render(values)
    values["ti"].rendered_fields = rendered.rendered_fields
    resume = values["ti"].resume or {}
    context = cast("Context", values)
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


def _kill(operator: Executable) -> None:
    """Call `on_kill`, which ends everything that the operator started. The worker kills the process if that takes too long."""
    try:
        operator.on_kill()
    except Exception:
        operator.log.exception("on_kill() of task %s failed", operator.task_id)


def _store_links(operator: Executable, values: dict[str, Any]) -> None:
    """Push each extra link as an XCom with the key that Airflow uses, and log it."""
    for link in operator.operator_extra_links:
        try:
            address = link.get_link(operator, ti_key=values["ti"])
            values["ti"].xcom_push(key=link.xcom_key, value=address)
            operator.log.info("%s: %s", link.name, address)
        except Exception:
            operator.log.exception("The link %s of task %s cannot be created", type(link).__name__, operator.task_id)


def _label(operator: Executable, values: dict[str, Any]) -> None:
    """Name an instance of a mapped task by its map_index_template."""
    if operator.map_index_template is not None and values["ti"].map_index >= 0:
        renderer = Renderer(operator.dag, owner=operator.template_owner)
        values["ti"].set_map_label(str(renderer.render(operator.map_index_template, values, "map_index_template")))


def _resume_call(resume: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method with which a deferred task continues, and its arguments."""
    if "error" in resume:
        return "__fail__", {"error": resume["error"]}
    if "event" not in resume:
        return "__timeout__", {}
    return resume["method"], {**decode(resume.get("kwargs") or {}), "event": decode(resume["event"])}
