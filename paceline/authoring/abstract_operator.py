"""The base of every operator: the common arguments, default_args, edges, and the rendering of templates before a try."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from paceline.authoring import params as params_
from paceline.authoring import scope, source
from paceline.authoring.arguments import REFUSED_FOR_TASKS, Arguments, is_identifier
from paceline.authoring.asset import Asset, AssetRef
from paceline.authoring.execution import Executable
from paceline.authoring.fields import checked, completed, construct, is_authored, parameters, required, with_defaults
from paceline.authoring.graph import Graph, Node, link, owner_of
from paceline.authoring.retry_policy import RetryPolicy
from paceline.authoring.setup_teardown import Block, Markable
from paceline.authoring.task_arguments import CALLBACKS, HOOKS, CallbackAttribute, TaskArguments
from paceline.authoring.templates import Literal
from paceline.authoring.xcom_arg import XComArg, results_in
from paceline.exceptions import DagError

if TYPE_CHECKING:
    pass


class OperatorMeta(type):
    """Creates operators: applies default_args, rejects unknown arguments, and adds the task to its DAG."""

    refused: Mapping[str, str]

    if not TYPE_CHECKING:  # type checkers and editors then see the arguments of each __init__

        def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **others: Any) -> None:
            super().__init__(name, bases, members, **others)
            if "__init__" in members and bases != (Markable, Node, Executable):
                cls.__init__ = completed(members["__init__"])

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            at = source.here()
            try:
                return cls._new_task(at, args, kwargs)
            except DagError as error:
                if not scope.defer(error):
                    raise
                return stand_in(at, kwargs)

    def _new_task(cls, at: source.Location, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        dag, group = scope.place(kwargs)
        checks = Arguments(owner_of(kwargs.get("task_id"), dag), at)
        if args:
            raise checks.refuse(f"{cls.__name__} takes keyword arguments only; write task_id={args[0]!r}.")
        given, defaults = with_defaults(cls, kwargs, dag=dag, group=group, checks=checks)
        missing = [name for name in required(cls) if name not in given and name not in defaults]
        if missing or not is_authored(cls):
            unknown = {name: value for name, value in given.items() if name not in parameters(cls)}
            checks.others(unknown, known=parameters(cls), refused={**REFUSED_FOR_TASKS, **cls.refused})
            given = {name: value for name, value in given.items() if name not in unknown}
        if missing:
            raise checks.refuse(f"{cls.__name__} needs the argument {missing[0]!r}.")
        task = construct(cls, at, given, defaults)
        if dag is not None:
            dag.add_task(task)
        task.link_results()
        scope.note_tasks(task)
        return task


def stand_in(at: source.Location, kwargs: Mapping[str, Any]) -> AbstractOperator:
    """A task in place of one with an error, so that the rest of the file can be read. It raises no errors."""
    dag, group = scope.place(kwargs)
    wanted = kwargs.get("task_id")
    label = wanted if isinstance(wanted, str) and is_identifier(wanted) else "stand_in"
    if dag is not None:
        label = dag.unique_id(label, group)
    task: AbstractOperator = construct(AbstractOperator, at, {"task_id": label, "dag": dag, "task_group": group})
    if dag is not None:
        dag.add_task(task)
    return task


class AbstractOperator(Markable, Node, Executable, metaclass=OperatorMeta):
    """One task of a DAG. Subclasses implement `execute`, list `template_fields`, and pass **kwargs on to this class."""

    #: The part of a worker that runs it: python, bash, empty or pyspark.
    worker_runtime: ClassVar[str] = "python"
    #: The default_args that apply to this task.
    _default_args: Mapping[str, Any] = MappingProxyType({})
    #: Arguments that this class has in Airflow and does not support here, and why.
    refused: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: Whether it can decide to skip downstream tasks.
    branches: ClassVar[bool] = False
    on_execute_callback = CallbackAttribute("on_execute")
    on_success_callback = CallbackAttribute("on_success")
    on_failure_callback = CallbackAttribute("on_failure")
    on_retry_callback = CallbackAttribute("on_retry")
    on_skipped_callback = CallbackAttribute("on_skipped")
    # For display, as in Airflow; not used.
    ui_color: str = "#fff"
    ui_fgcolor: str = "#000"

    #: The arguments that it takes, in addition to those in the signatures of its subclasses.
    declared: ClassVar[type] = TaskArguments

    # Their checked values:
    owner: str
    doc: str | None
    doc_md: str | None
    doc_json: str | None
    doc_yaml: str | None
    doc_rst: str | None
    retries: int | None
    retry_delay: timedelta | None
    retry_exponential_backoff: float
    max_retry_delay: timedelta | None
    execution_timeout: timedelta | None
    exclusive: bool
    queue: str | None
    pool: str
    pool_slots: int
    do_xcom_push: bool
    multiple_outputs: bool
    depends_on_past: bool
    wait_for_downstream: bool
    ignore_first_depends_on_past: bool
    wait_for_past_depends_before_skipping: bool
    start_date: datetime | None
    end_date: datetime | None
    max_active_tis_per_dag: int | None
    max_active_tis_per_dagrun: int | None
    email: tuple[str, ...]
    email_on_failure: bool
    email_on_retry: bool
    sla: timedelta | None
    inlets: tuple[Asset | AssetRef, ...]
    outlets: tuple[Asset, ...]
    map_index_template: str | None
    task_display_name: str
    retry_policy: RetryPolicy | None
    logger_name: str | None

    def __init__(self, **explicit: Unpack[TaskArguments]) -> None:
        given: dict[str, Any] = {
            **{name: value for name, value in self._default_args.items() if name in self.declared.__annotations__}, **explicit
        }  # fmt: skip
        task_id = given.get("task_id")
        dag, self.task_group = scope.place(given)
        checks = Arguments(owner_of(task_id, dag), self.at)
        others = {name: value for name, value in given.items() if name not in self.declared.__annotations__}
        checks.others(others, known=parameters(type(self)), refused={**REFUSED_FOR_TASKS, **self.refused})
        if task_id is None:
            raise checks.refuse(f"{type(self).__name__} needs the argument 'task_id'.")
        self.label = checks.identifier("task_id", task_id)
        self.task_id = self.label if self.task_group is None else checks.identifier("task_id", self.task_group.child_id(self.label))
        self.dag: Graph[Any] | None = None
        self.upstream_task_ids: set[str] = set()
        self.downstream_task_ids: set[str] = set()
        values = checked(self.declared, given, checks)
        self.event_callbacks = {event: values.pop(name) for event, name in CALLBACKS.items()}
        self.execute_hooks = {name: values.pop(name) for name in HOOKS}
        vars(self).update(values)
        self.task_display_name = self.task_display_name or self.task_id
        self.is_setup = self.is_teardown = self.on_failure_fail_dagrun = False
        self.setup_blocks: list[Block] = []

    @classmethod
    def _runtime_for(cls, given: Mapping[str, Any]) -> str:
        """The part of a worker that runs a task with these arguments."""
        return cls.worker_runtime

    @property
    def noticed_events(self) -> tuple[str, ...]:
        """The events of this task that create a notice, see SerializedTask.notify."""
        emails = {"email_failure": self.email_on_failure, "email_retry": self.email_on_retry}
        return (
            *(name for name, functions in self.event_callbacks.items() if functions),
            *(name for name, wanted in emails.items() if wanted and self.email),
            *(("asset",) if self.outlets else ()),
        )

    @property
    def outlet_uris(self) -> tuple[str, ...]:
        return tuple(asset.uri for asset in self.outlets)

    @property
    def operator_class(self) -> type[AbstractOperator]:
        """The class that runs: for a mapped task that of its instances."""
        return type(self)

    @property
    def output(self) -> XComArg:
        """The result of this task, to pass to other tasks."""
        return XComArg(self)

    @property
    def _marked(self) -> Node:
        return self

    def dry_run(self) -> None:
        for field in self.template_fields:
            self.log.info("%s: %s", field, getattr(self, field))

    @property
    def task_type(self) -> str:
        """The name of the class that runs."""
        return self.operator_class.__name__

    operator_name = task_type

    @property
    def is_mapped(self) -> bool:
        """Whether `expand` created this task."""
        return False

    @property
    def log(self) -> logging.Logger:
        """The logger `logger_name`, by default that of the class. Its lines while the task runs are in the log of the task."""
        return super().log if self.logger_name is None else logging.getLogger(self.logger_name)

    def add_inlets(self, inlets: Iterable[Any]) -> None:
        """Add assets that the task reads."""
        self.inlets = (*self.inlets, *self.argument_checks().inlets("inlets", list(inlets)))

    def add_outlets(self, outlets: Iterable[Any]) -> None:
        """Add assets that the task updates."""
        self.outlets = (*self.outlets, *self.argument_checks().assets("outlets", list(outlets)))

    @staticmethod
    def xcom_push(context: Mapping[str, Any], key: str, value: Any) -> None:
        """Store `value` under `key` for the running task instance, as `ti.xcom_push` does."""
        context["ti"].xcom_push(key=key, value=value)

    @staticmethod
    def xcom_pull(
        context: Mapping[str, Any], task_ids: Any = None, dag_id: str | None = None, key: str = "return_value", **others: Any
    ) -> Any:
        """The values that tasks pushed, as `ti.xcom_pull` returns them."""
        return context["ti"].xcom_pull(task_ids=task_ids, dag_id=dag_id, key=key, **others)

    def linked_values(self) -> list[Any]:
        """What it may use of other tasks: its template fields, and the values over which it is mapped."""
        return [getattr(self, field) for field in self.template_fields]

    def columns_taken(self, result: XComArg) -> Collection[str] | None:
        """In lower case, the columns that it reads of a DataFrame that it gets as a whole; None if it may read all."""
        return None

    def link_results(self) -> None:
        """Add an edge from every task whose result is used in a template field. A result in another argument is a DagError."""
        for field in self.template_fields:
            if not hasattr(self, field):
                raise self.argument_checks().refuse(f"{type(self).__name__} lists the template field {field!r} but never sets it.")
        for result in results_in(self.linked_values()):
            for upstream in result.leaves:
                link(upstream, self)
        for name, value in vars(self).items():
            if name not in self.template_fields and isinstance(value, XComArg | params_.DagParam):
                fields = ", ".join(self.template_fields) or "none"
                what = "the result of a task" if isinstance(value, XComArg) else "a param"
                raise self.argument_checks().refuse(f"{name} cannot take {what}; template fields can ({fields}).")

    def text_or_result(self, name: str, value: Any) -> Any:
        """The checked value of an argument that must be a non-empty str, or the result of a task, or a param."""
        return value if isinstance(value, XComArg | params_.DagParam | Literal) else self.argument_checks().text(name, value)

    def argument_checks(self) -> Arguments:
        """Argument checks whose errors name this task and its line."""
        return Arguments(owner_of(self.task_id, self.dag or scope.current_dag()), self.at)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"
