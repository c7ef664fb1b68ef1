"""Pools."""

from typing import Any

from fastapi import APIRouter

from scheduler.api import bulk, params
from scheduler.api.call import Api, Call
from scheduler.api.models import records as models
from scheduler.api.models.base import BulkResponse
from scheduler.api.params import Page, UpdateMask
from scheduler.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.store.actions import pools as actions
from scheduler.store.lists import records

router = APIRouter(prefix="/pools", tags=["Pool"])

FIELDS = {"slots", "description", "include_deferred"}


@router.get("", response_model=models.PoolPage)
def get_pools(
    api: Api, page: Page, pool_name_pattern: str | None = None, pool_name_prefix_pattern: str | None = None
) -> dict[str, Any]:
    """List pools."""
    filters = records.pool_filters().like("name", pool_name_pattern, pool_name_prefix_pattern)
    found = api.read(records.pools, filters, page)
    return {"pools": found.rows, "total_entries": found.total}


@router.post("", response_model=models.Pool, status_code=201)
def post_pool(api: Api, body: models.PoolBody) -> dict[str, Any]:
    """Create a pool."""
    return _create(api, body, overwrite=False)


@router.patch("", response_model=BulkResponse)
def bulk_pools(api: Api, body: bulk.Actions[models.PoolBody, str]) -> dict[str, Any]:
    """Create, change or delete several pools."""

    def update(entity: models.PoolBody, mask: list[str] | None) -> None:
        _patch(api, entity.name, entity.model_dump(include=FIELDS, exclude_unset=True), mask)

    return bulk.run(
        body.actions,
        name=lambda entity: entity if isinstance(entity, str) else entity.name,
        create=lambda entity, overwrite: _create(api, entity, overwrite=overwrite),
        update=update,
        delete=lambda entity: _delete(api, entity),
    )


@router.get("/{pool_name:path}", response_model=models.Pool)
def get_pool(api: Api, pool_name: str) -> dict[str, Any]:
    """Show a pool."""
    return api.read(records.pool, pool_name)


@router.patch("/{pool_name:path}", response_model=models.Pool)
def patch_pool(api: Api, pool_name: str, body: models.PoolPatch, update_mask: UpdateMask = None) -> dict[str, Any]:
    """Change a pool."""
    if body.pool not in {None, pool_name}:
        raise UsageError("A pool cannot be renamed: tasks name it.")
    return _patch(api, pool_name, body.model_dump(include=FIELDS, exclude_unset=True), update_mask)


@router.delete("/{pool_name:path}", status_code=204)
def delete_pool(api: Api, pool_name: str) -> None:
    """Delete a pool that no task instance uses."""
    _delete(api, pool_name)


def _create(api: Call, body: models.PoolBody, *, overwrite: bool) -> dict[str, Any]:
    try:
        api.read(records.pool, body.name)
    except NotFoundError:
        pass
    else:
        if not overwrite:
            raise ConflictError(f"There is a pool {body.name!r} already.")
    return _set(api, body.name, body.slots, body.description, body.include_deferred)


def _patch(api: Call, name: str, values: dict[str, Any], mask: list[str] | None) -> dict[str, Any]:
    chosen = params.masked(values, mask, {*FIELDS, "pool", "name"})
    now = api.read(records.pool, name)
    slots = chosen.get("slots")
    return _set(api, name, now["slots"] if slots is None else slots, chosen.get("description"), chosen.get("include_deferred"))


def _set(api: Call, name: str, slots: int, description: str | None, include_deferred: bool | None) -> dict[str, Any]:
    api.write(actions.set_pool, name, slots, description=description, include_deferred=include_deferred)
    api.wake("queue")
    return api.read(records.pool, name)


def _delete(api: Call, name: str) -> None:
    api.write(actions.delete_pool, name)
