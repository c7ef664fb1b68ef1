"""The base classes of DAGs, tasks and task groups, and the edges between tasks.

The modules of operators, task groups and DAGs build on these classes, so that they need not import each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from paceline.authoring.arguments import Arguments
from paceline.authoring.params import Param
from paceline.authoring.relatives import Relatives, TaskLists, sorted_by_edges
from paceline.authoring.source import Location, fault
from paceline.exceptions import DagCycleError, DuplicateTaskError

NodeT = TypeVar("NodeT", bound="Node")


class Linkable:
    """An operand of `>>` and `<<`: an operator, its result, a task group, or a label."""

    __slots__ = ()

    @property
    def roots(self) -> Sequence[Node]:
        """The nodes at which an edge to this operand ends."""
        raise NotImplementedError

    @property
    def leaves(self) -> Sequence[Node]:
        """The nodes at which an edge from this operand starts."""
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
        """Add the edges from `before` to this operand."""
        join(before, self)

    def put_before(self, after: Linkable) -> None:
        """Add the edges from this operand to `after`."""
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


class Node(Linkable, Relatives):
    """A task as a node of the graph: its edges, groups, weights and flags."""

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
    setup_blocks: list[Any]

    @property
    def expand_spec(self) -> dict[str, Any] | None:
        """How many instances it has, see deciding/expansion; None unless it or its group is mapped."""
        group = None if self.task_group is None else self.task_group.mapped_group
        return None if group is None else group.expand_spec

    @property
    def node_id(self) -> str:
        return self.task_id

    @property
    def parent_group_id(self) -> str | None:
        """The innermost task group around it."""
        return None if self.task_group is None else self.task_group.group_id

    @property
    def mapped_group_id(self) -> str | None:
        """The mapped task group around it."""
        group = None if self.task_group is None else self.task_group.mapped_group
        return None if group is None else group.group_id

    @property
    def roots(self) -> Sequence[Node]:
        return (self,)

    @property
    def leaves(self) -> Sequence[Node]:
        return (self,)

    def as_setup(self) -> Self:
        """Make this task a setup, see authoring/setup_teardown."""
        raise NotImplementedError

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        """Make this task a teardown, see authoring/setup_teardown."""
        raise NotImplementedError

    def argument_checks(self) -> Arguments:
        """Argument checks whose errors name this task and its line."""
        raise NotImplementedError


class Group(Linkable, Relatives):
    """A task group, as its tasks, its DAG and inner groups see it."""

    at: Location
    dag: Graph[Any]
    parent_group: Group | None
    group_id: str
    label: str
    default_args: dict[str, Any]
    prefix_group_id: bool
    tooltip: str
    #: The expansion of a mapped group, see authoring/expansion.
    expansion: Any
    children: dict[str, Node | Group]

    @property
    def mapped_group(self) -> Group | None:
        """The innermost mapped group: this one, or one around it."""
        if self.expansion is not None:
            return self
        return None if self.parent_group is None else self.parent_group.mapped_group

    @property
    def expand_spec(self) -> dict[str, Any] | None:
        """How many instances each of its tasks has; None unless this group itself is mapped."""
        return None if self.expansion is None else self.expansion.spec()

    @property
    def node_id(self) -> str:
        return self.group_id

    @property
    def is_root(self) -> bool:
        """Whether it is the group that contains the whole DAG, see Graph.task_group."""
        return not self.group_id

    @property
    def upstream_task_ids(self) -> set[str]:  # type: ignore[override]
        """The tasks outside of the group directly upstream of its tasks."""
        tasks = {task.task_id: task for task in self.iter_tasks()}
        return {name for task in tasks.values() for name in task.upstream_task_ids} - tasks.keys()

    @property
    def downstream_task_ids(self) -> set[str]:  # type: ignore[override]
        """The tasks outside of the group directly downstream of its tasks."""
        tasks = {task.task_id: task for task in self.iter_tasks()}
        return {name for task in tasks.values() for name in task.downstream_task_ids} - tasks.keys()

    @property
    def spec(self) -> dict[str, Any]:
        """The group as data."""
        parent = None if self.parent_group is None or self.parent_group.is_root else self.parent_group.group_id
        return {"group_id": self.group_id, "parent": parent, "tooltip": self.tooltip}

    def child_id(self, label: str) -> str:
        """The ID of a task or group with this label in the group."""
        return f"{self.group_id}.{label}" if self.prefix_group_id else label

    def iter_tasks(self) -> Iterator[Node]:
        """Every task in the group and in the groups inside it, in order of definition."""
        for child in self.children.values():
            if isinstance(child, Group):
                yield from child.iter_tasks()
            else:
                yield child

    def get_roots(self) -> Sequence[Node]:
        """`roots`, as Airflow also names them."""
        return self.roots

    def get_leaves(self) -> Sequence[Node]:
        """`leaves`, as Airflow also names them."""
        return self.leaves

    def topological_sort(self) -> list[Node | Group]:
        """The tasks and groups directly in this group, in topological order."""
        owner = {
            task.task_id: child
            for child in self.children.values()
            for task in (child.iter_tasks() if isinstance(child, Group) else (child,))
        }
        order = sorted_by_edges(
            {
                child.node_id: {owner[name].node_id for name in child.upstream_task_ids & owner.keys()}
                for child in self.children.values()
            }
        )
        return [self.children[name] for name in order]

    def as_setup(self) -> Self:
        """Make its first tasks setups."""
        for task in self.roots:
            task.as_setup()
        return self

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = None) -> Self:
        """Make its last tasks teardowns of `setups`, see the method of tasks."""
        for task in self.leaves:
            task.as_teardown(setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)
        return self

    def has_task(self, task: Node) -> bool:
        """Whether a task is in this group or in a group inside it."""
        return any(inner is task for inner in self.iter_tasks())

    def get_child_by_label(self, label: str) -> Node | Group:
        """The task or group with this label; KeyError if there is none."""
        return self.children[self.child_id(label)]

    def add(self, child: Node | Group) -> None:
        """Add a task or group; Graph.add_task and Graph.add_group reject an ID that is taken."""
        self.children[child.group_id if isinstance(child, Group) else child.task_id] = child
        if not isinstance(child, Group):
            child.task_group = self

    @property
    def roots(self) -> Sequence[Node]:
        """The tasks without an upstream task in the group."""
        tasks = list(self.iter_tasks())
        ids = {task.task_id for task in tasks}
        return [task for task in tasks if not task.upstream_task_ids & ids]

    @property
    def leaves(self) -> Sequence[Node]:
        """The tasks with only teardowns of the group after them: a task after the group does not wait for teardowns."""
        tasks = {task.task_id: task for task in self.iter_tasks()}
        work = {name for name, task in tasks.items() if not task.is_teardown}
        ends = [tasks[name] for name in tasks if name in work and not tasks[name].downstream_task_ids & work]
        # A setup with only its teardown after it is not an end, unless the graph has no other end.
        return [task for task in ends if not (task.is_setup and task.downstream_task_ids & tasks.keys())] or ends


class Graph(TaskLists, Generic[NodeT]):
    """A DAG, as its tasks and groups see it."""

    dag_id: str
    at: Location
    default_args: dict[str, Any]
    params: dict[str, Param]
    task_dict: dict[str, NodeT]
    task_group_dict: dict[str, Group]
    #: Labels of edges, by the IDs of the two tasks.
    edge_labels: dict[tuple[str, str], str]
    #: Each partial() that can still become a task, see authoring/operator.
    partials: list[Any]
    #: The numbers of the last suffixes, see `unique_id`.
    suffixes: dict[str, int]
    # For templates:
    render_template_as_native_obj: bool
    template_searchpath: Sequence[str]
    template_undefined: type | None
    jinja_environment_kwargs: Mapping[str, Any]
    user_defined_macros: Mapping[str, Any]
    user_defined_filters: Mapping[str, Any]

    @property
    def fileloc(self) -> str:
        """The file that defines this DAG."""
        return self.at.file

    @property
    def task_group(self) -> Group:
        """The group that contains the whole DAG. Its ID is empty."""
        whole = Group()
        whole.at, whole.dag, whole.parent_group, whole.group_id, whole.label = self.at, self, None, "", ""
        whole.default_args, whole.prefix_group_id, whole.tooltip, whole.expansion = {}, False, "", None
        groups = (group for group in self.task_group_dict.values() if group.parent_group is None or group.parent_group.is_root)
        tasks = (task for task in self.task_dict.values() if task.task_group is None or task.task_group.is_root)
        children: list[Node | Group] = [*tasks, *groups]
        whole.children = {child.node_id: child for child in children}
        return whole

    def set_dependency(self, upstream_task_id: str, downstream_task_id: str) -> None:
        """Add the edge between two tasks that are in this DAG."""
        link(self.task_dict[upstream_task_id], self.task_dict[downstream_task_id])

    def add_task(self, task: NodeT) -> None:
        """Add `task`. DuplicateTaskError names the lines of two tasks with the same ID."""
        known = self.task_dict.get(task.task_id)
        if known is not None and known is not task:
            raise fault(
                f"DAG {self.dag_id!r} has two tasks {task.task_id!r}, defined in lines {known.at.line} and {task.at.line}; "
                "give one of them another task_id.",
                kind=DuplicateTaskError,
                at=task.at,
            )
        if task.task_id in self.task_group_dict:
            raise task.argument_checks().refuse("a task group has the same ID; give the task another task_id.")
        self.task_dict[task.task_id] = task
        task.dag = self
        if task.task_group is not None:
            task.task_group.add(task)

    def add_group(self, group: Group) -> None:
        """Add `group`; DuplicateTaskError if a task or group has its ID."""
        if group.group_id in self.task_group_dict or group.group_id in self.task_dict:
            raise fault(
                f"DAG {self.dag_id!r} has another task or task group {group.group_id!r}; give this group another group_id.",
                kind=DuplicateTaskError,
                at=group.at,
            )
        self.task_group_dict[group.group_id] = group
        if group.parent_group is not None:
            group.parent_group.add(group)

    def unique_id(self, label: str, group: Group | None) -> str:
        """`label` if it is free in `group`, else with the suffix `__1`, `__2`, ... for a function that is used again."""
        prefix = "" if group is None else group.child_id("")

        def is_free(name: str) -> bool:
            return prefix + name not in self.task_dict and prefix + name not in self.task_group_dict

        if is_free(label):
            return label
        number = self.suffixes.get(prefix + label, 0) + 1
        while not is_free(f"{label}__{number}"):
            number += 1
        self.suffixes[prefix + label] = number
        return f"{label}__{number}"


def owner_of(task_id: object, dag: Graph[Any] | None) -> str:
    """The subject of an error message about a task."""
    task = f"Task {task_id!r}" if task_id is not None else "A task"
    return f"{task} of DAG {dag.dag_id!r}" if dag is not None else task


def link(upstream: Node, downstream: Node) -> None:
    """Add one edge. A task without a DAG is added to the DAG of its neighbor."""
    if upstream is downstream:
        raise fault(f"Task {upstream.task_id!r} cannot come after itself.", kind=DagCycleError)
    dag = upstream.dag or downstream.dag
    if dag is None:
        raise fault(f"Tasks {upstream.task_id!r} and {downstream.task_id!r} are in no DAG; define them inside `with DAG(...)`.")
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
    """All operands in nested lists of any depth."""
    if isinstance(value, Linkable):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        return [operand for item in value for operand in flat(item)]
    raise fault(f"An edge joins tasks, results of tasks, groups, or lists of them, not {value!r} ({type(value).__name__}).")


def join(before: Linkable, after: Linkable, label: str | None = None) -> None:
    """Add all edges from one operand to the other, each with the label."""
    roots = after.roots
    for upstream in before.leaves:
        for downstream in roots:
            link(upstream, downstream)
            if label is not None and upstream.dag is not None:
                upstream.dag.edge_labels[upstream.task_id, downstream.task_id] = label
