"""Pools."""

from paceline.exceptions import ConflictError
from scheduler.api import params
from scheduler.api.access import OPERATOR, VIEWER
from scheduler.api.call import Call
from scheduler.api.models import records as models
from scheduler.api.routes.named import Kind, exists, one, routes
from scheduler.store.queueing import pools as actions
from scheduler.store.read import records

FIELDS = {"slots", "description", "include_deferred"}


def _create(api: Call, body: models.PoolBody) -> None:
    if exists(api, POOLS, body.name):
        raise ConflictError(f"There is a pool {body.name!r} already.")
    _set(api, body.name, body.slots, body.description, body.include_deferred)


def _patch(api: Call, name: str, body: models.PoolBody | models.PoolPatch, mask: list[str] | None) -> None:
    chosen = params.masked(body.model_dump(include=FIELDS, exclude_unset=True), mask, {*FIELDS, "pool", "name"})
    now = one(api, POOLS, name)
    slots = chosen.get("slots")
    _set(api, name, now["slots"] if slots is None else slots, chosen.get("description"), chosen.get("include_deferred"))


def _set(api: Call, name: str, slots: int, description: str | None, include_deferred: bool | None) -> None:
    api.write(actions.set_pool, name, slots, description=description, include_deferred=include_deferred)
    api.announce("pool set")


POOLS = Kind(
    noun="pool",
    parameter="pool_name",
    field="name",
    field_of_change="pool",
    viewer=VIEWER,
    editor=OPERATOR,
    column="name",
    shown=models.Pool,
    page=models.PoolPage,
    listing=records.POOLS,
    show=lambda api, row: row,
    create=_create,
    patch=_patch,
    delete=actions.delete_pool,
)
router = routes(POOLS, models.PoolBody, models.PoolPatch)
