"""What differs between two versions of a DAG, for people: its arguments, its edges, and the arguments and code of its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.authoring import timetable
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask, complete

#: Fields that follow from others, or that have another form here.
OF_DAG = frozenset({"dag_id", "tasks", "groups", "asset_names", "param_order", "bundle_version", "defaulted_variables", "owners"})
OF_TASK = frozenset({"task_id", "upstream", "priority_weight", "setups", "scope", "notify", "group"})
#: Arguments of the author that fields of the serialized task have with all defaults applied.
APPLIED = OF_TASK.union(
    ("retry_delay", "max_retry_delay", "execution_timeout", "sla", "email_on_failure", "email_on_retry", "params", "inlets"),
    ("priority_weight", "weight_rule"),
    SerializedTask.__dataclass_fields__,
)

#: A name with its values before and now.
Change = dict[str, Any]
#: The details of tasks by ID: {"arguments": {name: text}, "code": digest}, without arguments that are None.
Details = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class DagDifference:
    """What differs between two versions of a DAG. False if nothing does."""

    fields: list[Change] = field(default_factory=list)
    added_tasks: list[str] = field(default_factory=list)
    removed_tasks: list[str] = field(default_factory=list)
    added_edges: list[tuple[str, str]] = field(default_factory=list)
    removed_edges: list[tuple[str, str]] = field(default_factory=list)
    #: By task: the arguments that changed.
    arguments: dict[str, list[Change]] = field(default_factory=dict)
    #: The tasks that execute other code.
    code: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(vars(self).values())


def difference(before: SerializedDag, now: SerializedDag, details_before: Details, details_now: Details) -> DagDifference:
    """Compare two versions of a DAG. Without the details of a task, only what is serialized is compared."""
    old, new = ({task.task_id: task for task in dag.tasks} for dag in (before, now))
    edges_before, edges_now = ({(above, task.task_id) for task in dag.tasks for above in task.upstream} for dag in (before, now))
    both = [task_id for task_id in new if task_id in old]
    details = {task_id: (details_before.get(task_id), details_now.get(task_id)) for task_id in both}
    return DagDifference(
        fields=_changes(_of_dag(before), _of_dag(now)),
        added_tasks=[task_id for task_id in new if task_id not in old],
        removed_tasks=[task_id for task_id in old if task_id not in new],
        # Those of an added or removed task go without saying.
        added_edges=sorted(edge for edge in edges_now - edges_before if set(edge) <= set(both)),
        removed_edges=sorted(edge for edge in edges_before - edges_now if set(edge) <= set(both)),
        arguments={
            task_id: changes for task_id in both if (changes := _task_changes(old[task_id], new[task_id], *details[task_id]))
        },
        code=[task_id for task_id, (one, other) in details.items() if one and other and one["code"] != other["code"]],
    )


def _of_dag(dag: SerializedDag) -> dict[str, Any]:
    values = {name: value for name, value in vars(dag).items() if name in dag.__dataclass_fields__ and name not in OF_DAG}
    return values | {"schedule": timetable.summary(dag.schedule)}


def _task_changes(
    before: SerializedTask, now: SerializedTask, details_before: Mapping[str, Any] | None, details_now: Mapping[str, Any] | None
) -> list[Change]:
    old, new = (
        {name: value for name, value in complete(task.as_stored()).items() if name not in OF_TASK} for task in (before, now)
    )
    if details_before and details_now:
        names = dict.fromkeys([*details_before["arguments"], *details_now["arguments"]])
        old, new = (
            {name: each["arguments"].get(name, "None") for name in names} | stored
            for each, stored in ((details_before, old), (details_now, new))
        )
    return _changes(old, new)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    names = dict.fromkeys([*before, *now])
    return [{"name": name, "before": before.get(name), "now": now.get(name)} for name in names if before.get(name) != now.get(name)]
