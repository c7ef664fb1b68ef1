"""Connections. Passwords and secret extra fields are never returned."""

import json
from typing import Any

from paceline import secrets_masker
from paceline.exceptions import PacelineError
from scheduler.api import params
from scheduler.api.access import ADMIN, OPERATOR
from scheduler.api.call import Call
from scheduler.api.models import records as models
from scheduler.api.routes.named import Kind, one, routes
from scheduler.store.read import records
from scheduler.store.secrets import connections as store

FIELDS = {"conn_type", "description", "host", "login", "schema", "port", "password", "extra"}


def _create(api: Call, body: models.ConnectionBody) -> None:
    values = body.model_dump(by_alias=True, exclude={"connection_id", "team_name"}, exclude_none=True)
    for name in {"password", "extra"} & values.keys():
        params.unmasked(name, values[name], None, None)
    made = store.from_values(body.connection_id, values)
    api.write(store.add, [made], api.cipher(), existing="fail")


def _patch(api: Call, conn_id: str, body: models.ConnectionBody, mask: list[str] | None) -> None:
    given = body.model_dump(by_alias=True, exclude={"connection_id", "team_name"}, exclude_unset=True)
    chosen = params.masked(given, mask, {*FIELDS, "connection_id"})
    now = api.read(store.connection, conn_id, api.cipher())
    shown = one(api, CONNECTIONS, conn_id)
    values = {name: value for name, value in now.as_dict().items() if name != "conn_id"}
    # A client that sends back what it was shown must not store the masks.
    values |= chosen
    for name in {"password", "extra"} & chosen.keys():
        if chosen[name] is not None:
            values[name] = params.unmasked(name, chosen[name], shown[name], getattr(now, name))
    made = store.from_values(conn_id, {name: value for name, value in values.items() if value is not None})
    api.write(store.add, [made], api.cipher(), existing="overwrite")


def _shown(api: Call, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"password": secrets_masker.MASK if row["password"] else None, "extra": _extra(api, row["extra"])}


def _extra(api: Call, token: str | None) -> str | None:
    """The fields of the extra with all values masked: which of them are secret is known only to their hook."""
    if token is None:
        return None
    try:
        fields = json.loads(api.cipher().decrypt(token, "The extra"))
        return json.dumps(secrets_masker.hidden(fields, secret=True), ensure_ascii=False)
    except (PacelineError, ValueError, RecursionError):
        return secrets_masker.MASK


CONNECTIONS = Kind(
    noun="connection",
    parameter="connection_id",
    field="connection_id",
    field_of_change="connection_id",
    viewer=OPERATOR,
    editor=ADMIN,
    column="conn_id",
    shown=models.Connection,
    page=models.ConnectionPage,
    listing=records.CONNECTIONS,
    show=_shown,
    create=_create,
    patch=_patch,
    delete=store.delete,
)
router = routes(CONNECTIONS, models.ConnectionBody, models.ConnectionBody)
