"""DAG runs: lists, triggers, changes, and waiting for their end; and backfills."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from paceline import states
from paceline.exceptions import NotFoundError, UnreachableError, UsageError
from scheduler.actions import runs as actions
from scheduler.actions.actor import ForbiddenError
from scheduler.api import bulk, other_dags, params
from scheduler.api.access import OPERATOR_OF_ANY, OPERATOR_OF_DAG, RUN, VIEWER_OF_ANY, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, check_again, new_router
from scheduler.api.errors import UnauthenticatedError
from scheduler.api.models import dag_runs as models
from scheduler.api.models import records as records_models
from scheduler.api.models.assets import AssetEventPage
from scheduler.api.models.base import BulkResponse
from scheduler.api.models.task_instances import ClearedTaskInstances
from scheduler.api.params import CursorPage, Number, RunStates, RunTypes, Strings, UpdateMask, patterns, ranges
from scheduler.api.params import Page as PageOfRequest
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.read import assets, dags, instances, records, runs, values
from scheduler.store.read.listing import Filters, Page
from scheduler.store.runs.selection import Changes

router = new_router(tags=["DagRun"])

RANGES = ("run_after", "logical_date", "start_date", "end_date", "duration", "updated_at", "partition_date")
#: Characters of an idempotency key.
LONGEST_KEY = 200
#: Seconds between two polls of a run that a client waits for.
SHORTEST_INTERVAL_S = 0.1


@router.get("/dags/{dag_id}/dagRuns", VIEWER_OF_DAG, response_model=models.DagRunPage)
def get_dag_runs(
    api: Api,
    dag_id: str,
    page: CursorPage,
    ranges_: Annotated[params.Ranges, Depends(ranges(*RANGES))],
    patterns_: Annotated[params.Patterns, Depends(patterns(run_id="run_id", dag_id="dag_id", partition_key="partition_key"))],
    run_type: RunTypes = None,
    state: RunStates = None,
    dag_version: Annotated[list[int] | None, Query()] = None,
    bundle_name: str | None = None,
    bundle_version: str | None = None,
    conf_contains: str | None = None,
    triggering_user_name_pattern: str | None = None,
    triggering_user_name_prefix_pattern: str | None = None,
    consuming_asset_pattern: str | None = None,
) -> dict[str, Any]:
    """List runs of a DAG, or of all DAGs with ~."""
    filters = _of_dag(api, dag_id).one_of("run_type", run_type).one_of("state", state).one_of("version_number", dag_version)
    filters.in_ranges(ranges_).like_each(patterns_).matches("conf", conf_contains)
    runs.of_bundle(filters, bundle_name, bundle_version)
    runs.by_user(filters, triggering_user_name_pattern, triggering_user_name_prefix_pattern)
    runs.consumed(filters, consuming_asset_pattern)
    return api.page("dag_runs", runs.RUNS, filters, page)


@router.post("/dags/{dag_id}/dagRuns/list", VIEWER_OF_DAG, only_reads=True, response_model=models.DagRunPage)
def get_list_dag_runs_batch(api: Api, dag_id: str, body: models.DagRunsFilter) -> dict[str, Any]:
    """List runs by filters in the body. The DAG in the path is ~."""
    if dag_id != "~":
        raise UsageError("The DAG in the path must be ~: name DAGs in dag_ids.")
    filters = _of_dag(api, "~").one_of("dag_id", body.dag_ids).one_of("state", body.states).matches("conf", body.conf_contains)
    filters.in_ranges(params.bounds_in(body, "run_after", "logical_date", "start_date", "end_date", "duration"))
    page = params.page(body.page_limit, body.page_offset, [body.order_by] if body.order_by else None)
    return api.page("dag_runs", runs.RUNS, filters, page)


@router.get(RUN, VIEWER_OF_DAG, response_model=models.DagRun)
def get_dag_run(api: Api, dag_id: str, dag_run_id: str) -> dict[str, Any]:
    """Show a run."""
    return api.read(runs.run, dag_id, dag_run_id)


@router.post("/dags/{dag_id}/dagRuns", OPERATOR_OF_DAG, response_model=models.DagRun)
def trigger_dag_run(
    api: Api,
    dag_id: str,
    body: models.TriggerBody,
    idempotency_key: Annotated[str | None, Header(max_length=LONGEST_KEY)] = None,
) -> dict[str, Any]:
    """Create a run now. A request with the Idempotency-Key of an earlier one returns the run that the earlier one created."""
    if (body.data_interval_start is None) != (body.data_interval_end is None):
        raise UsageError("data_interval_start and data_interval_end belong together: give both or neither.")
    return trigger(api, dag_id, body, idempotency_key)


def trigger(api: Call, dag_id: str, body: models.TriggerBody, idempotency_key: str | None = None) -> dict[str, Any]:
    """Create a run and announce it."""
    start, end = body.data_interval_start, body.data_interval_end
    key = idempotency_key
    return actions.trigger(
        api.actor,
        dag_id,
        note=body.note,
        request=actions.RepeatedRequest(api.account.id, key, _digest(dag_id, body)) if key else None,
        run_id=body.dag_run_id,
        logical_date=body.logical_date,
        dated=not body.is_undated,
        conf=body.conf,
        data_interval=(start, end) if start and end else None,
        run_after=body.run_after,
        partition_key=body.partition_key,
    )


def _digest(dag_id: str, body: models.TriggerBody) -> bytes:
    """The hash of a request, which tells a repeated one from another. UsageError."""
    try:
        # In ASCII: half a surrogate pair has no other encoding, and the database refuses it in a sentence.
        text = json.dumps(body.model_dump(mode="json"))
    except (ValueError, RecursionError):
        raise UsageError("The conf is nested too deeply; make it flatter.") from None
    return hashlib.sha256(f"{dag_id}\n{text}".encode()).digest()


@router.patch(RUN, OPERATOR_OF_DAG, response_model=models.DagRun)
def patch_dag_run(
    api: Api, dag_id: str, dag_run_id: str, body: models.DagRunPatch, update_mask: UpdateMask = None
) -> dict[str, Any]:
    """Mark a run as success or failed, queue an ended one, or set its note.

    A queued run runs only what has not ended: to run tasks again, clear them. A marked run ends after its teardowns have run.
    """
    values = params.masked(body.model_dump(exclude_unset=True), update_mask, {"state", "note"})
    actions.change(api.actor, dag_id, dag_run_id, values)
    return api.read(runs.run, dag_id, dag_run_id)


@router.delete(RUN, OPERATOR_OF_DAG, status_code=204)
def delete_dag_run(api: Api, dag_id: str, dag_run_id: str) -> None:
    """Delete a run with its task instances, tries and XComs. Its logs stay."""
    actions.delete(api.actor, dag_id, dag_run_id)


@router.post(f"{RUN}/clear", OPERATOR_OF_DAG, only_reads="dry_run", response_model=ClearedTaskInstances | models.DagRun)
def clear_dag_run(api: Api, dag_id: str, dag_run_id: str, body: models.DagRunClear) -> dict[str, Any]:
    """Clear the task instances of a run, so that they run again. A dry run lists them."""
    changes = _clear(api, [(dag_id, dag_run_id)], body)
    return cleared(api, changes) if body.dry_run else api.read(runs.run, dag_id, dag_run_id)


@router.post(
    "/dags/{dag_id}/clearDagRuns",
    OPERATOR_OF_DAG,
    only_reads="dry_run",
    response_model=ClearedTaskInstances | models.DagRunPage,
)
def clear_dag_runs(api: Api, dag_id: str, body: models.DagRunsClear) -> dict[str, Any]:
    """Clear several runs: all of them, or, after an error, none."""
    if body.partition_key or body.partition_date_start or body.partition_date_end or not body.dag_runs:
        raise UsageError("Name the runs in dag_runs; Paceline does not clear runs by partition.")
    named = [(_dag_of(api, dag_id, one.dag_id), one.dag_run_id) for one in body.dag_runs]
    changes = _clear(api, named, body)
    if body.dry_run:
        return cleared(api, changes)
    found = [api.read(runs.run, *one) for one in named]
    return {"dag_runs": found, "total_entries": len(found)}


@router.patch("/dags/{dag_id}/dagRuns", OPERATOR_OF_DAG, response_model=BulkResponse)
def bulk_dag_runs(api: Api, dag_id: str, body: bulk.Actions[models.DagRunRef, str | models.DagRunRef]) -> dict[str, Any]:
    """Change or delete several runs."""

    def name(entity: str | models.DagRunRef) -> str:
        return f"{_dag(entity)}.{_run(entity)}"

    def _dag(entity: str | models.DagRunRef) -> str:
        return _dag_of(api, dag_id, None if isinstance(entity, str) else entity.dag_id)

    def _run(entity: str | models.DagRunRef) -> str:
        return entity if isinstance(entity, str) else entity.dag_run_id

    def find(entity: str | models.DagRunRef) -> list[str]:
        own = runs.RUNS.filters().equals("dag_id", _dag(entity)).equals("run_id", _run(entity))
        return [name(entity)] if api.read(runs.names, own) else []

    def update(entity: models.DagRunRef, mask: list[str] | None) -> None:
        values = entity.model_dump(include={"state", "note"}, exclude_unset=True)
        patch_dag_run(api, _dag(entity), entity.dag_run_id, models.DagRunPatch(**params.masked(values, mask, {"state", "note"})))

    def delete(entity: str | models.DagRunRef) -> None:
        actions.delete(api.actor, _dag(entity), _run(entity))

    reason = "Runs cannot be created in bulk: trigger each of them."
    return bulk.run(body.actions, name=name, find=find, create=reason, update=update, delete=delete)


@router.get(f"{RUN}/upstreamAssetEvents", VIEWER_OF_DAG, response_model=AssetEventPage, tags=["Asset"])
def get_upstream_asset_events(api: Api, dag_id: str, dag_run_id: str) -> dict[str, Any]:
    """List the updates of assets that created a run. Tasks and runs of DAGs that the account may not see are left out."""
    row = api.read(runs.run, dag_id, dag_run_id)
    page = api.page("asset_events", assets.ASSET_EVENTS, assets.events_of_run(row["id"]), Page(limit=params.LONGEST_PAGE))
    return page | {"asset_events": other_dags.in_asset_events(api, page["asset_events"])}


@router.get(f"{RUN}/wait", VIEWER_OF_DAG, tags=["experimental"], response_class=StreamingResponse)
def wait_dag_run_until_finished(
    request: Request,
    api: Api,
    dag_id: str,
    dag_run_id: str,
    interval: Annotated[float, Query(gt=0, le=3600)],
    result: Strings = None,
) -> StreamingResponse:
    """Stream the state of a run as lines of JSON until it ends; the last line has the return values of the tasks in `result`.

    `interval` is in seconds, and at least 0.1. While PostgreSQL does not answer, lines have the last known state, with a
    `detail`. If the run is deleted, or the account may no longer see it, the last line has a `detail` and no state.
    """
    api.read(runs.run, dag_id, dag_run_id)
    lines = _until_finished(request, api, (dag_id, dag_run_id), interval, result or [])
    return StreamingResponse(lines, media_type="application/x-ndjson")


async def _until_finished(
    request: Request, api: Call, run: tuple[str, str], interval_s: float, result: list[str]
) -> AsyncIterator[str]:
    line: dict[str, Any] = {"state": None}
    while not api.service.stopping.is_set():
        has_ended = False
        try:
            await anyio.to_thread.run_sync(check_again, request)
            line, has_ended = await anyio.to_thread.run_sync(api.read, _line, *run, result)
        except (NotFoundError, UnauthenticatedError, ForbiddenError) as error:
            line, has_ended = {"state": None, "detail": str(error)}, True
        except (DBAPIError, PoolTimeoutError, UnreachableError):
            line |= {"detail": "PostgreSQL does not answer."}
        yield json.dumps(line) + "\n"
        if has_ended:
            return
        await _pause(api, max(interval_s, SHORTEST_INTERVAL_S))


def _line(connection: Connection, dag_id: str, run_id: str, result: list[str]) -> tuple[dict[str, Any], bool]:
    """The state of a run, with results if it has ended, and whether it has."""
    row = runs.run(connection, dag_id, run_id)
    has_ended = row["state"] in states.RUN_FINISHED
    line: dict[str, Any] = {"state": row["state"]}
    if has_ended and result:
        line["results"] = _results(connection, row["id"], result)
    return line, has_ended


async def _pause(api: Call, seconds: float) -> None:
    """Sleep, but not beyond the shutdown of the process."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0 and not api.service.stopping.is_set():
        await asyncio.sleep(min(left, 0.5))


def _results(connection: Connection, dag_run_id: int, task_ids: list[str]) -> dict[str, Any]:
    filters = values.XCOMS.filters().equals("run_key", dag_run_id).one_of("task_id", task_ids).equals("key", "return_value")
    found: dict[str, Any] = {}
    for row in values.xcom_values(connection, filters):
        if row["map_index"] < 0:
            found[row["task_id"]] = row["value"]
        else:
            found.setdefault(row["task_id"], []).append(row["value"])
    return found


def _clear(api: Call, named: Sequence[tuple[str, str]], body: models.DagRunClear) -> Changes:
    if body.only_new:
        raise UsageError("only_new is not possible: with run_on_latest_version, a cleared run gets the new tasks of its DAG.")
    return actions.clear(
        api.actor, named, states=states.FAILURES if body.only_failed else None, latest=body.run_on_latest_version, note=body.note,
        dry_run=body.dry_run,
    )  # fmt: skip


def cleared(api: Call, changes: Changes) -> dict[str, Any]:
    """The task instances of a dry run, as they are now, and the tasks that a newer version would add."""
    known = [change for change in changes if change.becomes != "created"]
    rows = api.read(instances.INSTANCES.by_keys, api.read(instances.keys_of, known))
    new = [{"task_id": one.task_id, "task_display_name": one.task_id} for one in changes if one.becomes == "created"]
    more = {"passed_over": changes.passed_over, "moved": moved(changes)}
    return {"task_instances": [*rows, *new], "total_entries": len(rows) + len(new), **more}


def moved(changes: Changes) -> list[dict[str, Any]]:
    """The cleared runs that continue with another version."""
    return [{"dag_run_id": run_id, "from_version": old, "to_version": new} for run_id, (old, new) in changes.moved.items()]


def _of_dag(api: Call, dag_id: str) -> Filters:
    if dag_id == "~":
        return runs.RUNS.filters().visible(api.tags())
    api.read(dags.dag, dag_id)
    return runs.RUNS.filters().equals("dag_id", dag_id)


def _dag_of(api: Call, path: str, named: str | None) -> str:
    """The DAG of an entity: that of the path, or with ~ its own, on which the account needs the right too."""
    if path != "~":
        if named not in {None, path}:
            raise UsageError(f"The DAG {named!r} is not that of the path.")
        return path
    if named is None:
        raise UsageError("With ~ in the path, each entry needs its dag_id.")
    api.require(named, "operator")
    return named


backfills = new_router(prefix="/backfills", tags=["Backfill"])


@backfills.get("", VIEWER_OF_ANY, response_model=records_models.BackfillPage)
def list_backfills(api: Api, page: PageOfRequest, dag_id: str | None = None) -> dict[str, Any]:
    """List backfills."""
    if dag_id is not None:
        api.require(dag_id, "viewer")
    filters = records.BACKFILLS.filters().visible(api.tags()).equals("dag_id", dag_id)
    return api.page("backfills", records.BACKFILLS, filters, page)


@backfills.post("", OPERATOR_OF_ANY, response_model=records_models.Backfill)
def create_backfill(api: Api, body: records_models.BackfillBody) -> dict[str, Any]:
    """Create the missing runs of a DAG between two dates."""
    return api.read(records.backfill, actions.create_backfill(api.actor, _wanted(api, body))["id"])


@backfills.post("/dry_run", OPERATOR_OF_ANY, only_reads=True, response_model=records_models.BackfillDryRun)
def create_backfill_dry_run(api: Api, body: records_models.BackfillBody) -> dict[str, Any]:
    """List the runs that a backfill would create or repeat."""
    rows = [row for row in actions.preview_backfill(api.actor, _wanted(api, body)) if row["state"] == "waiting"]
    return {"backfills": rows, "total_entries": len(rows)}


@backfills.get("/{backfill_id}", VIEWER_OF_ANY, response_model=records_models.Backfill)
def get_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """Show a backfill."""
    return _one(api, backfill_id, "viewer")


@backfills.put("/{backfill_id}/pause", OPERATOR_OF_ANY, response_model=records_models.Backfill)
def pause_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """Create and start no more runs of a backfill."""
    return _change(api, backfill_id, actions.pause_backfill)


@backfills.put("/{backfill_id}/unpause", OPERATOR_OF_ANY, response_model=records_models.Backfill)
def unpause_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """Continue a paused backfill."""
    return _change(api, backfill_id, actions.resume_backfill)


@backfills.put("/{backfill_id}/cancel", OPERATOR_OF_ANY, response_model=records_models.Backfill)
def cancel_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """End a backfill: its queued runs fail, its running ones continue."""
    return _change(api, backfill_id, actions.cancel_backfill)


def _wanted(api: Call, body: records_models.BackfillBody) -> BackfillRequest:
    api.require(body.dag_id, "operator")
    if body.run_on_latest_version is False:
        raise UsageError("A backfill always runs on the newest version of its DAG.")
    return BackfillRequest(
        dag_id=body.dag_id,
        first=body.from_date,
        last=body.to_date,
        max_active_runs=body.max_active_runs,
        reprocess=body.reprocess_behavior,
        reverse=body.run_backwards,
        conf=body.dag_run_conf or None,
    )


def _one(api: Call, backfill_id: Number, role: str) -> dict[str, Any]:
    row = api.read(records.backfill, backfill_id)
    api.require(row["dag_id"], role)
    return row


def _change(api: Call, backfill_id: Number, action: Any) -> dict[str, Any]:
    _one(api, backfill_id, "operator")
    action(api.actor, backfill_id)
    return api.read(records.backfill, backfill_id)
