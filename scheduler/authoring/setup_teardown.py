"""Setup and teardown tasks: marking them, the block between them, which setups a task needs, what a teardown waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.authoring import scope
from scheduler.authoring.graph import Graph, Node, flat, link
from scheduler.authoring.trigger_rule import TriggerRule


@dataclass(frozen=True, slots=True)
class Scopes:
    """Of one task: the setups that must have succeeded, and for a teardown the tasks between its setups and itself."""

    setups: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def setup_scopes(dag: Graph[Any]) -> dict[str, Scopes]:
    """The Scopes of every task of `dag`, by task_id.

    A setup, however far upstream, is needed where a teardown of it lies downstream, or if it has no teardown. A teardown
    needs those directly before it.
    """
    if not any(task.is_setup or task.is_teardown for task in dag.task_dict.values()):
        return dict.fromkeys(dag.task_dict, Scopes())
    tasks = dag.task_dict
    above = _reached({name: task.upstream_task_ids for name, task in tasks.items()})
    below = _reached({name: task.downstream_task_ids for name, task in tasks.items()})
    teardowns = {
        name: {one for one in task.downstream_task_ids if tasks[one].is_teardown} for name, task in tasks.items() if task.is_setup
    }
    found = {}
    for name, task in tasks.items():
        if task.is_teardown:
            setups = task.upstream_task_ids & teardowns.keys()
            between = above[name] & set().union(*(below[setup] for setup in setups)) - setups
            found[name] = Scopes(tuple(sorted(setups)), tuple(sorted(between)))
        else:
            needed = (one for one in above[name] & teardowns.keys() if not teardowns[one] or teardowns[one] & below[name])
            found[name] = Scopes(tuple(sorted(needed)))
    return found


def mark_setup(task: Node) -> None:
    """Make `task` a setup: what lies between it and its teardowns runs only if it succeeded."""
    if task.is_teardown:
        raise task.checks().refuse("a teardown cannot be a setup too.")
    task.is_setup = True


def mark_teardown(task: Node, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> None:
    """Make `task` a teardown of `setups`: it runs when all that lies between has ended, however it ended."""
    checks = task.checks()
    if task.is_setup:
        raise checks.refuse("a setup cannot be a teardown too.")
    if task.trigger_rule not in {TriggerRule.ALL_SUCCESS, TriggerRule.ALL_DONE_SETUP_SUCCESS}:
        raise checks.refuse(f"a teardown has a trigger rule of its own; remove trigger_rule={task.trigger_rule!r}.")
    task.is_teardown = True
    task.trigger_rule = str(TriggerRule.ALL_DONE_SETUP_SUCCESS)
    if on_failure_fail_dagrun is not None:
        task.on_failure_fail_dagrun = checks.boolean("on_failure_fail_dagrun", on_failure_fail_dagrun)
    for one in [] if setups is None else flat(setups):
        for setup in one.leaves():
            mark_setup(setup)
            link(setup, task)


def open_block(task: Node) -> Block:
    """`with setup >> teardown:` puts the tasks made inside between the two."""
    task.blocks.append(Block(task))
    block: Block = task.blocks[-1]
    return block


def close_block(task: Node, *, link_tasks: bool) -> None:
    """The end of that; the edges are made unless it ended with an error."""
    task.blocks.pop().close(link_tasks=link_tasks)


class Block:
    """The inside of `with setup >> teardown:`: what is made there goes between the two."""

    def __init__(self, task: Node) -> None:
        if not task.is_setup and not task.is_teardown:
            raise task.checks().refuse("only a setup or a teardown opens a `with` block; mark it by .as_setup() or .as_teardown().")
        neighbors = task.upstream_task_ids if task.is_teardown else task.downstream_task_ids
        known = {} if task.dag is None else task.dag.task_dict
        others = [known[name] for name in sorted(neighbors)]
        self._setups = [one for one in (task, *others) if one.is_setup]
        self._teardowns = [one for one in (task, *others) if one.is_teardown]
        scope.open_block()

    def add_task(self, *tasks: Any) -> None:
        """Take in tasks that were made outside."""
        scope.made(*(operator for one in flat(tasks) for operator in one.roots()))

    def close(self, *, link_tasks: bool) -> None:
        """End the block and, unless it ended with an error, make its edges."""
        inside = scope.close_block()
        if link_tasks:
            inside = [one for one in inside if one not in self._setups and one not in self._teardowns]
            ids = {one.task_id for one in inside}
            for task in inside:
                if not task.is_teardown and not task.upstream_task_ids & ids:
                    _link_all(self._setups, [task])
                if not task.is_setup and not task.downstream_task_ids & ids:
                    _link_all([task], self._teardowns)
        # A block around this one has the setups and the teardowns inside.
        scope.made(*self._setups, *inside, *self._teardowns)


def _link_all(before: Sequence[Node], after: Sequence[Node]) -> None:
    for one in before:
        for other in after:
            link(one, other)


def _reached(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """All that the edges of an acyclic graph lead to, by where they start."""
    found: dict[str, set[str]] = {}
    for start in edges:
        path = [start]
        while path:
            name = path[-1]
            missing = [one for one in edges[name] if one not in found]
            if missing:
                path.extend(missing)
            else:
                path.pop()
                found[name] = edges[name].union(*(found[one] for one in edges[name]))
    return found
