"""Clear, mark and delete all that a filter selects, with exact counts before."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from paceline.exceptions import UsageError
from paceline.states import TaskState
from scheduler.actions import runs as actions
from scheduler.actions import tasks
from scheduler.api import params
from scheduler.api.access import OPERATOR_OF_ANY
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import by_filter as models
from scheduler.api.routes.task_instances import ours
from scheduler.store.read import instances, runs
from scheduler.store.read.listing import Filters

router = new_router(tags=["Paceline"])

RANGES = ("run_after", "logical_date", "start_date", "end_date")
#: DAGs and errors in a response.
MOST_DAGS, MOST_ERRORS = 100, 20


@router.post("/clearByFilter", OPERATOR_OF_ANY, only_reads="dry_run", response_model=models.ByFilter)
def clear_by_filter(api: Api, body: models.ClearByFilter) -> dict[str, Any]:
    """Clear all task instances that a filter selects. A dry run, which is the default, counts them exactly."""
    done = tasks.clear_rows(
        api.actor, _chosen(api, body.filter), api.service.versions, latest=body.run_on_latest_version, dry_run=body.dry_run,
        expected=body.expected,
    )  # fmt: skip
    return _counted(done, dry_run=body.dry_run)


@router.post("/markByFilter", OPERATOR_OF_ANY, only_reads="dry_run", response_model=models.ByFilter)
def mark_by_filter(api: Api, body: models.MarkByFilter) -> dict[str, Any]:
    """Mark all task instances that a filter selects. A dry run, which is the default, counts them exactly."""
    state = TaskState(body.new_state)
    done = tasks.mark_rows(
        api.actor, _chosen(api, body.filter), api.service.versions, state, dry_run=body.dry_run, expected=body.expected
    )
    return _counted(done, dry_run=body.dry_run)


@router.post("/deleteByFilter", OPERATOR_OF_ANY, only_reads="dry_run", response_model=models.ByFilter)
def delete_by_filter(api: Api, body: models.DeleteByFilter) -> dict[str, Any]:
    """Delete all runs that a filter selects, except runs with a task instance on a worker or a teardown that has yet to run."""
    filters = _common(api, runs.RUNS.filters(), body.filter)
    filters.one_of("state", body.filter.state).one_of("run_type", body.filter.run_type)
    found = api.read(runs.names, filters)
    names = [(row["dag_id"], row["run_id"]) for row in found]
    deleted, errors = actions.delete_each(api.actor, names, dry_run=body.dry_run, expected=body.expected)
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


def _counted(done: tasks.Done, *, dry_run: bool) -> dict[str, Any]:
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
