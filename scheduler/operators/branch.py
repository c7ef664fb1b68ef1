"""Branches: tasks that choose which of their downstream tasks run. The others are skipped."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.arguments import near
from scheduler.authoring.dag import DAG
from scheduler.authoring.operator import Operator
from scheduler.exceptions import FailTask
from scheduler.operators.python import PythonOperator

#: A task ID, the ID of a task group (for its first tasks), a list of these, or None for no task.
Choice = str | Iterable[str] | None


class BaseBranchOperator(Operator):
    """Base class of branches. Subclasses implement `choose_branch`; direct downstream tasks that it does not name are skipped."""

    branches: ClassVar[bool] = True

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        """The direct downstream tasks to run: an ID of a task or task group, a list of them, or None."""
        raise NotImplementedError(f"{type(self).__name__} has no choose_branch().")

    def execute(self, context: Mapping[str, Any]) -> object:
        return follow(self, self.choose_branch(context), context)


class BranchPythonOperator(PythonOperator, BaseBranchOperator):
    """A branch whose function returns the ID of the task or task group to run, a list of them, or None for no task."""

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        chosen: Choice = self.call(context)
        return chosen

    def execute(self, context: Mapping[str, Any]) -> object:
        return BaseBranchOperator.execute(self, context)


class ShortCircuitOperator(PythonOperator):
    """Skips all transitive downstream tasks if the function returns a false value.

    With `ignore_downstream_trigger_rules=False`, only the direct downstream tasks are skipped, and the trigger rules of
    the others apply. Teardowns are never skipped. The return value is the result of the task.
    """

    branches: ClassVar[bool] = True

    def __init__(self, *, python_callable: Callable[..., Any], ignore_downstream_trigger_rules: bool = True, **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, **kwargs)
        self.ignore_downstream_trigger_rules = self.checks().boolean(
            "ignore_downstream_trigger_rules", ignore_downstream_trigger_rules
        )

    def execute(self, context: Mapping[str, Any]) -> object:
        condition = self.call(context)
        if not condition:
            dag = dag_of(self)
            below = transitive(dag, self.task_id) if self.ignore_downstream_trigger_rules else self.downstream_task_ids
            context["ti"].skip(sorted(name for name in below if not dag.task_dict[name].is_teardown))
        return condition


def follow(operator: Operator, choice: Choice, context: Mapping[str, Any]) -> object:
    """Skip the direct downstream tasks that are not chosen. Returns the choice, a list of it as sorted task IDs."""
    dag = dag_of(operator)
    chosen = resolve(operator, choice)
    # A join below both the branch and a chosen task is not skipped: its trigger rule sees the skipped tasks.
    kept = chosen.union(*(transitive(dag, name) for name in chosen))
    context["ti"].skip(sorted(operator.downstream_task_ids - kept))
    return choice if choice is None or isinstance(choice, str) else sorted(chosen)


def resolve(operator: Operator, choice: Choice) -> set[str]:
    """The task IDs of a choice, in which a group stands for its first tasks; FailTask names what cannot be chosen."""
    if choice is not None and not isinstance(choice, str | list | tuple | set | frozenset):
        raise FailTask(f"A branch must return a task ID, a list of them or None, not {choice!r} ({type(choice).__name__}).")
    names = [] if choice is None else [choice] if isinstance(choice, str) else list(choice)
    dag, direct = dag_of(operator), operator.downstream_task_ids
    chosen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise FailTask(f"A branch must return task IDs, not {name!r} ({type(name).__name__}).")
        group = dag.task_group_dict.get(name)
        tasks = {name} if name in dag.task_dict else {task.task_id for task in group.roots()} if group else set()
        if not tasks:
            raise FailTask(
                f"The branch {operator.task_id!r} chose {name!r}, which is not a task or task group{near(name, dag.task_dict)}"
            )
        if not tasks <= direct:
            raise FailTask(
                f"The branch {operator.task_id!r} chose {name!r}, which is not directly below it; "
                f"it can choose {', '.join(sorted(direct)) or 'nothing'}."
            )
        chosen |= tasks
    return chosen


def transitive(dag: DAG, task_id: str) -> set[str]:
    """All transitive downstream tasks of a task."""
    downstream: set[str] = set()
    added: Collection[str] = dag.task_dict[task_id].downstream_task_ids
    while added:
        downstream |= set(added)
        added = {below for name in added for below in dag.task_dict[name].downstream_task_ids} - downstream
    return downstream


def dag_of(operator: AbstractOperator) -> DAG:
    """The DAG of a running task."""
    assert isinstance(operator.dag, DAG), "a running task belongs to a DAG"
    return operator.dag
