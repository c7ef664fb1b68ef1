"""Backfills."""

from typing import Any

from paceline.exceptions import UsageError
from scheduler.actions import backfills as actions
from scheduler.api.access import OPERATOR_OF_ANY, VIEWER_OF_ANY
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import records as models
from scheduler.api.params import Number, Page
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.read import records

router = new_router(prefix="/backfills", tags=["Backfill"])


@router.get("", VIEWER_OF_ANY, response_model=models.BackfillPage)
def list_backfills(api: Api, page: Page, dag_id: str | None = None) -> dict[str, Any]:
    """List backfills."""
    if dag_id is not None:
        api.require(dag_id, "viewer")
    filters = records.BACKFILLS.filters().visible(api.tags()).equals("dag_id", dag_id)
    return api.page("backfills", records.BACKFILLS, filters, page)


@router.post("", OPERATOR_OF_ANY, response_model=models.Backfill)
def create_backfill(api: Api, body: models.BackfillBody) -> dict[str, Any]:
    """Create the missing runs of a DAG between two dates."""
    return api.read(records.backfill, actions.create(api.actor, _wanted(api, body))["id"])


@router.post("/dry_run", OPERATOR_OF_ANY, only_reads=True, response_model=models.BackfillDryRun)
def create_backfill_dry_run(api: Api, body: models.BackfillBody) -> dict[str, Any]:
    """List the runs that a backfill would create or repeat."""
    rows = [row for row in actions.preview(api.actor, _wanted(api, body)) if row["state"] == "waiting"]
    return {"backfills": rows, "total_entries": len(rows)}


@router.get("/{backfill_id}", VIEWER_OF_ANY, response_model=models.Backfill)
def get_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """Show a backfill."""
    return _one(api, backfill_id, "viewer")


@router.put("/{backfill_id}/pause", OPERATOR_OF_ANY, response_model=models.Backfill)
def pause_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """Create and start no more runs of a backfill."""
    return _change(api, backfill_id, actions.pause)


@router.put("/{backfill_id}/unpause", OPERATOR_OF_ANY, response_model=models.Backfill)
def unpause_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """Continue a paused backfill."""
    return _change(api, backfill_id, actions.resume)


@router.put("/{backfill_id}/cancel", OPERATOR_OF_ANY, response_model=models.Backfill)
def cancel_backfill(api: Api, backfill_id: Number) -> dict[str, Any]:
    """End a backfill: its queued runs fail, its running ones continue."""
    return _change(api, backfill_id, actions.cancel)


def _wanted(api: Call, body: models.BackfillBody) -> BackfillRequest:
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
