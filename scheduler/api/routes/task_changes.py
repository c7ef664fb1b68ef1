"""Changes of task instances: clear, mark, note and delete; and of all that a filter selects, with exact counts before."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Query

from paceline import states
from paceline.exceptions import UsageError
from paceline.states import TaskState
from scheduler.actions import runs as run_actions
from scheduler.actions import tasks as actions
from scheduler.actions.tasks import Place
from scheduler.api import bulk, params
from scheduler.api.access import GROUP, OPERATOR_OF_ANY, OPERATOR_OF_DAG, RUN, TI
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import task_instances as models
from scheduler.api.models.base import BulkResponse
from scheduler.api.params import TaskPlace, UpdateMask
from scheduler.api.routes.dag_runs import cleared, moved
from scheduler.api.routes.task_instances import of_group, ours, with_operators
from scheduler.store.actions import mark
from scheduler.store.read import dags, instances, runs
from scheduler.store.read.listing import Filters
from scheduler.store.runs.selection import Runs, Tasks

router = new_router(tags=["Task Instance"])


class Chosen(NamedTuple):
    """Tasks of a run; all of their instances, or those of a map index."""

    dag_id: str
    run_id: str
    task_ids: Sequence[str]
    map_index: int | None = None


async def _task(dag_id: str, dag_run_id: str, task_id: str, map_index: Annotated[int | None, Query(ge=-1)] = None) -> Chosen:
    return Chosen(dag_id, dag_run_id, [task_id], map_index)


async def _instance(dag_id: str, dag_run_id: str, task_id: str, map_index: int) -> Chosen:
    return Chosen(dag_id, dag_run_id, [task_id], map_index)


@router.patch(f"{RUN}/taskInstances", OPERATOR_OF_DAG, response_model=BulkResponse)
def bulk_task_instances(
    api: Api, dag_id: str, dag_run_id: str, body: bulk.Actions[models.TaskInstanceRef, str | models.TaskInstanceRef]
) -> dict[str, Any]:
    """Mark or delete several task instances."""

    def place(entity: str | models.TaskInstanceRef) -> tuple[str, str, str, int | None]:
        one = models.TaskInstanceRef(task_id=entity) if isinstance(entity, str) else entity
        # As in Airflow, what an entry names counts, and not the path.
        dag, run = one.dag_id or dag_id, one.dag_run_id or dag_run_id
        if "~" in {dag, run}:
            raise UsageError("With ~ in the path, each entry needs its dag_id and dag_run_id.")
        if dag != dag_id:
            api.require(dag, "operator")
        return dag, run, one.task_id, one.map_index

    def name(entity: str | models.TaskInstanceRef) -> str:
        dag, run, task, index = place(entity)
        return f"{dag}.{run}.{task}[{-1 if index is None else index}]"

    def find(entity: str | models.TaskInstanceRef) -> list[str]:
        dag, run, task, index = place(entity)
        return [f"{dag}.{run}.{task}[{one}]" for one in api.read(instances.indexes, dag, run, task, index)]

    def update(entity: models.TaskInstanceRef, mask: list[str] | None) -> None:
        dag, run, task, index = place(entity)
        _patch(api, Chosen(dag, run, [task], index), entity, mask)

    def delete(entity: str | models.TaskInstanceRef) -> None:
        dag, run, task, index = place(entity)
        for one in api.read(instances.indexes, dag, run, task, index) or [-1]:
            actions.delete(api.actor, Place(dag, run, task, one))

    reason = "Task instances cannot be created: clear the run with run_on_latest_version to get new tasks."
    return bulk.run(body.actions, name=name, find=find, create=reason, update=update, delete=delete)


@router.post("/dags/{dag_id}/clearTaskInstances", OPERATOR_OF_DAG, only_reads="dry_run", response_model=models.ClearedTaskInstances)
def post_clear_task_instances(api: Api, dag_id: str, body: models.ClearTaskInstances) -> dict[str, Any]:
    """Clear task instances, so that they run again. A dry run, which is the default, only lists them."""
    api.read(dags.dag, dag_id)
    if not body.reset_dag_runs:
        raise UsageError("A cleared task instance runs again, and so does its run: leave out reset_dag_runs.")
    if body.dag_run_id is not None:
        api.read(runs.run, dag_id, body.dag_run_id)
    chosen = Runs(
        dag_id=dag_id,
        run_id=body.dag_run_id,
        past=body.include_past,
        future=body.include_future,
        from_date=body.start_date,
        to_date=body.end_date,
    )
    tasks = Tasks(
        task_ids=_entries(body.task_ids),
        upstream=body.include_upstream,
        downstream=body.include_downstream,
        states=states.FAILURES if body.only_failed else states.STARTED if body.only_running else None,
    )
    changes = actions.clear(
        api.actor, chosen, tasks, latest=body.run_on_latest_version, note=body.note, dry_run=body.dry_run,
        prevent_running=body.prevent_running_task,
    )  # fmt: skip
    if body.dry_run:
        return cleared(api, changes)
    rows = api.read(instances.INSTANCES.by_keys, api.read(instances.keys_of, changes))
    more = {"passed_over": changes.passed_over, "moved": moved(changes)}
    return {"task_instances": with_operators(api, rows), "total_entries": len(rows), **more}


@router.delete(TI, OPERATOR_OF_DAG)
def delete_task_instance(api: Api, place: TaskPlace) -> None:
    """Delete a task instance whose task is no longer in its DAG."""
    actions.delete(api.actor, place)


@router.patch(f"{TI}/dry_run", OPERATOR_OF_DAG, only_reads=True, response_model=models.MarkedTaskInstances)
def patch_task_instance_dry_run(
    api: Api, chosen: Annotated[Chosen, Depends(_task)], body: models.TaskInstancePatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """List the changes that marking a task instance would make."""
    return _patch(api, chosen, body, update_mask, dry_run=True)


@router.patch(TI, OPERATOR_OF_DAG, response_model=models.MarkedTaskInstances)
def patch_task_instance(
    api: Api, chosen: Annotated[Chosen, Depends(_task)], body: models.TaskInstancePatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """Mark a task instance, or all instances of a mapped task, or set their note."""
    return _patch(api, chosen, body, update_mask)


@router.patch(f"{GROUP}/dry_run", OPERATOR_OF_DAG, only_reads=True, response_model=models.MarkedTaskInstances)
def patch_task_group_instances_dry_run(
    api: Api, dag_id: str, dag_run_id: str, group_id: str, body: models.TaskInstancePatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """List the changes that marking the task instances of a group would make."""
    chosen = Chosen(dag_id, dag_run_id, of_group(api, dag_id, dag_run_id, group_id))
    return _patch(api, chosen, body, update_mask, dry_run=True)


@router.patch(GROUP, OPERATOR_OF_DAG, response_model=models.MarkedTaskInstances)
def patch_task_group_instances(
    api: Api, dag_id: str, dag_run_id: str, group_id: str, body: models.TaskInstancePatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """Mark the task instances of a group."""
    chosen = Chosen(dag_id, dag_run_id, of_group(api, dag_id, dag_run_id, group_id))
    return _patch(api, chosen, body, update_mask)


@router.patch(f"{TI}/{{map_index}}/dry_run", OPERATOR_OF_DAG, only_reads=True, response_model=models.MarkedTaskInstances)
def patch_task_instance_dry_run_by_map_index(
    api: Api, chosen: Annotated[Chosen, Depends(_instance)], body: models.TaskInstancePatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """List the changes that marking one instance of a mapped task would make."""
    return _patch(api, chosen, body, update_mask, dry_run=True)


@router.patch(f"{TI}/{{map_index}}", OPERATOR_OF_DAG, response_model=models.MarkedTaskInstances)
def patch_task_instance_by_map_index(
    api: Api, chosen: Annotated[Chosen, Depends(_instance)], body: models.TaskInstancePatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """Mark one instance of a mapped task, or set its note."""
    return _patch(api, chosen, body, update_mask)


def _entries(task_ids: list[Any] | None) -> tuple[str | tuple[str, int], ...]:
    """["a", ["b", 1]] is task a as a whole and instance 1 of task b."""
    entries: list[str | tuple[str, int]] = []
    for one in task_ids or ():
        name, index = one if isinstance(one, list) else (one, None)
        if not isinstance(name, str) or not (index is None or isinstance(index, int)):
            raise UsageError("An entry of task_ids is a task id, or a pair of a task id and a map index.")
        entries.append(name if index is None else (name, index))
    return tuple(entries)


def _patch(
    api: Call, chosen: Chosen, body: models.TaskInstancePatch, mask: list[str] | None, *, dry_run: bool = False
) -> dict[str, Any]:
    api.read(runs.run, chosen.dag_id, chosen.run_id)
    values = params.masked(body.model_dump(include={"new_state", "note"}, exclude_unset=True), mask, {"new_state", "note"})
    if values.get("new_state") not in {None, *mark.STATES}:
        raise UsageError(f"A task instance cannot be marked {values['new_state']}: choose success, failed or skipped.")
    of_runs = Runs(dag_id=chosen.dag_id, run_id=chosen.run_id, past=body.include_past, future=body.include_future)
    tasks = Tasks(
        task_ids=tuple(chosen.task_ids),
        map_index=chosen.map_index,
        upstream=body.include_upstream,
        downstream=body.include_downstream,
    )
    changes = actions.change(
        api.actor, of_runs, tasks, {("state" if name == "new_state" else name): values[name] for name in values}, dry_run=dry_run
    )
    # Those that were marked, or else those with a new note.
    keys = api.read(instances.keys_of, changes)
    if not keys:
        named = api.read(instances.named, of_runs, tasks)
        keys = [] if dry_run else named
    rows = with_operators(api, api.read(instances.INSTANCES.by_keys, keys))
    return {"task_instances": rows, "total_entries": len(rows), "passed_over": changes.passed_over}


by_filter = new_router(tags=["Paceline"])

RANGES = ("run_after", "logical_date", "start_date", "end_date")
#: DAGs and errors in a response.
MOST_DAGS, MOST_ERRORS = 100, 20


@by_filter.post("/clearByFilter", OPERATOR_OF_ANY, only_reads="dry_run", response_model=models.ByFilter)
def clear_by_filter(api: Api, body: models.ClearByFilter) -> dict[str, Any]:
    """Clear all task instances that a filter selects. A dry run, which is the default, counts them exactly."""
    done = actions.clear_rows(
        api.actor, _chosen(api, body.filter), api.service.versions, latest=body.run_on_latest_version, dry_run=body.dry_run,
        expected=body.expected,
    )  # fmt: skip
    return _counted(done, dry_run=body.dry_run)


@by_filter.post("/markByFilter", OPERATOR_OF_ANY, only_reads="dry_run", response_model=models.ByFilter)
def mark_by_filter(api: Api, body: models.MarkByFilter) -> dict[str, Any]:
    """Mark all task instances that a filter selects. A dry run, which is the default, counts them exactly."""
    state = TaskState(body.new_state)
    done = actions.mark_rows(
        api.actor, _chosen(api, body.filter), api.service.versions, state, dry_run=body.dry_run, expected=body.expected
    )
    return _counted(done, dry_run=body.dry_run)


@by_filter.post("/deleteByFilter", OPERATOR_OF_ANY, only_reads="dry_run", response_model=models.ByFilter)
def delete_by_filter(api: Api, body: models.DeleteByFilter) -> dict[str, Any]:
    """Delete all runs that a filter selects, except runs with a task instance on a worker or a teardown that has yet to run."""
    filters = _common(api, runs.RUNS.filters(), body.filter)
    filters.one_of("state", body.filter.state).one_of("run_type", body.filter.run_type)
    found = api.read(runs.names, filters)
    names = [(row["dag_id"], row["run_id"]) for row in found]
    deleted, errors = run_actions.delete_each(api.actor, names, dry_run=body.dry_run, expected=body.expected)
    counts = Counter(row["state"] for row in found if (row["dag_id"], row["run_id"]) in set(deleted))
    return {
        "dry_run": body.dry_run,
        "count": len(deleted),
        "runs": len(deleted),
        "changes": [{"state": state, "becomes": "deleted", "count": count} for state, count in counts.items()],
        "dags": _dags(deleted),
        "errors": [str(error) for error in errors[:MOST_ERRORS]],
    }


def _chosen(api: Call, chosen: models.InstanceFilter) -> dict[int, list[int]]:
    """The task instances that a filter selects and the account may change, by run."""
    filters = _common(api, instances.INSTANCES.filters(), chosen)
    filters.one_of("task_id", chosen.task_ids).matches("task_id", chosen.task_id_pattern).one_of("operator", chosen.operator)
    filters.one_of("state", ours(chosen.state), null="none").one_of("pool", chosen.pool).one_of("queue", chosen.queue)
    return api.read(instances.keys_by_run, filters.one_of("map_index", chosen.map_index))


def _common(api: Call, filters: Filters, chosen: models.Filter) -> Filters:
    """The conditions that filters of runs and of task instances share. UsageError for an empty filter."""
    if not chosen.model_dump(exclude_none=True):
        raise UsageError('The filter is empty, which would select everything: use "dag_ids": ["~"] if you mean that.')
    filters.visible(api.tags("operator")).one_of("dag_id", chosen.dag_ids).one_of("run_id", chosen.dag_run_ids)
    filters.matches("dag_id", chosen.dag_id_pattern).matches("run_id", chosen.run_id_pattern)
    return filters.in_ranges(params.bounds_in(chosen, *RANGES))


def _counted(done: actions.Done, *, dry_run: bool) -> dict[str, Any]:
    """The changes, or a preview of them."""
    kinds = Counter((change.state, change.becomes) for change in done.changes)
    return {
        "dry_run": dry_run,
        "count": len(done.changes),
        "runs": len({change.dag_run_id for change in done.changes}),
        "changes": [{"state": state, "becomes": becomes, "count": count} for (state, becomes), count in kinds.most_common()],
        "dags": _dags([(change.dag_id, change.run_id) for change in done.changes]),
        "errors": [str(error) for error in done.errors[:MOST_ERRORS]],
    }


def _dags(places: Collection[tuple[str, str]]) -> list[dict[str, Any]]:
    """The number of changes and runs of each DAG, those with most first."""
    of_dag: dict[str, set[str]] = {}
    for dag_id, run_id in places:
        of_dag.setdefault(dag_id, set()).add(run_id)
    counts = Counter(dag_id for dag_id, _ in places)
    return [{"dag_id": dag_id, "count": count, "runs": len(of_dag[dag_id])} for dag_id, count in counts.most_common(MOST_DAGS)]
