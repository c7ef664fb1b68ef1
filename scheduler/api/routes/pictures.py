"""The data that the pages of a DAG, a run, two runs and a task show first, each in one request."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query

from paceline.exceptions import NotFoundError, UnreadableVersionError
from paceline.states import RunState
from scheduler.api import params
from scheduler.api.access import RUN, TI, VIEWER_OF_ANY, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import pictures as models
from scheduler.api.params import RunStates, RunTypes, TaskPlace, ranges
from scheduler.api.routes.dag_runs import get_dag_runs
from scheduler.api.routes.dags import kept_source
from scheduler.api.routes.operations import get_task_instance_why
from scheduler.api.routes.task_instances import MOST_LINES, end_of_log, shown, with_operators
from scheduler.store.db import clock
from scheduler.store.read import dags, instances, pictures, runs
from scheduler.store.read.listing import Page

router = new_router(tags=["Paceline"])

#: The most runs in one response of get_recent_runs, and DAGs.
MOST_RECENT, MOST_DAGS = 2000, 200
#: The last lines of the log of a failure.
LINES_OF_FAILURE = 14
#: The most runs in one grid, and days in one calendar: 53 weeks.
WIDEST, MOST_DAYS = 365, 371
VersionNumber = Annotated[int | None, Query(ge=1, le=params.LARGEST)]
STATES = {code: state for state, code in pictures.CODES.items()}


@router.get("/recentRuns", VIEWER_OF_ANY, response_model=models.RecentRuns)
def get_recent_runs(
    api: Api,
    dag_ids: Annotated[list[str], Query(max_length=params.LONGEST_PAGE)],
    limit: Annotated[int, Query(ge=1, le=100)] = 14,
) -> dict[str, Any]:
    """The newest runs of each of these DAGs, in one request: of at most 200 DAGs, and fewer runs of each if there are many DAGs."""
    chosen = sorted(api.read(dags.visible, dag_ids, api.tags()))[:MOST_DAGS]
    return {"dags": api.read(pictures.recent, chosen, min(limit, max(1, MOST_RECENT // max(1, len(chosen)))))}


@router.get("/dags/{dag_id}/runList", VIEWER_OF_DAG, response_model=models.RunList)
def get_run_list(api: Api, found: Annotated[dict[str, Any], Depends(get_dag_runs)]) -> dict[str, Any]:
    """List runs of a DAG, or of all DAGs with ~, as get_dag_runs does, each with its first failed task."""
    failed = api.read(runs.first_failures, [run["id"] for run in found["dag_runs"] if run["state"] == RunState.FAILED])
    rows = []
    for run in found["dag_runs"]:
        first = failed.get(run["id"], {})
        rows.append(run | {f"failed_{name}": first.get(name) for name in ("task_id", "map_index", "reason")})
    return found | {"dag_runs": rows}


@router.get("/dags/{dag_id}/grid", VIEWER_OF_DAG, response_model=models.Grid)
def get_grid(
    api: Api,
    dag_id: str,
    ranges_: Annotated[params.Ranges, Depends(ranges("run_after"))],
    limit: Annotated[int, Query(ge=1, le=WIDEST)] = 25,
    offset: Annotated[int, Query(ge=0, le=params.LARGEST)] = 0,
    run_type: RunTypes = None,
    state: RunStates = None,
    run_id_pattern: str | None = None,
    version_number: VersionNumber = None,
) -> dict[str, Any]:
    """The newest runs of a DAG with the state of each task, one character for each. The rows are the tasks of one version."""
    version = _version(api, dag_id, version_number)
    dag = api.read(api.service.versions.dag, version["version_id"])
    filters = pictures.RUNS.filters().equals("dag_id", dag_id).one_of("run_type", run_type).one_of("state", state)
    filters.in_ranges(ranges_).matches("run_id", run_id_pattern)
    found, columns = api.read(pictures.grid, filters, Page(limit, offset), dag, api.service.versions)
    return {
        "dag_id": dag_id,
        "version_number": version["version_number"],
        "tasks": [{"task_id": task.task_id, "group": task.group, "is_mapped": _mapped(task)} for task in dag.tasks],
        "groups": dag.groups,
        "runs": columns,
        "codes": STATES,
        "total_entries": found.total or 0,
    }


@router.get("/dags/{dag_id}/graph", VIEWER_OF_DAG, response_model=models.Graph)
def get_graph(api: Api, dag_id: str, version_number: VersionNumber = None) -> dict[str, Any]:
    """Tasks, groups and edges of a version of a DAG, by default the newest one."""
    version = _version(api, dag_id, version_number)
    dag = api.read(api.service.versions.dag, version["version_id"])
    edges = [(above, below) for above, found in enumerate(dag.downstream) for below in found]
    nodes = [
        {
            "task_id": task.task_id, "operator": task.operator, "group": task.group, "is_mapped": _mapped(task),
            "is_setup": task.is_setup, "is_teardown": task.is_teardown, "trigger_rule": task.trigger_rule,
            "queue": task.queue, "pool": task.pool,
        }
        for task in dag.tasks
    ]  # fmt: skip
    return {
        "dag_id": dag_id,
        "version_number": version["version_number"],
        "content_hash": dag.content_hash,
        "nodes": nodes,
        "groups": dag.groups,
        "edges": edges,
    }


@router.get("/dags/{dag_id}/calendar", VIEWER_OF_DAG, response_model=models.Calendar)
def get_calendar(
    api: Api, dag_id: str, timezone: str = "UTC", days: Annotated[int, Query(ge=1, le=MOST_DAYS)] = MOST_DAYS
) -> dict[str, Any]:
    """Count the runs of a DAG by day and by hour of the day in a time zone, with those that its schedule plans."""
    dag = api.read(dags.dag, dag_id)
    by_day, by_hour = api.read(pictures.days_and_hours, dag_id, days=days, zone=timezone)
    is_due = not dag["is_paused"] and dag["next_run_after"] is not None
    planned, more = api.read(pictures.planned, dag_id, zone=timezone) if is_due else ([], False)
    return {
        "timezone": timezone, "days": by_day, "hours": by_hour, "planned": planned, "planned_more": more,
        "next_run_after": dag["next_run_after"] if is_due else None,
    }  # fmt: skip


@router.get(f"{RUN}/timeline", VIEWER_OF_DAG, response_model=models.Timeline)
def get_timeline(api: Api, dag_id: str, dag_run_id: str) -> dict[str, Any]:
    """When each task of a run waited, was queued and ran, with the critical path and the first failure."""
    run = api.read(runs.run, dag_id, dag_run_id)
    bars = api.read(pictures.bars, run["id"])
    try:
        path = pictures.critical_path(api.read(api.service.versions.dag, run["version_id"]), bars)
    except UnreadableVersionError:
        path = []
    failure = None if run["state"] == RunState.SUCCESS else _failure(api, run["id"])
    return run | {"failure": failure, "run": run, "now": api.read(clock.now), "bars": bars, "critical_path": path}


@router.get(f"{TI}/view", VIEWER_OF_DAG, response_model=models.TaskInstanceView)
def get_task_instance_view(
    api: Api,
    place: TaskPlace,
    try_number: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    lines: Annotated[int, Query(ge=0, le=MOST_LINES)] = 1000,
) -> dict[str, Any]:
    """Show a task instance with its tries, and the end of the log of a try (by default, the newest one) or the reason why it
    waits. For a mapped task without map_index, show only the states of its instances and their errors.
    """
    states = api.read(instances.mapped_states, *place[:3]) if place.map_index < 0 else {}
    if states:
        errors = api.read(instances.mapped_errors, *place[:3])
        return {"mapped_instances": sum(states.values()), "mapped_states": states, "mapped_errors": errors, "tries": []}
    ti = shown(api, place)
    page = {"mapped_instances": 0, "task_instance": ti, "tries": with_operators(api, api.read(instances.tries, ti["id"]))}
    chosen = ti["try_number"] if try_number is None else try_number
    if chosen == 0:
        return page | {"why": get_task_instance_why(api, place)}
    try:
        log = end_of_log(api, ti, chosen, lines) if lines else None
    except NotFoundError:
        log = None  # the request for the log has the reason
    return page | {"log_try_number": chosen, "log": log}


@router.get(f"{TI}/progress", VIEWER_OF_DAG, response_model=models.Progress)
def get_progress(api: Api, place: TaskPlace) -> dict[str, Any]:
    """Stages and rows of a running Spark task, and its applications with links to their pages."""
    ti = api.read(instances.instance, *place)
    return ti | api.read(pictures.applications, ti["id"])


def _failure(api: Call, run_key: int) -> dict[str, Any] | None:
    """The first failure of a run with the end of its log."""
    failure = api.read(pictures.first_failure, run_key)
    if failure is None:
        return None
    try:
        return failure | {"log": end_of_log(api, failure, failure["try_number"], LINES_OF_FAILURE)}
    except NotFoundError:
        return failure | {"log": None}


def _version(api: Call, dag_id: str, number: int | None) -> dict[str, Any]:
    return api.read(dags.dag, dag_id) if number is None else api.read(dags.version, dag_id, number)


def _mapped(task: Any) -> bool:
    return task.is_mapped or task.mapped_group is not None


@router.get(f"{RUN}/comparison", VIEWER_OF_DAG, response_model=models.Comparison)
def get_comparison(api: Api, dag_id: str, dag_run_id: str, other_run_id: str | None = None) -> dict[str, Any]:
    """Compare a run with another run of its DAG, by default with the newest one before it that succeeded."""
    run = api.read(runs.run, dag_id, dag_run_id)
    chosen = other_run_id or api.read(pictures.last_success, run)
    shown: dict[str, Any] = {
        "run": run,
        "other": None,
        "others": api.read(pictures.others, run),
        "tasks": [],
        "params": [],
        "xcoms": [],
        "code": None,
    }
    if chosen is None:
        return shown
    other = api.read(runs.run, dag_id, chosen)
    return shown | {
        "other": other,
        "tasks": api.read(pictures.tasks, run["id"], other["id"]),
        "params": pictures.differences(_params(api, run), _params(api, other)),
        "xcoms": api.read(pictures.xcoms, run["id"], other["id"]),
        "code": None if run["version_id"] == other["version_id"] else _code(api, run, other),
    }


def _code(api: Call, run: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str] | None:
    """The texts of the DAG file that both runs executed; None if one was not kept."""
    now, before = kept_source(api, run["version_id"]), kept_source(api, other["version_id"])
    return None if now is None or before is None else {"before": before, "now": now}


def _params(api: Call, run: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a run: the defaults of its version, replaced by its conf."""
    try:
        defaults = api.read(api.service.versions.dag, run["version_id"]).params
    except UnreadableVersionError:
        defaults = {}
    return {name: param.get("value") for name, param in defaults.items()} | (run["conf"] or {})
