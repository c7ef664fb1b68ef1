"""The base class of every operator: a task that can also be mapped."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from paceline.authoring import scope, source
from paceline.authoring.abstract_operator import AbstractOperator, stand_in
from paceline.authoring.arguments import NO_LOOPS, REFUSED_FOR_TASKS, Arguments, near
from paceline.authoring.expansion import Entries, Expansion, Product, Values, refuse_repeated, refuse_unnamed
from paceline.authoring.fields import construct, parameters, required, taken_from_kwargs, with_defaults
from paceline.authoring.graph import link, owner_of
from paceline.authoring.xcom_arg import XComArg, results_in
from paceline.exceptions import DagError

#: The worker needs these arguments before it has the values of an instance, or they define the shape of the DAG.
_FOR_ALL = "is the same for every instance of a task; set it in partial()"


#: The class of the operator.
K_co = TypeVar("K_co", bound=AbstractOperator, covariant=True)


class OperatorPartial(Generic[K_co]):
    """The arguments that all instances share. `expand` or `expand_kwargs` adds the others and creates the task.

    `into` is the argument that receives the expanded ones as a dict: op_kwargs of a decorated function.
    """

    def __init__(
        self,
        kind: type[K_co],
        given: Mapping[str, Any],
        *,
        into: str | None = None,
        mark: Callable[[AbstractOperator], None] | None = None,
    ) -> None:
        self._at = source.here()
        self._kind = kind
        self._into = into
        self._mark = mark
        self._dag, self._group = scope.place(given)
        self._checks = Arguments(owner_of(given.get("task_id"), self._dag), self._at)
        self._refuse = self._checks.refuse
        explicit, defaults = with_defaults(kind, given, dag=self._dag, group=self._group, checks=self._checks)
        self._given = {name: value for name, value in defaults.items() if name in parameters(kind)} | explicit
        self._explicit = set(given)
        self._expanded = False
        self._check_given()
        if self._dag is not None:
            self._dag.partials.append(self)

    def expand(self, *unnamed: Any, **mapped: Any) -> AbstractOperator:
        """One instance for each value, or for each combination of several arguments; the last one varies fastest."""
        return self._made(lambda: self._expand(unnamed, mapped))

    if not TYPE_CHECKING:  # type checkers find that it does not exist

        def loop(self, *_: Any, **__: Any) -> NoReturn:
            self._expanded = True
            raise self._refuse(f"loop(): {NO_LOOPS}")

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> AbstractOperator:
        """One instance for each dict of arguments."""
        return self._made(lambda: self._expand_kwargs(kwargs))

    def _made(self, make: Callable[[], AbstractOperator]) -> AbstractOperator:
        """The new task. If it has an error that can wait for the end of the file, a task in its place."""
        self._expanded = True
        try:
            return make()
        except DagError as error:
            if not scope.defer(error):
                raise
            return stand_in(self._at, self._given)

    def _expand(self, unnamed: Collection[Any], mapped: Mapping[str, Any]) -> AbstractOperator:
        refuse_unnamed(unnamed, self._arguments(), self._refuse)
        product = Product(mapped, self._refuse)
        self._check_expanded(mapped)
        self._check_call([mapped.keys()])
        return self._make(product)

    def _expand_kwargs(self, kwargs: Any) -> AbstractOperator:
        entries = Entries(kwargs, self._refuse)
        self._check_expanded(entries.names())
        self._check_call({frozenset(entry) for entry in entries.literals})
        return self._make(entries)

    def _arguments(self) -> Iterable[str]:
        """The arguments that may be expanded."""
        if self._into is None:
            return [name for name in parameters(self._kind) if name not in parameters(AbstractOperator)]
        return inspect.signature(self._given["python_callable"]).parameters

    def validate(self) -> None:
        """Reject a partial() that was never expanded: it defines no task."""
        if not self._expanded:
            raise self._refuse("partial() defines no task by itself; add .expand(...) or .expand_kwargs(...).")

    def _make(self, expansion: Expansion) -> AbstractOperator:
        base = {
            name: value for name, value in self._given.items() if name in parameters(AbstractOperator) or name in REFUSED_FOR_TASKS
        }
        arguments = base | {"dag": self._dag, "task_group": self._group}
        task: AbstractOperator = MappedOperator(
            kind=self._kind, given=self._given, expansion=expansion, into=self._into, **arguments
        )
        if self._mark is not None:
            self._mark(task)
        return task

    def _check_given(self) -> None:
        known = {*parameters(self._kind), *taken_from_kwargs(self._kind)}
        unknown = {name: value for name, value in self._given.items() if name not in known}
        self._checks.others(unknown, known=parameters(self._kind), refused={**REFUSED_FOR_TASKS, **self._kind.refused})
        if self._into is not None:
            self._check_names(self._given.get(self._into) or {})

    def _check_expanded(self, names: Iterable[str]) -> None:
        """Reject arguments that are given twice, must be the same for all instances, or are unknown to the operator."""
        if self._into is not None:
            refuse_repeated(names, self._given.get(self._into) or {}, self._refuse)
            self._check_names(names)
            return
        refuse_repeated(names, self._explicit, self._refuse)
        known = parameters(self._kind)
        for name in names:
            if name in parameters(AbstractOperator) or name in REFUSED_FOR_TASKS:
                raise self._refuse(f"the argument {name!r} {_FOR_ALL}.")
            if name not in known and name not in taken_from_kwargs(self._kind):
                raise self._refuse(f"unknown argument {name!r} in expand(){near(name, known)}")

    def _check_names(self, names: Iterable[str]) -> None:
        """Reject arguments that are not in the signature of the decorated function."""
        function = self._given["python_callable"]
        known = inspect.signature(function).parameters
        if any(p.kind is p.VAR_KEYWORD for p in known.values()):
            return
        for name in names:
            if name not in known:
                raise self._refuse(f"{function.__name__}() has no argument {name!r}{near(name, known)}")

    def _check_call(self, expanded: Iterable[Iterable[str]]) -> None:
        """Reject a missing argument, as far as the DAG file shows the arguments."""
        for names in expanded:
            if self._into is not None:
                stand_ins = {self._into: {**(self._given.get(self._into) or {}), **dict.fromkeys(names)}}
                construct(self._kind, self._at, _own(self._given) | stand_ins)
                continue
            missing = [name for name in required(self._kind) if name not in self._given and name not in set(names)]
            if missing:
                raise self._refuse(f"{self._kind.__name__} needs the argument {missing[0]!r}, in partial() or in expand().")

    def __rshift__(self, other: Any) -> NoReturn:
        raise self._refuse("partial() defines no task by itself; add .expand(...) before joining it to others.")

    __lshift__ = __rrshift__ = __rlshift__ = __rshift__


class MappedOperator(AbstractOperator):
    """The task of a DAG that represents all its instances; `unmap` returns the operator of one of them."""

    def __init__(
        self,
        *,
        kind: type[AbstractOperator],
        given: Mapping[str, Any],
        expansion: Expansion,
        into: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.given = dict(given)
        self.expansion = expansion
        self.into = into
        self.template_fields = tuple(kind.template_fields)
        # As the operator of each instance has them.
        self.worker_runtime, self.branches = kind._runtime_for(given), kind.branches  # type: ignore[misc]
        group = None if self.task_group is None else self.task_group.mapped_group
        if group is not None:
            raise self.argument_checks().refuse(f"it {group.expansion.inside.format(group.group_id)}.")

    @property
    def operator_class(self) -> type[AbstractOperator]:
        return self.kind

    @property
    def is_mapped(self) -> bool:
        return True

    @property
    def expand_spec(self) -> dict[str, Any]:
        return self.expansion.spec()

    def linked_values(self) -> list[Any]:
        return [*(value for name, value in self.given.items() if name in self.template_fields), self.expansion.inputs]

    def link_results(self) -> None:
        """Add an edge from every task whose result is expanded over or shared by all instances."""
        for name, value in self.given.items():
            if name not in self.template_fields and isinstance(value, XComArg):
                fields = ", ".join(self.template_fields) or "none"
                raise self.argument_checks().refuse(f"{name} cannot take the result of a task; template fields can ({fields}).")
        for result in results_in(self.linked_values()):
            for upstream in result.leaves:
                link(upstream, self)

    def unmap(self, context: Mapping[str, Any], map_index: int) -> AbstractOperator:
        """The operator of one instance with its values, of which results of tasks are not rendered as templates."""
        values: Values = self.expansion.values(context, map_index)
        arguments = _own(self.given)
        if self.into is None:
            arguments |= values.arguments
        else:
            arguments[self.into] = {**(arguments.get(self.into) or {}), **values.arguments}
        task: AbstractOperator = construct(self.kind, self.at, arguments)
        task.resolved = tuple(values.results)
        task.dag, task.task_id, task.task_group = self.dag, self.task_id, self.task_group
        task.upstream_task_ids, task.downstream_task_ids = self.upstream_task_ids, self.downstream_task_ids
        task.is_setup, task.is_teardown = self.is_setup, self.is_teardown
        task.on_failure_fail_dagrun = self.on_failure_fail_dagrun
        return task

    def execute(self, context: Mapping[str, Any]) -> object:
        raise NotImplementedError("A mapped task is unmapped before it runs.")


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the operator itself, without the arguments that only add it to a DAG."""
    return {name: value for name, value in given.items() if name not in {"dag", "task_group", "default_args"}}


class Operator(AbstractOperator):
    """One task of a DAG. Subclasses implement `execute`, list `template_fields`, and pass **kwargs on to this class.

    All operators take these arguments, with Airflow's names and meaning:

    - `task_id`: at most 250 letters, digits, dashes, dots and underscores, unique in the DAG. `dag` and `task_group` are by default
      those of the `with` block around it. `default_args`: arguments that this task takes if they are not given.
    - `retries`: how often the task is tried again. `retry_delay` and `max_retry_delay`: a timedelta or seconds.
      `retry_exponential_backoff`: multiply the delay after each try, by 2 with True. `retry_policy`: decides by the exception.
    - `execution_timeout`: a timedelta, after which a try fails. `sla`: a timedelta after which a miss is reported.
    - `trigger_rule`: see TriggerRule. `start_date`, `end_date`: runs outside of these dates do not have the task.
    - `depends_on_past`: wait for the same task of the previous run; `wait_for_downstream`: also for the tasks directly below it.
      `ignore_first_depends_on_past`: a task that is new waits for nothing.
      `wait_for_past_depends_before_skipping`: a skip waits too.
    - `queue`, `pool`, `pool_slots`: where the task runs. `priority_weight`, `weight_rule`: in which order.
      `max_active_tis_per_dag`, `max_active_tis_per_dagrun`: how many of its instances run at a time.
      `exclusive`: the next try starts only after every process of this one has ended.
    - `params`: its inputs, see Param. `inlets`, `outlets`: the assets that it reads and updates.
    - `do_xcom_push`: store the result. `multiple_outputs`: store each entry of a dict under its own key as well.
      `map_index_template`: a template for the name of each instance of a mapped task.
      `render_template_as_native_obj`: whether templates give Python objects; None takes that of the DAG.
    - `on_execute_callback`, `on_success_callback`, `on_failure_callback`, `on_retry_callback`, `on_skipped_callback`: functions
      that take the context, one or a list. `pre_execute`, `post_execute`: called before and after `execute`, in the worker.
    - `email`: one or more addresses, for emails unless `email_on_failure` or `email_on_retry` is False.
    - `owner`, `doc`, `doc_md`, `doc_json`, `doc_yaml`, `doc_rst`, `task_display_name`: for people. `logger_name`: that of `log`.
      `allow_nested_operators` is accepted as in Airflow and has no effect.

    A wrong or unknown argument raises DagError with the line of the author.
    """

    @classmethod
    def partial(cls, **given: Any) -> OperatorPartial[Self]:
        """The arguments that all instances of a mapped task share; `.expand(...)` adds those that differ."""
        return OperatorPartial(cls, given)


BaseOperator = Operator
