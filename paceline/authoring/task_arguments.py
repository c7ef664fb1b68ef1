"""The arguments that all operators share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, TypedDict

from paceline.authoring import fields
from paceline.authoring.arguments import ID_MAX_LENGTH, Arguments
from paceline.authoring.fields import Field, anything, boolean, callbacks, choice, duration, integer, limit, moment, optional, text
from paceline.authoring.graph import Graph, Group
from paceline.authoring.retry_policy import RetryPolicy
from paceline.authoring.weights import RULES


class TriggerRule(StrEnum):
    """The condition on the states of the direct upstream tasks under which a task runs."""

    ALL_SUCCESS = "all_success"
    ALL_FAILED = "all_failed"
    ALL_DONE = "all_done"
    ALL_DONE_MIN_ONE_SUCCESS = "all_done_min_one_success"
    ALL_DONE_SETUP_SUCCESS = "all_done_setup_success"
    ALL_SKIPPED = "all_skipped"
    ONE_SUCCESS = "one_success"
    ONE_FAILED = "one_failed"
    ONE_DONE = "one_done"
    NONE_FAILED = "none_failed"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"
    NONE_SKIPPED = "none_skipped"
    ALWAYS = "always"


DEFAULT_POOL = "default_pool"
Callbacks = Callable[..., Any] | Sequence[Callable[..., Any]] | None


class CallbackAttribute:
    """The callbacks of one event of a task or a DAG, as an attribute with the name of its argument."""

    def __init__(self, event: str) -> None:
        self.event = event

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else owner.event_callbacks[self.event]

    def __set__(self, owner: Any, value: Callbacks) -> None:
        owner.event_callbacks[self.event] = () if value is None else (value,) if callable(value) else tuple(value)


def _multiplier(checks: Arguments, name: str, value: object) -> float:
    """The factor of the backoff: 0.0 for none, 2.0 for True as in Airflow, or a number of at least 1."""
    if isinstance(value, bool):
        return 2.0 if value else 0.0
    if isinstance(value, int | float) and (value == 0 or 1 <= value < float("inf")):
        return float(value)
    raise checks.refuse(f"{name} must be True, False or a factor of at least 1, not {value!r}.")


def _pool(checks: Arguments, name: str, value: object) -> str:
    if value is None:
        return DEFAULT_POOL
    pool = checks.text(name, value)
    if len(pool) > ID_MAX_LENGTH:
        raise checks.refuse(f"{name} has {len(pool)} characters; {ID_MAX_LENGTH} are allowed.")
    return pool


def _policy(checks: Arguments, name: str, value: object) -> object:
    if value is not None and not callable(getattr(value, "evaluate", None)):
        raise checks.refuse(f"{name} must be a RetryPolicy, not {value!r}; write ExceptionRetryPolicy(rules=[...]).")
    return value


class TaskArguments(TypedDict, total=False):
    """The arguments of every operator; None takes a value from the settings. Those without a Field place the task in a DAG."""

    task_id: str
    dag: Graph[Any] | None
    task_group: Group | None
    default_args: Mapping[str, Any] | None
    owner: Annotated[str, Field("airflow", anything)]
    doc: Annotated[str | None, Field(None, anything)]
    doc_md: Annotated[str | None, Field(None, anything)]
    doc_json: Annotated[str | None, Field(None, anything)]
    doc_yaml: Annotated[str | None, Field(None, anything)]
    doc_rst: Annotated[str | None, Field(None, anything)]
    retries: Annotated[int | None, Field(None, optional(integer(least=0)))]
    retry_delay: Annotated[timedelta | float | None, Field(None, optional(duration(zero_allowed=True)))]
    retry_exponential_backoff: Annotated[bool | float, Field(False, _multiplier)]
    max_retry_delay: Annotated[timedelta | float | None, Field(None, optional(duration()))]
    execution_timeout: Annotated[timedelta | None, Field(None, optional(duration(seconds_allowed=False)))]
    exclusive: Annotated[bool, Field(False, boolean)]
    queue: Annotated[str | None, Field(None, optional(Arguments.queue))]
    pool: Annotated[str | None, Field(None, _pool)]
    pool_slots: Annotated[int, Field(1, integer(least=1))]
    priority_weight: Annotated[int, Field(1, integer())]
    weight_rule: Annotated[str, Field("downstream", choice(RULES))]
    trigger_rule: Annotated[str, Field(TriggerRule.ALL_SUCCESS, choice(TriggerRule))]
    do_xcom_push: Annotated[bool, Field(True, boolean)]
    multiple_outputs: Annotated[bool, Field(False, boolean)]
    depends_on_past: Annotated[bool, Field(False, boolean)]
    wait_for_downstream: Annotated[bool, Field(False, boolean)]
    ignore_first_depends_on_past: Annotated[bool, Field(True, boolean)]
    wait_for_past_depends_before_skipping: Annotated[bool, Field(False, boolean)]
    start_date: Annotated[datetime | None, Field(None, optional(moment))]
    end_date: Annotated[datetime | None, Field(None, optional(moment))]
    max_active_tis_per_dag: Annotated[int | None, Field(None, limit)]
    max_active_tis_per_dagrun: Annotated[int | None, Field(None, limit)]
    on_execute_callback: Annotated[Callbacks, Field(None, callbacks)]
    on_success_callback: Annotated[Callbacks, Field(None, callbacks)]
    on_failure_callback: Annotated[Callbacks, Field(None, callbacks)]
    on_retry_callback: Annotated[Callbacks, Field(None, callbacks)]
    on_skipped_callback: Annotated[Callbacks, Field(None, callbacks)]
    retry_policy: Annotated[RetryPolicy | None, Field(None, _policy)]
    logger_name: Annotated[str | None, Field(None, optional(text))]
    allow_nested_operators: Annotated[bool, Field(True, boolean)]
    email: Annotated[str | Iterable[str] | None, Field(None, fields.one_or_more)]
    email_on_failure: Annotated[bool, Field(True, boolean)]
    email_on_retry: Annotated[bool, Field(True, boolean)]
    sla: Annotated[timedelta | None, Field(None, optional(duration(seconds_allowed=False)))]
    inlets: Annotated[Any, Field(None, Arguments.inlets)]
    outlets: Annotated[Any, Field(None, Arguments.assets)]
    params: Annotated[Mapping[str, Any] | None, Field(None, fields.params)]
    render_template_as_native_obj: Annotated[bool | None, Field(None, optional(boolean))]
    map_index_template: Annotated[str | None, Field(None, optional(text))]
    task_display_name: Annotated[str | None, Field(None, anything)]
    pre_execute: Annotated[Callable[..., Any] | None, Field(None, callbacks)]
    post_execute: Annotated[Callable[..., Any] | None, Field(None, callbacks)]


#: The arguments that take callbacks, by the name of their event.
CALLBACKS = {f"on_{event}": f"on_{event}_callback" for event in ("execute", "success", "failure", "retry", "skipped")}
HOOKS = ("pre_execute", "post_execute")
