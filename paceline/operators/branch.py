"""Branches: tasks that choose which of their downstream tasks run. The others are skipped."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Unpack

from paceline.authoring import zones
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.arguments import near
from paceline.authoring.dag import DAG
from paceline.authoring.operator import Operator
from paceline.authoring.xcom_arg import RETURN_KEY
from paceline.exceptions import DownstreamTasksSkipped, FailTask
from paceline.operators.python import PythonArguments, PythonOperator

if TYPE_CHECKING:
    from paceline.authoring.typed_context import Context


#: A task ID, the ID of a task group (for its first tasks), several of these, or None for no task.
Choice = str | Iterable[str] | None


class BaseBranchOperator(Operator):
    """Base class of branches. Subclasses implement `choose_branch`.

    Direct downstream tasks are skipped if it names neither them nor one of their upstream tasks. The choice is the result of the
    task.
    """

    branches: ClassVar[bool] = True

    def choose_branch(self, context: "Context") -> Choice:
        """The tasks to run: an ID of a task or task group, a list of them, or None."""
        raise NotImplementedError(f"{type(self).__name__} has no choose_branch().")

    def execute(self, context: "Context") -> object:
        return follow(self, self.choose_branch(context), context)


class SkipMixin:
    """A base class in addition to Operator, for operators that skip downstream tasks themselves."""

    branches: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Also for a class that names Operator first, which has another default.
        cls.branches = True

    def skip(self, ti: Any, tasks: Iterable[Any]) -> NoReturn:
        """End this try with success, and skip these downstream tasks (operators, or their IDs)."""
        names = [getattr(task, "task_id", task) for task in tasks]
        if names:
            record({"ti": ti}, "skipped", names)
        raise DownstreamTasksSkipped(tasks=names)

    def skip_all_except(self, ti: Any, branch_task_ids: Choice) -> None:
        """Skip the direct downstream tasks that are neither chosen nor downstream of a chosen task."""
        assert isinstance(self, AbstractOperator), "a base class of operators"
        follow(self, branch_task_ids, {"ti": ti})


class BranchMixIn(SkipMixin):
    """A base class in addition to Operator, for operators that choose which downstream tasks run."""

    def do_branch(self, context: Mapping[str, Any], branches_to_execute: Choice) -> Choice:
        """Skip the direct downstream tasks that are neither chosen nor downstream of a chosen task. Returns the choice."""
        self.skip_all_except(context["ti"], branches_to_execute)
        return branches_to_execute


class BranchPythonOperator(PythonOperator, BaseBranchOperator):
    """A branch whose function returns the ID of the task or task group to run, a list of them, or None for no task."""

    def choose_branch(self, context: "Context") -> Choice:
        chosen: Choice = self.call(context)
        return chosen

    def execute(self, context: "Context") -> object:
        return BaseBranchOperator.execute(self, context)


class ShortCircuitOperator(PythonOperator):
    """Skips all transitive downstream tasks if the function returns a false value.

    With `ignore_downstream_trigger_rules=False`, only the direct downstream tasks are skipped, and the trigger rules of
    the others apply. Teardowns are never skipped. The return value is the result of the task, unless it skips others.
    """

    branches: ClassVar[bool] = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        ignore_downstream_trigger_rules: bool = True,
        **kwargs: Unpack[PythonArguments],
    ) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        self.ignore_downstream_trigger_rules = self.argument_checks().boolean(
            "ignore_downstream_trigger_rules", ignore_downstream_trigger_rules
        )

    def execute(self, context: "Context") -> object:
        condition = self.call(context)
        if not condition:
            dag = dag_of(self)
            below = self.get_flat_relative_ids() if self.ignore_downstream_trigger_rules else self.downstream_task_ids
            if skipped := [name for name in below if not dag.task_dict[name].is_teardown]:
                record(context, "skipped", skipped)
                context["ti"].skip(sorted(skipped))
        return condition


def follow(operator: AbstractOperator, choice: Choice, context: Mapping[str, Any]) -> object:
    """Skip the direct downstream tasks that are neither chosen nor downstream of a chosen task. Returns the choice.

    A chosen task further downstream, or elsewhere in the DAG, is decided by its own trigger rule, as in Airflow.
    """
    names = listed(choice)
    dag, direct = dag_of(operator), operator.downstream_task_ids
    chosen = resolve(operator, names)
    # A join below both the branch and a chosen task is not skipped: its trigger rule counts the skipped tasks.
    followed = chosen.union(*(dag.task_dict[name].get_flat_relative_ids() for name in chosen))
    if direct:
        record(context, "followed", direct & followed)
    result = choice if choice is None or isinstance(choice, str) else names
    if result is not None and direct - followed:
        # Skipping ends the try before the result is stored.
        context["ti"].xcom_push(RETURN_KEY, result)
    context["ti"].skip(sorted(direct - followed))
    return result


def record(context: Mapping[str, Any], verb: str, task_ids: Collection[str]) -> None:
    """Push the decision as the XCom that Airflow pushes for it; `verb` is followed or skipped."""
    context["ti"].xcom_push("skipmixin_key", {verb: sorted(task_ids)})


def listed(choice: Choice) -> list[Any]:
    """The names of a choice in their order, and those of a set sorted; FailTask if it is neither text nor a list."""
    if choice is None or isinstance(choice, str):
        return [] if choice is None else [choice]
    if not isinstance(choice, Iterable):
        raise FailTask(f"A branch must return a task ID, a list of them or None, not {choice!r} ({type(choice).__name__}).")
    names = list(choice)
    for name in names:
        if not isinstance(name, str):
            raise FailTask(f"A branch must return task IDs, not {name!r} ({type(name).__name__}).")
    return sorted(names) if isinstance(choice, set | frozenset) else names


def resolve(operator: AbstractOperator, names: Iterable[str]) -> set[str]:
    """The task IDs of a choice, in which a group stands for its first tasks; FailTask names a task that does not exist."""
    dag = dag_of(operator)
    chosen: set[str] = set()
    for name in names:
        group = dag.task_group_dict.get(name)
        if group is None and name not in dag.task_dict:
            raise FailTask(
                f"The branch {operator.task_id!r} chose {name!r}, which is not a task or task group"
                f"{near(name, [*dag.task_dict, *dag.task_group_dict])}"
            )
        chosen |= {name} if group is None else {task.task_id for task in group.roots}
    return chosen


def dag_of(operator: AbstractOperator) -> DAG:
    """The DAG of a running task."""
    assert isinstance(operator.dag, DAG), "a running task belongs to a DAG"
    return operator.dag


def zone_of(operator: AbstractOperator) -> tzinfo:
    """The time zone of the DAG of a running task."""
    return zones.load(dag_of(operator).timezone)
