"""Connections. Passwords and secret extra fields are never returned."""

import json
from typing import Any

from fastapi import APIRouter

from scheduler.api import bulk, params
from scheduler.api.call import Api, Call
from scheduler.api.models import records as models
from scheduler.api.models.base import BulkResponse
from scheduler.api.params import Page, UpdateMask
from scheduler.exceptions import NotFoundError, PacelineError, UsageError
from scheduler.masking import secrets_masker
from scheduler.store.lists import records
from scheduler.store.secrets import connections as store

router = APIRouter(prefix="/connections", tags=["Connection"])

FIELDS = {"conn_type", "description", "host", "login", "schema", "port", "password", "extra"}


@router.get("", response_model=models.ConnectionPage)
def get_connections(
    api: Api, page: Page, connection_id_pattern: str | None = None, connection_id_prefix_pattern: str | None = None
) -> dict[str, Any]:
    """List connections."""
    filters = records.connection_filters().like("conn_id", connection_id_pattern, connection_id_prefix_pattern)
    found = api.read(records.connections, filters, page)
    return {"connections": [_shown(api, row) for row in found.rows], "total_entries": found.total}


@router.post("", response_model=models.Connection, status_code=201)
def post_connection(api: Api, body: models.ConnectionBody) -> dict[str, Any]:
    """Create a connection."""
    return _create(api, body, overwrite=False)


@router.patch("", response_model=BulkResponse)
def bulk_connections(api: Api, body: bulk.Actions[models.ConnectionBody, str]) -> dict[str, Any]:
    """Create, change or delete several connections."""
    return bulk.run(
        body.actions,
        name=lambda entity: entity if isinstance(entity, str) else entity.connection_id,
        create=lambda entity, overwrite: _create(api, entity, overwrite=overwrite),
        update=lambda entity, mask: _patch(api, entity, mask),
        delete=lambda entity: api.write(store.delete, entity),
    )


@router.get("/{connection_id:path}", response_model=models.Connection)
def get_connection(api: Api, connection_id: str) -> dict[str, Any]:
    """Show a connection."""
    return _one(api, connection_id)


@router.patch("/{connection_id:path}", response_model=models.Connection)
def patch_connection(api: Api, connection_id: str, body: models.ConnectionBody, update_mask: UpdateMask = None) -> dict[str, Any]:
    """Change a connection."""
    if body.connection_id != connection_id:
        raise UsageError("The connection_id in the body is not that of the path.")
    return _patch(api, body, update_mask)


@router.delete("/{connection_id:path}", status_code=204)
def delete_connection(api: Api, connection_id: str) -> None:
    """Delete a connection."""
    api.write(store.delete, connection_id)


def _create(api: Call, body: models.ConnectionBody, *, overwrite: bool) -> dict[str, Any]:
    values = body.model_dump(by_alias=True, exclude={"connection_id", "team_name"}, exclude_none=True)
    made = store.from_values(body.connection_id, values)
    api.write(store.add, [made], api.cipher(), existing="overwrite" if overwrite else "fail")
    return _one(api, body.connection_id)


def _patch(api: Call, body: models.ConnectionBody, mask: list[str] | None) -> dict[str, Any]:
    given = body.model_dump(by_alias=True, exclude={"connection_id", "team_name"}, exclude_unset=True)
    chosen = params.masked(given, mask, {*FIELDS, "connection_id"})
    now = api.read(store.connection, body.connection_id, api.cipher())
    shown = _one(api, body.connection_id)
    values = {name: value for name, value in now.as_dict().items() if name != "conn_id"}
    # A client that sends back what it was shown must not store the masks.
    values |= {name: value for name, value in chosen.items() if name not in {"password", "extra"} or value != shown[name]}
    made = store.from_values(body.connection_id, {name: value for name, value in values.items() if value is not None})
    api.write(store.add, [made], api.cipher(), existing="overwrite")
    return _one(api, body.connection_id)


def _one(api: Call, conn_id: str) -> dict[str, Any]:
    found = api.read(records.connections, records.connection_filters().equals("conn_id", conn_id), params.page(1))
    if not found.rows:
        raise NotFoundError(f"There is no connection {conn_id!r}.")
    return _shown(api, found.rows[0])


def _shown(api: Call, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"password": secrets_masker.MASK if row["password"] else None, "extra": _extra(api, row["extra"])}


def _extra(api: Call, token: str | None) -> str | None:
    """The fields of the extra with all values masked: which of them are secret is known only to their hook."""
    if token is None:
        return None
    try:
        fields = json.loads(api.cipher().decrypt(token, "The extra"))
    except (PacelineError, ValueError):
        return secrets_masker.MASK
    return json.dumps(secrets_masker.hidden(fields, secret=True), ensure_ascii=False)
