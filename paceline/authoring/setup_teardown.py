"""Setup and teardown tasks: their marks, the `with` block between them, and their scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from paceline.authoring import scope
from paceline.authoring.edges import cross_downstream
from paceline.authoring.graph import Graph, Linkable, Node, flat, link
from paceline.authoring.task_arguments import TriggerRule


@dataclass(frozen=True, slots=True)
class Scopes:
    """For one task: the setups that must have succeeded, and for a teardown the tasks between its setups and itself."""

    setups: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def setup_scopes(dag: Graph[Any]) -> dict[str, Scopes]:
    """The Scopes of every task of `dag`, by task_id.

    A task needs every setup upstream of it that has no teardown, or has one downstream of the task. A teardown needs the
    setups directly before it.
    """
    if not any(task.is_setup or task.is_teardown for task in dag.task_dict.values()):
        return dict.fromkeys(dag.task_dict, Scopes())
    tasks = dag.task_dict
    above = _reached({name: task.upstream_task_ids for name, task in tasks.items()})
    below = _reached({name: task.downstream_task_ids for name, task in tasks.items()})
    teardowns = {
        name: {after for after in task.downstream_task_ids if tasks[after].is_teardown}
        for name, task in tasks.items()
        if task.is_setup
    }
    scopes = {}
    for name, task in tasks.items():
        if task.is_teardown:
            setups = task.upstream_task_ids & teardowns.keys()
            between = above[name] & set().union(*(below[setup] for setup in setups)) - setups
            scopes[name] = Scopes(tuple(sorted(setups)), tuple(sorted(between)))
        else:
            upstream = above[name] & teardowns.keys()
            needed = (setup for setup in upstream if not teardowns[setup] or teardowns[setup] & below[name])
            scopes[name] = Scopes(tuple(sorted(needed)))
    return scopes


def mark_setup(task: Node) -> None:
    """Make `task` a setup: the tasks between it and its teardowns run only if it succeeds."""
    if task.is_teardown:
        raise task.argument_checks().refuse("a teardown cannot be a setup too.")
    task.is_setup = True


def mark_teardown(task: Node, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> None:
    """Make `task` a teardown of `setups`: it runs when all tasks between have ended, in any state."""
    checks = task.argument_checks()
    if task.is_setup:
        raise checks.refuse("a setup cannot be a teardown too.")
    if task.trigger_rule not in {TriggerRule.ALL_SUCCESS, TriggerRule.ALL_DONE_SETUP_SUCCESS}:
        raise checks.refuse(f"a teardown has its own trigger rule; remove trigger_rule={task.trigger_rule!r}.")
    task.is_teardown = True
    task.trigger_rule = str(TriggerRule.ALL_DONE_SETUP_SUCCESS)
    if on_failure_fail_dagrun is not None:
        task.on_failure_fail_dagrun = checks.boolean("on_failure_fail_dagrun", on_failure_fail_dagrun)
    for operand in [] if setups is None else flat(setups):
        for setup in operand.leaves:
            mark_setup(setup)
            link(setup, task)


class Block:
    """The inside of `with setup >> teardown:`: tasks created there go between the two."""

    def __init__(self, task: Node) -> None:
        if not task.is_setup and not task.is_teardown:
            raise task.argument_checks().refuse(
                "only a setup or a teardown can open a `with` block; mark it with .as_setup() or .as_teardown()."
            )
        neighbors = task.upstream_task_ids if task.is_teardown else task.downstream_task_ids
        known = {} if task.dag is None else task.dag.task_dict
        tasks = [task, *(known[name] for name in sorted(neighbors))]
        self._setups = [task for task in tasks if task.is_setup]
        self._teardowns = [task for task in tasks if task.is_teardown]
        scope.open_block()

    def add_task(self, *tasks: Any) -> None:
        """Add tasks that were created outside the block."""
        scope.note_tasks(*(root for task in flat(tasks) for root in task.roots))

    def close(self, *, link_tasks: bool) -> None:
        """End the block, and add its edges if `link_tasks`."""
        inside = scope.close_block()
        if link_tasks:
            inside = [task for task in inside if task not in self._setups and task not in self._teardowns]
            ids = {task.task_id for task in inside}
            for task in inside:
                if not task.is_teardown and not task.upstream_task_ids & ids:
                    cross_downstream(self._setups, task)
                if not task.is_setup and not task.downstream_task_ids & ids:
                    cross_downstream(task, self._teardowns)
        # A block around this one also contains its setups and teardowns.
        scope.note_tasks(*self._setups, *inside, *self._teardowns)


class Markable(Linkable):
    """An operator or its result, which can be marked as a setup or a teardown, and then open a `with` block."""

    __slots__ = ()

    @property
    def _marked(self) -> Node:
        """The task to mark."""
        raise NotImplementedError

    def as_setup(self) -> Self:
        """Make this task a setup: the tasks between it and its teardowns run only if it succeeds."""
        mark_setup(self._marked)
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        """Make this task the teardown of `setups` (a task or a list). Its failure fails the run if `on_failure_fail_dagrun`."""
        mark_teardown(self._marked, setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self

    def __enter__(self) -> Block:
        """`with setup >> teardown:` puts the tasks created inside between the two."""
        self._marked.setup_blocks.append(block := Block(self._marked))
        return block

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._marked.setup_blocks.pop().close(link_tasks=kind is None)


def _reached(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """For each node of an acyclic graph, all nodes that its edges lead to."""
    reached: dict[str, set[str]] = {}
    for start in edges:
        path = [start]
        while path:
            name = path[-1]
            missing = [target for target in edges[name] if target not in reached]
            if missing:
                path.extend(missing)
            else:
                path.pop()
                reached[name] = edges[name].union(*(reached[target] for target in edges[name]))
    return reached
