"""DAGs: lists, details, tasks, versions, sources, and what a person changes about them."""

import inspect
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse

from paceline.exceptions import NotFoundError, UsageError
from paceline.states import RunState
from scheduler.actions import dags as actions
from scheduler.api import params
from scheduler.api.access import ADMIN_OF_DAG, OPERATOR_OF_ANY, OPERATOR_OF_DAG, VIEWER_OF_ANY, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import base
from scheduler.api.models import dags as models
from scheduler.api.models.base import Version
from scheduler.api.params import Limit, Page, RunStates, Strings, UpdateMask, patterns, ranges
from scheduler.dagfiles.bundle_cache import StoredContents
from scheduler.settings import log_paths
from scheduler.store.dags.bundles import DAGS_FOLDER
from scheduler.store.read import dags as lists
from scheduler.store.read import operations, records, runs
from scheduler.store.read.listing import Filters, in_memory

router = new_router(tags=["DAG"])
#: Bytes of a DAG file in a response.
LONGEST_SOURCE = 4 << 20
RANGES = ranges("dag_run_start_date", "dag_run_end_date")
PATTERNS = patterns(dag_id="dag_id", dag_display_name="dag_id")
TASK_ORDERS = {"task_id", "task_display_name", "owner", "start_date", "pool", "queue", "retries", "trigger_rule", "operator_name"}


async def _filters(
    api: Api,
    ranges_: Annotated[params.Ranges, Depends(RANGES)],
    patterns_: Annotated[params.Patterns, Depends(PATTERNS)],
    tags: Strings = None,
    tags_match_mode: Literal["any", "all"] | None = None,
    owners: Strings = None,
    exclude_stale: bool = True,
    paused: bool | None = None,
    has_import_errors: bool | None = None,
    last_dag_run_state: Annotated[str | None, base.OneRunState] = None,
    dag_run_state: RunStates = None,
    bundle_name: str | None = None,
    bundle_version: str | None = None,
    has_asset_schedule: bool | None = None,
    asset_dependency: str | None = None,
    is_favorite: bool | None = None,
    timetable_type: Strings = None,
) -> Filters:
    """The filters of lists and of bulk changes."""
    filters = lists.DAGS.filters().visible(api.tags()).like_each(patterns_).equals("is_paused", paused)
    if exclude_stale:
        filters.equals("is_active", True)
    lists.tagged(lists.owned(filters, owners), tags, with_all=tags_match_mode == "all")
    filters.equals("last_run_state", last_dag_run_state)
    filters.equals("has_import_errors", has_import_errors).equals("has_asset_schedule", has_asset_schedule)
    filters.matches("asset_uris", asset_dependency).one_of("timetable", timetable_type)
    filters.equals("bundle_name", bundle_name).equals("bundle_version", bundle_version)
    lists.favorite(filters, api.account.id, is_favorite)
    return lists.with_runs(filters, dag_run_state, ranges_["dag_run_start_date"], ranges_["dag_run_end_date"])


Chosen = Annotated[Filters, Depends(_filters)]
#: The parameters that choose DAGs. The others choose none alone: a bundle may have all DAGs.
CHOOSING = {name for function in (_filters, RANGES, PATTERNS) for name in inspect.signature(function).parameters}
CHOOSING -= {"api", "ranges_", "patterns_", "exclude_stale", "tags_match_mode", "bundle_name", "bundle_version"}
#: These choose DAGs only if they are true: the DAGs without them are usually all DAGs.
FLAGS = {name for name in CHOOSING if name.startswith(("is_favorite", "has_"))}


TRUE = {"true", "1", "yes", "on", "t", "y"}


@router.get("/dags", VIEWER_OF_ANY, response_model=models.DagPage)
def get_dags(api: Api, filters: Chosen, page: Page) -> dict[str, Any]:
    """List DAGs."""
    found = api.read(lists.dags, filters, page)
    favorites = api.read(lists.favorites, api.account.id, [row["dag_id"] for row in found.rows])
    return {"dags": [_row(api, row, favorites) for row in found.rows], "total_entries": found.total}


@router.patch("/dags", OPERATOR_OF_ANY, response_model=models.DagPage)
def patch_dags(
    request: Request, api: Api, filters: Chosen, page: Page, body: models.DagPatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """Pause or unpause every DAG that the filters select, and return one page of them.

    The filters are those of the list, and at least one is needed: `dag_id_pattern=~` selects all DAGs.
    """
    given = request.query_params.multi_items()
    if not any(value and (name not in FLAGS or value.lower() in TRUE) for name, value in given if name in CHOOSING):
        raise UsageError("This would change all DAGs: pass a filter, such as dag_id_pattern=etl, or dag_id_pattern=~ for all DAGs.")
    params.masked({}, update_mask, {"is_paused"})
    filters.visible(api.tags("operator"))
    found = api.read(lists.dags, filters, page)
    chosen = api.read(lists.names, filters)
    actions.set_each_paused(api.actor, chosen, paused=body.is_paused)
    rows = [_row(api, row | {"is_paused": body.is_paused}, set()) for row in found.rows]
    return {"dags": rows, "total_entries": found.total}


@router.get("/dags/{dag_id}", VIEWER_OF_DAG, response_model=models.Dag)
def get_dag(api: Api, dag_id: str) -> dict[str, Any]:
    """Show a DAG."""
    return _one(api, dag_id)


@router.get("/dags/{dag_id}/details", VIEWER_OF_DAG, response_model=models.DagDetails)
def get_dag_details(api: Api, dag_id: str) -> dict[str, Any]:
    """Show a DAG with its settings."""
    return _one(api, dag_id) | {"active_runs_count": api.read(lists.running_runs, dag_id)}


@router.patch("/dags/{dag_id}", OPERATOR_OF_DAG, response_model=models.Dag)
def patch_dag(api: Api, dag_id: str, body: models.DagPatch, update_mask: UpdateMask = None) -> dict[str, Any]:
    """Pause or unpause a DAG."""
    if params.masked(body.model_dump(), update_mask, {"is_paused"}):
        actions.set_paused(api.actor, dag_id, paused=body.is_paused)
    return _one(api, dag_id)


@router.delete("/dags/{dag_id}", ADMIN_OF_DAG)
def delete_dag(api: Api, dag_id: str) -> dict[str, Any]:
    """Delete a DAG with its runs and versions. If its file still exists, the DAG is created again without them."""
    deleted = actions.delete(api.actor, dag_id)
    return {"dag_id": dag_id, "runs": len(deleted.runs), "file": deleted.file}


@router.post("/dags/{dag_id}/favorite", VIEWER_OF_DAG, status_code=204)
def favorite_dag(api: Api, dag_id: str) -> None:
    """Add a DAG to the favorites of this account."""
    actions.set_favorite(api.actor, api.account.id, dag_id, favorite=True)


@router.post("/dags/{dag_id}/unfavorite", VIEWER_OF_DAG, status_code=204)
def unfavorite_dag(api: Api, dag_id: str) -> None:
    """Remove a DAG from the favorites of this account."""
    actions.set_favorite(api.actor, api.account.id, dag_id, favorite=False)


@router.get("/dags/{dag_id}/tasks", VIEWER_OF_DAG, response_model=models.TaskPage, tags=["Task"])
def get_tasks(
    api: Api, dag_id: str, order_by: str = "task_id", limit: Limit = params.LONGEST_PAGE, offset: Limit = 0
) -> dict[str, Any]:
    """List the tasks of the newest version of a DAG."""
    found = in_memory(_tasks(api, dag_id), params.page(limit, offset, [order_by]), orders=TASK_ORDERS, default=())
    return {"tasks": found.rows, "total_entries": found.total}


@router.get("/dags/{dag_id}/tasks/{task_id}", VIEWER_OF_DAG, response_model=models.Task, tags=["Task"])
def get_task(api: Api, dag_id: str, task_id: str) -> dict[str, Any]:
    """Show a task of the newest version of a DAG."""
    for row in _tasks(api, dag_id):
        if row["task_id"] == task_id:
            return row
    raise NotFoundError(f"DAG {dag_id!r} has no task {task_id!r}.")


@router.get("/dags/{dag_id}/dagVersions", VIEWER_OF_DAG, response_model=models.VersionPage, tags=["DagVersion"])
def get_dag_versions(
    api: Api,
    dag_id: str,
    page: Page,
    version_number: int | None = None,
    bundle_name: str | None = None,
    bundle_version: str | None = None,
) -> dict[str, Any]:
    """List the versions of a DAG."""
    filters = lists.VERSIONS.filters().visible(api.tags()).equals("version_number", version_number)
    if dag_id != "~":
        api.read(lists.dag, dag_id)
        filters.equals("dag_id", dag_id)
    filters.equals("bundle_name", bundle_name).equals("bundle_version", bundle_version)
    return api.page("dag_versions", lists.VERSIONS, filters, page)


@router.get("/dags/{dag_id}/dagVersions/{version_number}", VIEWER_OF_DAG, response_model=Version, tags=["DagVersion"])
def get_dag_version(api: Api, dag_id: str, version_number: params.Number) -> dict[str, Any]:
    """Show a version of a DAG."""
    return api.read(lists.version, dag_id, version_number)


@router.get("/dagSources/{dag_id}", VIEWER_OF_DAG, response_model=models.DagSource, tags=["DagSource"])
def get_dag_source(
    api: Api,
    dag_id: str,
    version_number: Annotated[int | None, Query(ge=1, le=params.LARGEST)] = None,
    file_now: bool = False,
    accept: Annotated[str, Header()] = "*/*",
) -> Response | dict[str, Any]:
    """Show the file of a DAG: with a version, as it was when that version was stored; otherwise, as its next run executes it.

    `file_now` asks for the file as it stands in the DAGs folder, which an import error is about. `is_file_now` says which one it
    is: a text that was not kept, or a file that is not here, is replaced by the other one.
    """
    row = api.read(lists.dag, dag_id)
    number = version_number or row["version_number"]
    version = row if number == row["version_number"] else api.read(lists.version, dag_id, number)
    kept = kept_source(api, version["version_id"])
    executes_file = row["bundle_version"] is None and version is row and not (version_number and kept)
    now = _file(api, row["file"]) if executes_file or (file_now and row["bundle_name"] == DAGS_FOLDER) else None
    text = kept if now is None else now
    if text is None:
        raise NotFoundError(f"The source of version {number} of DAG {dag_id!r} was not kept, and its file is not here.")
    if accept.startswith("text/plain"):
        return PlainTextResponse(text)
    shown = {"dag_id": dag_id, "dag_display_name": dag_id, "version_number": number}
    shown |= {name: version[name] for name in ("bundle_name", "bundle_version")}
    return shown | {"content": text, "is_file_now": now is not None}


def kept_source(api: Call, version_id: int) -> str | None:
    """The text of the DAG file that is stored with a version, or None."""
    pinned = api.read(lists.pinned_file, version_id)
    if pinned is None:
        return api.read(lists.source, version_id)
    content = StoredContents.over(api.read, api.settings).content(*pinned)
    return None if content is None else content.decode("utf-8", "replace").replace("\0", "\ufffd")


def _file(api: Call, name: str) -> str | None:
    """The text of a DAG file in the folder of this web process; None if it is gone.

    NotFoundError if it is no regular file in this folder: its author could make it a link to what only the web process may read.
    """
    folder = api.settings.dags_folder
    try:
        with os.fdopen(log_paths.regular_descriptor(log_paths.resolved(folder, folder / name, links=True)), "rb") as file:
            return file.read(LONGEST_SOURCE).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        raise NotFoundError(f"The file {name!r} is no readable file in the DAGs folder: it may be a link that leads out.") from None


@router.put("/parseDagFile/{file_token}", OPERATOR_OF_ANY, status_code=201, tags=["DAG Parsing"])
def reparse_dag_file(api: Api, file_token: str) -> None:
    """Parse a DAG file again now, whether it has changed or not."""
    path = models.file_of(file_token)
    found = api.read(lists.dags_of_file, path) if path else []
    for dag_id in found:
        api.require(dag_id, "operator")
    if not path or (not found and api.tags("operator") is not None) or not actions.reparse(api.actor, path=path):
        raise NotFoundError("There is no DAG file with this token.")


@router.get("/dagTags", VIEWER_OF_ANY, response_model=models.TagPage)
def get_dag_tags(api: Api, page: Page, patterns_: Annotated[params.Patterns, Depends(patterns(tag_name="tag"))]) -> dict[str, Any]:
    """List the tags of DAGs."""
    filters = lists.tag_filters().visible(api.tags()).like_each(patterns_)
    tags = api.read(lists.tags, filters)
    found = in_memory([{"name": tag} for tag in tags], page, orders={"name"}, default=("name",))
    return {"tags": [row["name"] for row in found.rows], "total_entries": found.total}


@router.get("/dagStats", VIEWER_OF_ANY, response_model=models.DagStatsPage, tags=["DagStats"])
def get_dag_stats(api: Api, dag_ids: Strings = None, limit: Limit = params.LONGEST_PAGE, offset: Limit = 0) -> dict[str, Any]:
    """Count the runs of DAGs in each state. A DAG that never had a run is left out."""
    filters = runs.RUNS.filters().visible(api.tags()).one_of("dag_id", dag_ids)
    stats: dict[str, dict[str, int]] = {}
    for row in api.read(runs.counts_by_state, filters):
        stats.setdefault(row["dag_id"], dict.fromkeys(RunState, 0))[row["state"]] = row["count"]
    dags = [
        {"dag_id": dag_id, "dag_display_name": dag_id, "stats": [{"state": one, "count": counts[one]} for one in counts]}
        for dag_id, counts in stats.items()
    ]
    found = in_memory(dags, params.page(limit, offset), orders={"dag_id"}, default=("dag_id",))
    return {"dags": found.rows, "total_entries": found.total}


@router.get("/dagWarnings", VIEWER_OF_ANY, response_model=models.DagWarningPage, tags=["DagWarning"])
def list_dag_warnings(api: Api, page: Page, dag_id: str | None = None, warning_type: str | None = None) -> dict[str, Any]:
    """List DAGs whose tasks name a pool that does not exist, or a queue that no worker listens to."""
    found_warnings = api.read(operations.dag_warnings, dag_id)
    visible = set(api.read(lists.visible, {row["dag_id"] for row in found_warnings}, api.tags()))
    rows = [
        {name: row[name] for name in ("dag_id", "warning_type", "message")}
        | {"dag_display_name": row["dag_id"], "timestamp": row["parsed_at"]}
        for row in found_warnings
        if row["dag_id"] in visible and warning_type in {None, row["warning_type"]}
    ]
    found = in_memory(rows, page, orders={"dag_id", "warning_type", "message", "timestamp"}, default=("dag_id",))
    return {"dag_warnings": found.rows, "total_entries": found.total}


@router.get("/importErrors", VIEWER_OF_ANY, response_model=models.ImportErrorPage, tags=["Import Error"])
def get_import_errors(
    api: Api,
    page: Page,
    patterns_: Annotated[params.Patterns, Depends(patterns(filename="filename"))],
    filename: str | None = None,
    bundle_name: str | None = None,
) -> dict[str, Any]:
    """List DAG files that cannot be read."""
    filters = records.error_filters(api.tags()).like_each(patterns_).equals("filename", filename)
    if bundle_name not in {None, DAGS_FOLDER}:
        filters.nothing()
    return api.page("import_errors", records.IMPORT_ERRORS, filters, page)


@router.get("/importErrors/{import_error_id}", VIEWER_OF_ANY, response_model=models.ImportError_, tags=["Import Error"])
def get_import_error(api: Api, import_error_id: params.Number) -> dict[str, Any]:
    """Show why a DAG file cannot be read."""
    filters = records.error_filters(api.tags()).equals("number", import_error_id)
    return api.read(records.IMPORT_ERRORS.one, filters, f"There is no import error {import_error_id}.")


def _one(api: Api, dag_id: str) -> dict[str, Any]:
    return _row(api, api.read(lists.dag, dag_id), api.read(lists.favorites, api.account.id, [dag_id]))


def _row(api: Api, row: dict[str, Any], favorites: set[str]) -> dict[str, Any]:
    folder = api.settings.dags_folder if row["bundle_name"] == DAGS_FOLDER else Path(row["bundle_name"])
    return row | {"fileloc": str(folder / row["file"]), "is_favorite": row["dag_id"] in favorites}


def _tasks(api: Api, dag_id: str) -> list[dict[str, Any]]:
    tasks = api.read(lists.tasks, dag_id)
    below: dict[str, list[str]] = {}
    for task in tasks:
        for above in task["upstream"]:
            below.setdefault(above, []).append(task["task_id"])
    return [
        task
        | {
            "task_display_name": task["task_id"],
            "execution_timeout": models.duration(task.get("execution_timeout_s")),
            "retry_delay": models.duration(task.get("retry_delay_s")),
            "downstream_task_ids": below.get(task["task_id"], []),
            "upstream_task_ids": task["upstream"],
            "operator_name": task["operator"],
            "class_ref": {"module_path": "paceline.operators", "class_name": task["operator"]},
            "is_mapped": task.get("expand") is not None,
            "group_id": task.get("group"),
        }
        for task in tasks
    ]
