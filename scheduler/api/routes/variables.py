"""Variables. A value whose name sounds secret is never returned."""

from typing import Any

from paceline import secrets_masker
from paceline.exceptions import ConflictError, PacelineError
from scheduler.api import params
from scheduler.api.access import ADMIN, OPERATOR
from scheduler.api.call import Call
from scheduler.api.models import records as models
from scheduler.api.routes.named import Kind, routes
from scheduler.store.read import records
from scheduler.store.secrets import variables as store

FIELDS = {"value", "description"}


def _create(api: Call, body: models.VariableBody) -> None:
    if secrets_masker.looks_secret(body.key):
        params.unmasked("value", body.text, None, None)
    if not api.write(store.set_variables, [(body.key, body.text, body.description)], api.cipher(), replace=False):
        raise ConflictError(f"There is a variable {body.key!r} already.")


def _patch(api: Call, key: str, body: models.VariableBody, mask: list[str] | None) -> None:
    chosen = params.masked(body.model_dump(include=FIELDS, exclude_unset=True), mask, {*FIELDS, "key"})
    now = api.read(store.variable, key, api.cipher())
    # A client that sends back what it was shown must not store the mask.
    masked = secrets_masker.shown(key, now["value"])
    value = params.unmasked("value", body.text, masked, now["value"]) if "value" in chosen else now["value"]
    assert value is not None
    api.write(store.set_variables, [(key, value, chosen.get("description"))], api.cipher())


def _shown(api: Call, row: dict[str, Any]) -> dict[str, Any]:
    try:
        value = api.cipher().decrypt(row["value"], "The value")
    except PacelineError:
        return row | {"value": None}  # no key of this process can decrypt it
    return row | {"value": secrets_masker.shown(row["key"], value)}


VARIABLES = Kind(
    noun="variable",
    parameter="variable_key",
    field="key",
    field_of_change="key",
    viewer=OPERATOR,
    editor=ADMIN,
    column="key",
    shown=models.Variable,
    page=models.VariablePage,
    listing=records.VARIABLES,
    show=_shown,
    create=_create,
    patch=_patch,
    delete=store.delete_variable,
)
router = routes(VARIABLES, models.VariableBody, models.VariableBody)
