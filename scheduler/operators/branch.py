"""Tasks that choose which of the tasks below them run; the others are skipped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.arguments import near
from scheduler.authoring.dag import DAG
from scheduler.authoring.operator import Operator
from scheduler.exceptions import FailTask
from scheduler.operators.python import PythonOperator

#: A task id, the id of a task group (its first tasks), a list of both, or None for none.
Choice = str | Iterable[str] | None


class BaseBranchOperator(Operator):
    """Subclasses write `choose_branch`; the direct downstream tasks that it does not name are skipped."""

    branches: ClassVar[bool] = True

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        """The tasks to go on with."""
        raise NotImplementedError(f"{type(self).__name__} has no choose_branch().")

    def execute(self, context: Mapping[str, Any]) -> object:
        return follow(self, self.choose_branch(context), context)


class BranchPythonOperator(PythonOperator, BaseBranchOperator):
    """The function returns the id of the task or task group to go on with, a list of them, or None for none."""

    def choose_branch(self, context: Mapping[str, Any]) -> Choice:
        chosen: Choice = self.call(context)
        return chosen

    def execute(self, context: Mapping[str, Any]) -> object:
        return BaseBranchOperator.execute(self, context)


class ShortCircuitOperator(PythonOperator):
    """Goes on if the function returns something true, else skips everything below it.

    With `ignore_downstream_trigger_rules=False` only the direct downstream tasks are skipped; the trigger rules of the
    others decide. Teardowns are never skipped.
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
            context["ti"].skip(sorted(one for one in below if not dag.task_dict[one].is_teardown))
        return condition


def follow(operator: Operator, choice: Choice, context: Mapping[str, Any]) -> object:
    """Skip what is directly below `operator` and not chosen; what is chosen, as task ids."""
    dag = dag_of(operator)
    chosen = resolve(operator, choice)
    # A join below both the branch and a chosen task goes on: its trigger rule sees the others skipped.
    going_on = chosen.union(*(transitive(dag, one) for one in chosen))
    context["ti"].skip(sorted(operator.downstream_task_ids - going_on))
    return choice if choice is None or isinstance(choice, str) else sorted(chosen)


def resolve(operator: Operator, choice: Choice) -> set[str]:
    """The task ids of a choice, groups as their first tasks; FailTask names what cannot be chosen."""
    if choice is not None and not isinstance(choice, str | list | tuple | set | frozenset):
        raise FailTask(f"A branch returns a task id, a list of them or None, not {choice!r} ({type(choice).__name__}).")
    names = [] if choice is None else [choice] if isinstance(choice, str) else list(choice)
    dag, direct = dag_of(operator), operator.downstream_task_ids
    chosen: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise FailTask(f"A branch returns task ids, not {name!r} ({type(name).__name__}).")
        found = {name} if name in dag.task_dict else first_tasks(dag, name)
        if not found:
            raise FailTask(
                f"The branch {operator.task_id!r} chose {name!r}, which is no task or task group{near(name, dag.task_dict)}"
            )
        if not found <= direct:
            raise FailTask(
                f"The branch {operator.task_id!r} chose {name!r}, which is not directly below it; "
                f"it can choose {', '.join(sorted(direct)) or 'nothing'}."
            )
        chosen |= found
    return chosen


def first_tasks(dag: DAG, group_id: str) -> set[str]:
    """The tasks of a group, and of groups within it, that follow on no other task of the group."""
    within = {group_id}
    for group in dag.group_specs:  # outer groups first
        if group.get("parent") in within:
            within.add(group["group_id"])
    members = {name for name, task in dag.task_dict.items() if task.group_id in within}
    return {name for name in members if not dag.task_dict[name].upstream_task_ids & members}


def transitive(dag: DAG, task_id: str) -> set[str]:
    """Everything below a task."""
    found: set[str] = set()
    waiting: Collection[str] = dag.task_dict[task_id].downstream_task_ids
    while waiting:
        found |= set(waiting)
        waiting = {below for name in waiting for below in dag.task_dict[name].downstream_task_ids} - found
    return found


def dag_of(operator: AbstractOperator) -> DAG:
    """The DAG of a task that runs."""
    assert isinstance(operator.dag, DAG), "a task that runs belongs to a DAG"
    return operator.dag
