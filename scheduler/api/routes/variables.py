"""Variables. A value whose name sounds secret is never returned."""

from typing import Any

from fastapi import APIRouter

from scheduler.api import bulk, params
from scheduler.api.call import Api, Call
from scheduler.api.models import records as models
from scheduler.api.models.base import BulkResponse
from scheduler.api.params import Page, UpdateMask
from scheduler.exceptions import ConflictError, NotFoundError, PacelineError, UsageError
from scheduler.masking import secrets_masker
from scheduler.store.lists import records
from scheduler.store.secrets import variables as store

router = APIRouter(prefix="/variables", tags=["Variable"])

FIELDS = {"value", "description"}
#: What stands for a value that no key of this process can decrypt.
UNREADABLE = None


@router.get("", response_model=models.VariablePage)
def get_variables(
    api: Api, page: Page, variable_key_pattern: str | None = None, variable_key_prefix_pattern: str | None = None
) -> dict[str, Any]:
    """List variables."""
    filters = records.variable_filters().like("key", variable_key_pattern, variable_key_prefix_pattern)
    found = api.read(records.variables, filters, page)
    return {"variables": [_shown(api, row) for row in found.rows], "total_entries": found.total}


@router.post("", response_model=models.Variable, status_code=201)
def post_variable(api: Api, body: models.VariableBody) -> dict[str, Any]:
    """Create a variable."""
    return _create(api, body, overwrite=False)


@router.patch("", response_model=BulkResponse)
def bulk_variables(api: Api, body: bulk.Actions[models.VariableBody, str]) -> dict[str, Any]:
    """Create, change or delete several variables."""
    return bulk.run(
        body.actions,
        name=lambda entity: entity if isinstance(entity, str) else entity.key,
        create=lambda entity, overwrite: _create(api, entity, overwrite=overwrite),
        update=lambda entity, mask: _patch(api, entity.key, entity, mask),
        delete=lambda entity: api.write(store.delete_variable, entity),
    )


@router.get("/{variable_key:path}", response_model=models.Variable)
def get_variable(api: Api, variable_key: str) -> dict[str, Any]:
    """Show a variable."""
    return _one(api, variable_key)


@router.patch("/{variable_key:path}", response_model=models.Variable)
def patch_variable(api: Api, variable_key: str, body: models.VariableBody, update_mask: UpdateMask = None) -> dict[str, Any]:
    """Change a variable."""
    if body.key != variable_key:
        raise UsageError("The key in the body is not that of the path.")
    return _patch(api, variable_key, body, update_mask)


@router.delete("/{variable_key:path}", status_code=204)
def delete_variable(api: Api, variable_key: str) -> None:
    """Delete a variable."""
    api.write(store.delete_variable, variable_key)


def _create(api: Call, body: models.VariableBody, *, overwrite: bool) -> dict[str, Any]:
    if not api.write(store.set_variables, [(body.key, body.text, body.description)], api.cipher(), replace=overwrite):
        raise ConflictError(f"There is a variable {body.key!r} already.")
    return _one(api, body.key)


def _patch(api: Call, key: str, body: models.VariableBody, mask: list[str] | None) -> dict[str, Any]:
    chosen = params.masked(body.model_dump(include=FIELDS, exclude_unset=True), mask, {*FIELDS, "key"})
    now = api.read(store.variable, key, api.cipher())
    # A client that sends back what it was shown must not store the mask.
    masked = _masked(key, now["value"])
    value = body.text if "value" in chosen and body.text != masked else now["value"]
    api.write(store.set_variables, [(key, value, chosen.get("description"))], api.cipher())
    return _one(api, key)


def _one(api: Call, key: str) -> dict[str, Any]:
    found = api.read(records.variables, records.variable_filters().equals("key", key), params.page(1))
    if not found.rows:
        raise NotFoundError(f"There is no variable {key!r}.")
    return _shown(api, found.rows[0])


def _shown(api: Call, row: dict[str, Any]) -> dict[str, Any]:
    try:
        value = api.cipher().decrypt(row["value"], "The value")
    except PacelineError:
        return row | {"value": UNREADABLE}
    return row | {"value": _masked(row["key"], value)}


def _masked(key: str, value: str) -> str:
    return secrets_masker.shown(key, value)
