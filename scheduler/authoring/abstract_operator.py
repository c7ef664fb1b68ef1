"""What every task is: the arguments all operators share, default_args, edges, and rendering before a try."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

from scheduler.authoring import params as params_
from scheduler.authoring import scope, source, templates
from scheduler.authoring.arguments import LATER_FOR_TASKS, Arguments
from scheduler.authoring.deferral import TaskDeferred
from scheduler.authoring.graph import Graph, Group, Node, link, owner_of
from scheduler.authoring.setup_teardown import Block, close_block, mark_setup, mark_teardown, open_block
from scheduler.authoring.trigger_rule import TriggerRule
from scheduler.authoring.weights import RULES
from scheduler.authoring.xcom_arg import XComArg, results_in
from scheduler.exceptions import PacelineError, TaskDeferralError, TaskDeferralTimeout

DEFAULT_POOL = "default_pool"
Callbacks = Callable[..., Any] | Sequence[Callable[..., Any]] | None


class OperatorMeta(type):
    """Fills in default_args, refuses unknown arguments, and puts the finished task into its DAG."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        at = source.here()
        group = kwargs.get("task_group")
        dag = kwargs.get("dag") or (group.dag if group is not None else scope.current_dag())
        owner = owner_of(kwargs.get("task_id"), dag)
        checks = Arguments(owner, at)
        if args:
            raise checks.refuse(f"{cls.__name__} takes keyword arguments only; write task_id={args[0]!r}.")
        kwargs = with_defaults(cls, kwargs, dag=dag, group=group or scope.current_group(dag), checks=checks)
        unknown = {name: value for name, value in kwargs.items() if name not in parameters(cls)}
        checks.others(unknown, known=parameters(cls), later=LATER_FOR_TASKS)
        missing = [name for name in required(cls) if name not in kwargs]
        if missing:
            raise checks.refuse(f"{cls.__name__} needs the argument {missing[0]!r}.")
        task = construct(cls, at, {name: value for name, value in kwargs.items() if name not in unknown})
        if dag is not None:
            dag.add_task(task)
        task.link_results()
        scope.made(task)
        return task


class AbstractOperator(Node, metaclass=OperatorMeta):
    """One task of a DAG. Subclasses write `execute`, list `template_fields`, and pass **kwargs on for these arguments."""

    #: Which part of a worker runs it: python, bash, empty or pyspark.
    runtime: ClassVar[str] = "python"
    #: It may decide to skip tasks below it.
    branches: ClassVar[bool] = False
    template_fields: Sequence[str] = ()
    #: A template field that ends so is the path of a template file.
    template_ext: Sequence[str] = ()

    at: source.Location
    #: Values that came from other tasks, in which nothing is a template; only of an instance of a mapped task.
    resolved: Sequence[Any] = ()

    def __init__(
        self,
        *,
        task_id: str | None = None,
        dag: Graph[Any] | None = None,
        task_group: Group | None = None,
        default_args: Mapping[str, Any] | None = None,
        owner: str = "airflow",
        retries: int | None = None,
        retry_delay: timedelta | float | None = None,
        retry_exponential_backoff: bool | float = False,
        max_retry_delay: timedelta | float | None = None,
        execution_timeout: timedelta | None = None,
        exclusive: bool = False,
        queue: str | None = None,
        pool: str | None = None,
        pool_slots: int = 1,
        priority_weight: int = 1,
        weight_rule: str = "downstream",
        trigger_rule: str = TriggerRule.ALL_SUCCESS,
        do_xcom_push: bool = True,
        multiple_outputs: bool = False,
        depends_on_past: bool = False,
        wait_for_downstream: bool = False,
        ignore_first_depends_on_past: bool = True,
        wait_for_past_depends_before_skipping: bool = False,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
        max_active_tis_per_dag: int | None = None,
        max_active_tis_per_dagrun: int | None = None,
        on_execute_callback: Callbacks = None,
        on_success_callback: Callbacks = None,
        on_failure_callback: Callbacks = None,
        on_retry_callback: Callbacks = None,
        on_skipped_callback: Callbacks = None,
        email: str | Iterable[str] | None = None,
        email_on_failure: bool = True,
        email_on_retry: bool = True,
        sla: timedelta | None = None,
        inlets: Any = None,
        outlets: Any = None,
        params: Mapping[str, Any] | None = None,
        map_index_template: str | None = None,
        task_display_name: str | None = None,
        doc: str | None = None,
        doc_md: str | None = None,
        pre_execute: Callable[..., Any] | None = None,
        post_execute: Callable[..., Any] | None = None,
        **others: Any,
    ) -> None:
        found = dag or (task_group.dag if task_group is not None else scope.current_dag())
        checks = Arguments(owner_of(task_id, found), self.at)
        checks.others(others, known=parameters(type(self)), later=LATER_FOR_TASKS)
        if task_id is None:
            raise checks.refuse(f"{type(self).__name__} needs the argument 'task_id'.")
        self.task_group = task_group if task_group is not None else scope.current_group(found)
        self.label = checks.identifier("task_id", task_id)
        self.task_id = self.label if self.task_group is None else checks.identifier("task_id", self.task_group.child_id(self.label))
        self.dag: Graph[Any] | None = None
        self.upstream_task_ids: set[str] = set()
        self.downstream_task_ids: set[str] = set()
        self.owner, self.doc, self.doc_md = owner, doc, doc_md
        self.retries = None if retries is None else checks.integer("retries", retries, least=0)
        self.retry_delay = None if retry_delay is None else checks.duration("retry_delay", retry_delay, zero_allowed=True)
        self.retry_exponential_backoff = _multiplier(checks, retry_exponential_backoff)
        self.max_retry_delay = None if max_retry_delay is None else checks.duration("max_retry_delay", max_retry_delay)
        self.execution_timeout = (
            None if execution_timeout is None else checks.duration("execution_timeout", execution_timeout, seconds_allowed=False)
        )
        self.exclusive = checks.boolean("exclusive", exclusive)
        self.queue = None if queue is None else checks.queue("queue", queue)
        self.pool = DEFAULT_POOL if pool is None else checks.text("pool", pool)
        self.pool_slots = checks.integer("pool_slots", pool_slots, least=1)
        self.priority_weight = checks.integer("priority_weight", priority_weight)
        self.weight_rule = checks.choice("weight_rule", weight_rule, RULES)
        self.trigger_rule = checks.choice("trigger_rule", trigger_rule, TriggerRule)
        self.do_xcom_push = checks.boolean("do_xcom_push", do_xcom_push)
        self.multiple_outputs = checks.boolean("multiple_outputs", multiple_outputs)
        self.depends_on_past = checks.boolean("depends_on_past", depends_on_past)
        self.wait_for_downstream = checks.boolean("wait_for_downstream", wait_for_downstream)
        self.ignore_first_depends_on_past = checks.boolean("ignore_first_depends_on_past", ignore_first_depends_on_past)
        self.wait_for_past_depends_before_skipping = checks.boolean(
            "wait_for_past_depends_before_skipping", wait_for_past_depends_before_skipping
        )
        self.start_date = None if start_date is None else checks.moment("start_date", start_date)
        self.end_date = None if end_date is None else checks.moment("end_date", end_date)
        self.max_active_tis_per_dag = checks.limit("max_active_tis_per_dag", max_active_tis_per_dag)
        self.max_active_tis_per_dagrun = checks.limit("max_active_tis_per_dagrun", max_active_tis_per_dagrun)
        self.callbacks = {
            "on_execute": checks.callbacks("on_execute_callback", on_execute_callback),
            "on_success": checks.callbacks("on_success_callback", on_success_callback),
            "on_failure": checks.callbacks("on_failure_callback", on_failure_callback),
            "on_retry": checks.callbacks("on_retry_callback", on_retry_callback),
            "on_skipped": checks.callbacks("on_skipped_callback", on_skipped_callback),
        }
        self.email = tuple(checks.texts("email", [email] if isinstance(email, str) else email or ()))
        self.email_on_failure = checks.boolean("email_on_failure", email_on_failure)
        self.email_on_retry = checks.boolean("email_on_retry", email_on_retry)
        self.sla = None if sla is None else checks.duration("sla", sla, seconds_allowed=False)
        self.inlets, self.outlets = checks.assets("inlets", inlets), checks.assets("outlets", outlets)
        self.params = params_.authored(checks.mapping("params", params or {}), checks)
        self.map_index_template = None if map_index_template is None else checks.text("map_index_template", map_index_template)
        self.task_display_name = task_display_name
        self.hooks = {
            "pre_execute": checks.callbacks("pre_execute", pre_execute),
            "post_execute": checks.callbacks("post_execute", post_execute),
        }
        self.is_setup = self.is_teardown = self.on_failure_fail_dagrun = False
        self.blocks: list[Block] = []

    @property
    def notify(self) -> tuple[str, ...]:
        """What of this task gives a notice, see SerializedTask.notify."""
        mails = {"email_failure": self.email_on_failure, "email_retry": self.email_on_retry}
        return (
            *(name for name, functions in self.callbacks.items() if functions),
            *(name for name, wanted in mails.items() if wanted and self.email),
            *(("asset",) if self.outlets else ()),
        )

    @property
    def outlet_uris(self) -> tuple[str, ...]:
        return tuple(asset.uri for asset in self.outlets)

    @property
    def operator_class(self) -> type[AbstractOperator]:
        """What runs: for a mapped task the class of its instances."""
        return type(self)

    @property
    def output(self) -> XComArg:
        """The result of this task, to pass on."""
        return XComArg(self)

    def unmap(self, context: Mapping[str, Any], map_index: int) -> AbstractOperator:
        """The operator of one instance: this one, unless it is mapped."""
        return self

    def as_setup(self) -> Self:
        """Make this task a setup: what lies between it and its teardowns runs only if it succeeded."""
        mark_setup(self)
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        """Make this task the teardown of `setups`; its failure fails the run only with `on_failure_fail_dagrun`."""
        mark_teardown(self, setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self

    def __enter__(self) -> Block:
        """`with setup >> teardown:` puts the tasks made inside between the two."""
        return open_block(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        close_block(self, link_tasks=kind is None)

    def execute(self, context: Mapping[str, Any]) -> object:
        """Do the work of one try; what is returned becomes the XCom `return_value`."""
        raise NotImplementedError(f"{type(self).__name__} has no execute().")

    def pre_execute(self, context: Mapping[str, Any]) -> None:
        """Called before `execute`, with the template fields rendered; SkipTask skips the task."""
        for hook in self.hooks["pre_execute"]:
            hook(context)

    def post_execute(self, context: Mapping[str, Any], result: object = None) -> None:
        """Called after `execute` with what it returned."""
        for hook in self.hooks["post_execute"]:
            hook(context, result)

    def defer(
        self,
        *,
        trigger: Any,
        method_name: str,
        kwargs: Mapping[str, Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> NoReturn:
        """Give the worker back until `trigger` fires; this try then goes on in `method_name(context, event=..., **kwargs)`."""
        if not callable(getattr(self, method_name, None)):
            raise PacelineError(f"defer(method_name={method_name!r}): {type(self).__name__} has no such method.")
        raise TaskDeferred(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: Mapping[str, Any] | None, context: Mapping[str, Any]) -> object:
        """Go on after a deferral; TaskDeferralError and TaskDeferralTimeout if its trigger failed, or did not fire in time."""
        arguments = dict(next_kwargs or {})
        if next_method == "__timeout__":
            raise TaskDeferralTimeout
        if next_method == "__fail__":
            raise TaskDeferralError(f"The trigger failed: {arguments.get('error')}")
        return getattr(self, next_method)(context, **arguments)

    def render(self, context: Mapping[str, Any]) -> AbstractOperator:
        """A copy whose template fields hold the values for this try; TemplateError names the field."""
        rendered = copy.copy(self)
        renderer = templates.Renderer(self.dag, self.template_ext, owner=f"Task {self.task_id!r}", resolved=self.resolved)
        for field in self.template_fields:
            setattr(rendered, field, renderer.render(getattr(self, field), context, field))
        return rendered

    def link_results(self) -> None:
        """Make an edge from every task whose result stands in a template field; elsewhere a result is refused."""
        for field in self.template_fields:
            if not hasattr(self, field):
                raise self.checks().refuse(f"{type(self).__name__} lists the template field {field!r} but never sets it.")
            for result in results_in(getattr(self, field)):
                for upstream in result.leaves():
                    link(upstream, self)
        for name, value in vars(self).items():
            if name not in self.template_fields and isinstance(value, XComArg | params_.DagParam):
                fields = ", ".join(self.template_fields) or "none"
                what = "the result of a task" if isinstance(value, XComArg) else "a param"
                raise self.checks().refuse(f"{name} cannot take {what}; template fields can ({fields}).")

    def checks(self) -> Arguments:
        """Argument checks that speak of this task and its line."""
        return Arguments(owner_of(self.task_id, self.dag or scope.current_dag()), self.at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"


@cache
def parameters(kind: type) -> tuple[str, ...]:
    """Every argument `kind` takes: its own and, as far as **kwargs reach, those of its bases."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        own = base.__dict__.get("__init__")
        if own is None:
            continue
        signature = inspect.signature(own).parameters.values()
        names |= {p.name: None for p in signature if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD}}
        if not any(p.kind is p.VAR_KEYWORD for p in signature):
            break
    names.pop("self", None)
    return tuple(names)


def construct(kind: type, at: source.Location, arguments: Mapping[str, Any]) -> Any:
    """An operator by itself, in no DAG."""
    new: Any = kind
    task = new.__new__(new)
    task.at = at
    task.__init__(**arguments)
    return task


@cache
def required(kind: type) -> tuple[str, ...]:
    own = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    return tuple(p.name for p in own if p.default is p.empty and p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD})


def with_defaults(
    kind: type, kwargs: Mapping[str, Any], *, dag: Graph[Any] | None, group: Group | None, checks: Arguments
) -> dict[str, Any]:
    """`kwargs` and, where they are silent, the default_args of the task, its groups and its DAG, in this order."""
    defaults = (dict(dag.default_args) if dag is not None else {}) | (group.default_args if group is not None else {})
    own = kwargs.get("default_args")
    if own is not None:
        defaults |= checks.mapping("default_args", own)
    known = parameters(kind)
    return {name: value for name, value in defaults.items() if name in known and name != "task_id"} | dict(kwargs)


def _multiplier(checks: Arguments, value: object) -> float:
    """0.0 is no backoff, True the doubling of Airflow, a number of at least 1 its own factor."""
    if isinstance(value, bool):
        return 2.0 if value else 0.0
    if isinstance(value, int | float) and (value == 0 or 1 <= value < float("inf")):
        return float(value)
    raise checks.refuse(f"retry_exponential_backoff must be True, False or a factor of at least 1, not {value!r}.")
