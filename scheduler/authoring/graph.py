"""What the parts of a DAG know of each other: nodes (its tasks), groups of nodes, the graph itself, and what edges join.

Operators, task groups and DAGs are built on these classes, so that none of their modules needs another of them for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from scheduler.authoring.arguments import Arguments
from scheduler.authoring.params import Param
from scheduler.authoring.source import Location, fault
from scheduler.exceptions import DagCycleError

NodeT = TypeVar("NodeT", bound="Node")


class Linkable:
    """What may stand on a side of `>>`: an operator, the result of one, a task group, or a label."""

    __slots__ = ()

    def roots(self) -> Sequence[Node]:
        """The nodes that an edge to this one goes to."""
        raise NotImplementedError

    def leaves(self) -> Sequence[Node]:
        """The nodes that an edge from this one comes from."""
        raise NotImplementedError

    def set_downstream(self, others: Any) -> None:
        """Make this task a direct upstream of `others` (a task, a result, a group, or a list of them)."""
        for other in flat(others):
            other.put_after(self)

    def set_upstream(self, others: Any) -> None:
        """Make `others` direct upstreams of this task."""
        for other in flat(others):
            other.put_before(self)

    def put_after(self, before: Linkable) -> None:
        """Make the edges from `before` to this one."""
        join(before, self)

    def put_before(self, after: Linkable) -> None:
        """Make the edges from this one to `after`."""
        join(self, after)

    def __rshift__(self, other: Any) -> Any:
        self.set_downstream(other)
        return other

    def __lshift__(self, other: Any) -> Any:
        self.set_upstream(other)
        return other

    def __rrshift__(self, other: Any) -> Linkable:
        self.set_upstream(other)
        return self

    def __rlshift__(self, other: Any) -> Linkable:
        self.set_downstream(other)
        return self


class Node(Linkable):
    """A task as far as edges, groups, results and weights are concerned."""

    at: Location
    task_id: str
    label: str
    dag: Graph[Any] | None
    task_group: Group | None
    upstream_task_ids: set[str]
    downstream_task_ids: set[str]
    trigger_rule: str
    priority_weight: int
    weight_rule: str
    params: Mapping[str, Param]
    is_setup: bool
    is_teardown: bool
    on_failure_fail_dagrun: bool
    #: The open `with` blocks of a setup or teardown, see authoring/setup_teardown.
    blocks: list[Any]

    @property
    def expand_spec(self) -> dict[str, Any] | None:
        """How many instances it becomes, see deciding/expansion; None unless it is mapped, by itself or with its group."""
        group = None if self.task_group is None else self.task_group.mapped_group
        return None if group is None else group.expand_spec

    @property
    def group_id(self) -> str | None:
        """The innermost task group it was made in."""
        return None if self.task_group is None else self.task_group.group_id

    @property
    def mapped_group_id(self) -> str | None:
        """The mapped task group it was made in."""
        group = None if self.task_group is None else self.task_group.mapped_group
        return None if group is None else group.group_id

    @property
    def line(self) -> int:
        """The line of the DAG file that made this task."""
        return self.at.line

    def roots(self) -> Sequence[Node]:
        return (self,)

    def leaves(self) -> Sequence[Node]:
        return (self,)

    def checks(self) -> Arguments:
        """Argument checks that speak of this task and its line."""
        raise NotImplementedError


class Group(Linkable):
    """A task group as its tasks, its DAG and the groups inside it know it."""

    at: Location
    dag: Graph[Any]
    parent_group: Group | None
    group_id: str
    default_args: dict[str, Any]

    @property
    def mapped_group(self) -> Group | None:
        """This group, or the nearest one around it, that is mapped."""
        raise NotImplementedError

    @property
    def expand_spec(self) -> dict[str, Any] | None:
        """How many instances each of its tasks becomes; None unless this very group is mapped."""
        raise NotImplementedError

    @property
    def spec(self) -> dict[str, Any]:
        """The group as data."""
        raise NotImplementedError

    def child_id(self, label: str) -> str:
        """The id of a task or group of this name in the group."""
        raise NotImplementedError

    def add(self, child: Node | Group) -> None:
        """Take in a task or group whose id is free."""
        raise NotImplementedError

    def iter_tasks(self) -> Iterator[Node]:
        """Every task in the group and in the groups inside it, in order of definition."""
        raise NotImplementedError


class Unfinished(Protocol):
    """What may still become a task when the DAG is checked."""

    def validate(self) -> None: ...


class Graph(Generic[NodeT]):
    """A DAG as its tasks and groups know it."""

    dag_id: str
    at: Location
    default_args: dict[str, Any]
    params: dict[str, Param]
    task_dict: dict[str, NodeT]
    task_group_dict: dict[str, Group]
    #: Notes on edges, by the ids of the tasks they join.
    edge_labels: dict[tuple[str, str], str]
    partials: list[Unfinished]
    # For templates:
    render_template_as_native_obj: bool
    template_searchpath: Sequence[str]
    template_undefined: type | None
    jinja_environment_kwargs: Mapping[str, Any]
    user_defined_macros: Mapping[str, Any]
    user_defined_filters: Mapping[str, Any]

    @property
    def fileloc(self) -> str:
        """The file that made this DAG."""
        return self.at.file

    def add_task(self, task: NodeT) -> None:
        """Take `task` in, unless its id is taken."""
        raise NotImplementedError

    def add_group(self, group: Group) -> None:
        """Take `group` in, unless its id is taken."""
        raise NotImplementedError

    def unique_id(self, label: str, group: Group | None) -> str:
        """`label`, or with `__1`, `__2`, ... after it where a function becomes a task or group of `group` again."""
        raise NotImplementedError


def owner_of(task_id: object, dag: Graph[Any] | None) -> str:
    """The task of an error message."""
    task = f"Task {task_id!r}" if task_id is not None else "A task"
    return f"{task} of DAG {dag.dag_id!r}" if dag is not None else task


def link(upstream: Node, downstream: Node) -> None:
    """The edge itself; a task without a DAG joins the DAG of its neighbor."""
    if upstream is downstream:
        raise fault(f"Task {upstream.task_id!r} cannot come after itself.", kind=DagCycleError)
    dag = upstream.dag or downstream.dag
    if dag is None:
        raise fault(f"Tasks {upstream.task_id!r} and {downstream.task_id!r} are in no DAG; make them inside `with DAG(...)`.")
    for task in (upstream, downstream):
        if task.dag is None:
            dag.add_task(task)
        elif task.dag is not dag:
            raise fault(
                f"Task {upstream.task_id!r} of DAG {dag.dag_id!r} and task {downstream.task_id!r} of DAG "
                f"{task.dag.dag_id!r} cannot be joined; an edge stays within one DAG."
            )
    upstream.downstream_task_ids.add(downstream.task_id)
    downstream.upstream_task_ids.add(upstream.task_id)


def flat(value: Any) -> list[Linkable]:
    """What can be joined, out of lists of any depth."""
    if isinstance(value, Linkable):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return [one for item in value for one in flat(item)]
    raise fault(f"An edge joins tasks, results of tasks, groups, or lists of them, not {value!r} ({type(value).__name__}).")


def join(before: Linkable, after: Linkable, label: str | None = None) -> None:
    """All edges from one to the other, with a note on each."""
    downstream = after.roots()
    for one in before.leaves():
        for other in downstream:
            link(one, other)
            if label is not None and one.dag is not None:
                one.dag.edge_labels[one.task_id, other.task_id] = label
