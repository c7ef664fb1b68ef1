"""The arguments that all operators share, and the priority that follows from those of a DAG's tasks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from graphlib import TopologicalSorter
from typing import Annotated, Any, TypedDict

from paceline.authoring import fields
from paceline.authoring.arguments import ID_MAX_LENGTH, Arguments
from paceline.authoring.fields import Field, anything, boolean, callbacks, choice, duration, integer, limit, moment, optional, text
from paceline.authoring.graph import Graph, Group
from paceline.authoring.retry_policy import RetryPolicy

DEFAULT_POOL = "default_pool"
Callbacks = Callable[..., Any] | Sequence[Callable[..., Any]] | None
#: The arguments that take callbacks, by the name of their event.
CALLBACKS = {f"on_{event}": f"on_{event}_callback" for event in ("execute", "success", "failure", "retry", "skipped")}
HOOKS = ("pre_execute", "post_execute")
DOWNSTREAM, UPSTREAM, ABSOLUTE = RULES = ("downstream", "upstream", "absolute")
_LARGEST = 2**31 - 1


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


class WeightRule(StrEnum):
    """The weight rules of tasks."""

    DOWNSTREAM = DOWNSTREAM
    UPSTREAM = UPSTREAM
    ABSOLUTE = ABSOLUTE


def effective_priorities(dag: Graph[Any]) -> dict[str, int]:
    """The effective priority of every task of `dag`, by task_id."""
    tasks = dag.task_dict
    return effective_weights(
        {task_id: task.priority_weight for task_id, task in tasks.items()},
        rules={task_id: task.weight_rule for task_id, task in tasks.items()},
        downstream={task_id: task.downstream_task_ids for task_id, task in tasks.items()},
    )


def effective_weights(
    own: Mapping[str, int], *, rules: Mapping[str, str], downstream: Mapping[str, Iterable[str]]
) -> dict[str, int]:
    """The effective priority by task: its own weight (rule absolute), plus all transitive downstream or upstream weights.

    It is limited to 32 bits. `downstream` holds the direct edges of a DAG without cycles; a task may be missing in it.
    """
    below = {task: list(downstream.get(task, ())) for task in own}
    above: dict[str, list[str]] = {task: [] for task in own}
    for task, children in below.items():
        for child in children:
            above[child].append(task)
    order = list(TopologicalSorter(above).static_order())
    number = {task: bit for bit, task in enumerate(order)}
    total = _Sum(own, number)
    result = dict(own)
    for rule, edges, walk in ((DOWNSTREAM, below, list(reversed(order))), (UPSTREAM, above, order)):
        if any(rules[task] == rule for task in own):
            closures = _closures(edges, walk, number)
            result |= {task: total(closures[task]) for task in own if rules[task] == rule}
    return {task: max(-_LARGEST, min(_LARGEST, weight)) for task, weight in result.items()}


def _closures(edges: Mapping[str, list[str]], walk: Iterable[str], number: Mapping[str, int]) -> dict[str, int]:
    """A bit set for each task: itself and every task that its edges reach."""
    closures: dict[str, int] = {}
    for task in walk:
        reached = 1 << number[task]
        for neighbor in edges[task]:
            reached |= closures[neighbor]
        closures[task] = reached
    return closures


class _Sum:
    """Sums the weights of a bit set of tasks, one bit of the weights at a time: about 32 popcounts for any number of tasks."""

    def __init__(self, own: Mapping[str, int], number: Mapping[str, int]) -> None:
        self._least = min(0, *own.values()) if own else 0
        self._masks: dict[int, int] = {}
        for task, weight in own.items():
            rest = weight - self._least
            while rest:
                low = rest & -rest
                self._masks[low] = self._masks.get(low, 0) | 1 << number[task]
                rest ^= low

    def __call__(self, tasks: int) -> int:
        lifted = sum(value * (tasks & mask).bit_count() for value, mask in self._masks.items())
        return lifted + self._least * tasks.bit_count()
