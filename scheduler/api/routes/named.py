"""The six routes of things that have a name: list, create, change in bulk, show, change and delete; and tests of connections.

A worker tests a stored connection, since this process may be in another network, and lacks the drivers of tasks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from sqlalchemy import Connection

from paceline import secrets_masker
from paceline.exceptions import ConflictError, NotFoundError, PacelineError, UsageError
from scheduler.actions import stored
from scheduler.actions.stored import New
from scheduler.api import bulk, params
from scheduler.api.access import ADMIN, OPERATOR, VIEWER, Needs
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import records as models
from scheduler.api.models.base import BulkResponse
from scheduler.api.params import Page, UpdateMask
from scheduler.messaging import connection_tests as tests
from scheduler.messaging.connection_tests import ANSWER_S, ConnectionTest
from scheduler.store.read import operations, records
from scheduler.store.read.listing import Filters, Listing, Row
from scheduler.store.secrets import connections as connection_store
from scheduler.store.secrets import variables as variable_store

POOL_FIELDS = {"slots", "description", "include_deferred"}
VARIABLE_FIELDS = {"value", "description"}
CONNECTION_FIELDS = {"conn_type", "description", "host", "login", "schema", "port", "password", "extra"}
connection_tests = new_router(prefix="/connectionTests", tags=["Paceline"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of things with names."""

    #: Such as "variable", in paths and messages.
    noun: Literal["variable", "connection", "pool"]
    #: The name of a thing: the parameter of the path, its fields in bodies that create and change one, and the column of `listing`.
    parameter: str
    field: str
    field_of_change: str
    column: str
    #: What reading and changing one needs.
    viewer: Needs
    editor: Needs
    #: Models of a response and of a page.
    shown: Any
    page: Any
    listing: Listing
    #: A row as a response.
    show: Callable[[Call, Row], Row]
    #: ConflictError if there is such a thing.
    create: Callable[[Call, Any], None]
    #: Receives the name, the change and the update_mask. NotFoundError.
    patch: Callable[[Call, str, Any, list[str] | None], None]


def routes(kind: Kind, new: Any, change: Any) -> APIRouter:
    """The routes of a kind of things; `new` and `change` are the models of bodies that create and change one."""
    router = new_router(prefix=f"/{kind.noun}s", tags=[kind.noun.capitalize()])
    path = f"/{{{kind.parameter}:path}}"

    @router.get("", kind.viewer, response_model=kind.page, name=f"get_{kind.noun}s", description=f"List {kind.noun}s.")
    def find(
        api: Api,
        page: Page,
        patterns: Annotated[params.Patterns, Depends(params.patterns(**{kind.parameter: kind.column}))],
    ) -> dict[str, Any]:
        name = f"{kind.noun}s"
        entries = api.page(name, kind.listing, kind.listing.filters().like_each(patterns), page)
        return entries | {name: [kind.show(api, row) for row in entries[name]]}

    @router.post(
        "", kind.editor, response_model=kind.shown, status_code=201, name=f"post_{kind.noun}", description=f"Create a {kind.noun}."
    )
    def create(api: Api, body: new) -> Row:
        _create(api, kind, body)
        return one(api, kind, getattr(body, kind.field))

    description = f"Create, change or delete several {kind.noun}s."

    @router.patch("", kind.editor, response_model=BulkResponse, name=f"bulk_{kind.noun}s", description=description)
    def change_several(api: Api, body: bulk.Actions[new, str]) -> dict[str, Any]:
        def name(entity: Any) -> str:
            return entity if isinstance(entity, str) else str(getattr(entity, kind.field))

        return bulk.run(
            body.actions,
            name=name,
            find=lambda entity: [name(entity)] if exists(api, kind, name(entity)) else [],
            create=lambda entity: _create(api, kind, entity),
            update=lambda entity, mask: kind.patch(api, getattr(entity, kind.field), entity, mask),
            delete=lambda entity: stored.delete(api.actor, kind.noun, entity),
        )

    @router.get(path, kind.viewer, response_model=kind.shown, name=f"get_{kind.noun}", description=f"Show a {kind.noun}.")
    def show(api: Api, name: Annotated[str, Path(alias=kind.parameter)]) -> Row:
        return one(api, kind, name)

    @router.patch(path, kind.editor, response_model=kind.shown, name=f"patch_{kind.noun}", description=f"Change a {kind.noun}.")
    def patch(api: Api, name: Annotated[str, Path(alias=kind.parameter)], body: change, update_mask: UpdateMask = None) -> Row:
        if getattr(body, kind.field_of_change) not in {None, name}:
            raise UsageError(f"A {kind.noun} cannot be renamed: {kind.field_of_change} in the body is not the name in the path.")
        kind.patch(api, name, body, update_mask)
        return one(api, kind, name)

    @router.delete(path, kind.editor, status_code=204, name=f"delete_{kind.noun}", description=f"Delete a {kind.noun}.")
    def delete(api: Api, name: Annotated[str, Path(alias=kind.parameter)]) -> None:
        stored.delete(api.actor, kind.noun, name)

    return router


def _create(api: Call, kind: Kind, body: Any) -> None:
    if (name := getattr(body, kind.field)) in {".", ".."}:
        raise UsageError(f"A {kind.noun} cannot be named {name!r}: browsers and proxies remove it from an address.")
    kind.create(api, body)


def one(api: Call, kind: Kind, name: str) -> Row:
    """One thing as a response. NotFoundError."""
    return kind.show(api, api.read(_row, kind, name))


def _row(session: Connection, kind: Kind, name: str) -> Row:
    return kind.listing.one(session, _named(kind, name), f"There is no {kind.noun} {name!r}.")


def exists(api: Call, kind: Kind, name: str) -> bool:
    """Whether there is a thing of this name."""
    return api.read(kind.listing.count, _named(kind, name)) > 0


def _named(kind: Kind, name: str) -> Filters:
    return kind.listing.filters().equals(kind.column, name)


def _create_pool(api: Call, body: models.PoolBody) -> None:
    stored.store(api.actor, New(pools={body.name: body.model_dump(include=POOL_FIELDS)}), existing="fail")


def _patch_pool(api: Call, name: str, body: models.PoolBody | models.PoolPatch, mask: list[str] | None) -> None:
    chosen = params.masked(body.model_dump(include=POOL_FIELDS, exclude_unset=True), mask, {*POOL_FIELDS, "pool", "name"})

    def changed(session: Connection) -> New:
        now = _row(session, POOLS, name)
        return New(pools={name: {"slots": now["slots"]} | {field: value for field, value in chosen.items() if value is not None}})

    stored.change(api.actor, "pool", name, changed)


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
    create=_create_pool,
    patch=_patch_pool,
)
pools = routes(POOLS, models.PoolBody, models.PoolPatch)


def _create_variable(api: Call, body: models.VariableBody) -> None:
    if secrets_masker.looks_secret(body.key):
        params.unmasked("value", body.text, None, None)
    stored.store(api.actor, New(variables=[(body.key, body.text, body.description)]), existing="fail")


def _patch_variable(api: Call, key: str, body: models.VariableBody, mask: list[str] | None) -> None:
    chosen = params.masked(body.model_dump(include=VARIABLE_FIELDS, exclude_unset=True), mask, {*VARIABLE_FIELDS, "key"})

    def changed(session: Connection) -> New:
        now = variable_store.variable(session, key, api.cipher())
        # A client that sends back what it was shown must not store the mask.
        masked = secrets_masker.shown(key, now["value"])
        value = params.unmasked("value", body.text, masked, now["value"]) if "value" in chosen else now["value"]
        assert value is not None
        return New(variables=[(key, value, chosen.get("description"))])

    stored.change(api.actor, "variable", key, changed)


def _shown_variable(api: Call, row: dict[str, Any]) -> dict[str, Any]:
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
    show=_shown_variable,
    create=_create_variable,
    patch=_patch_variable,
)
variables = routes(VARIABLES, models.VariableBody, models.VariableBody)


def _create_connection(api: Call, body: models.ConnectionBody) -> None:
    values = body.model_dump(by_alias=True, exclude={"connection_id", "team_name"}, exclude_none=True)
    for name in {"password", "extra"} & values.keys():
        params.unmasked(name, values[name], None, None)
    made = connection_store.from_values(body.connection_id, values)
    stored.store(api.actor, New(connections=[made]), existing="fail")


def _patch_connection(api: Call, conn_id: str, body: models.ConnectionBody, mask: list[str] | None) -> None:
    given = body.model_dump(by_alias=True, exclude={"connection_id", "team_name"}, exclude_unset=True)
    chosen = params.masked(given, mask, {*CONNECTION_FIELDS, "connection_id"})

    def changed(session: Connection) -> New:
        now = connection_store.connection(session, conn_id, api.cipher())
        shown = _shown_connection(api, _row(session, CONNECTIONS, conn_id))
        values = {name: value for name, value in now.as_dict().items() if name != "conn_id"} | chosen
        # A client that sends back what it was shown must not store the masks.
        for name in {"password", "extra"} & chosen.keys():
            if chosen[name] is not None:
                values[name] = params.unmasked(name, chosen[name], shown[name], getattr(now, name))
        made = connection_store.from_values(conn_id, {name: value for name, value in values.items() if value is not None})
        return New(connections=[made])

    stored.change(api.actor, "connection", conn_id, changed)


def _shown_connection(api: Call, row: dict[str, Any]) -> dict[str, Any]:
    return row | {"password": secrets_masker.MASK if row["password"] else None, "extra": _shown_extra(api, row["extra"])}


def _shown_extra(api: Call, token: str | None) -> str | None:
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
    show=_shown_connection,
    create=_create_connection,
    patch=_patch_connection,
)
connections = routes(CONNECTIONS, models.ConnectionBody, models.ConnectionBody)


@connection_tests.post("", ADMIN, response_model=models.ConnectionTest, status_code=202, name="ask_connection_test")
def ask(api: Api, body: models.ConnectionTestBody) -> dict[str, Any]:
    """Ask a worker of a queue to test a stored connection: it logs in if it knows the type, else opens host and port."""
    queue = _queue(api, body.queue)
    test = api.service.broker.call(lambda brokers: tests.ask(brokers, body.connection_id, queue))
    return _shown(test, is_late=False)


@connection_tests.get("/{token}", ADMIN, response_model=models.ConnectionTest, name="get_connection_test_result")
def show(api: Api, token: str) -> dict[str, Any]:
    """Show a test of the last minute, with the answer of its worker."""
    found = api.service.broker.call(lambda brokers: tests.find(brokers, token))
    if found is None:
        raise NotFoundError("There is no such test of a connection: it is forgotten after a minute, so start another one.")
    return _shown(found[0], is_late=found[1])


def _queue(api: Call, wanted: str | None) -> str:
    """The queue whose workers are asked: the wanted one, or that of most tasks. ConflictError if no live worker takes from it."""
    queues = api.read(operations.queues, silent_after_s=api.settings.worker.heartbeat_timeout)
    live = [row["queue"] for row in queues if row["workers"]]
    default = api.settings.core.default_queue
    queue = wanted or (default if default in live else next(iter(live), None))
    if queue is None:
        raise ConflictError("No worker is alive that could test the connection.", fix="Start one with `paceline worker`.")
    if queue not in live:
        raise ConflictError(f"No live worker takes tasks of the queue {queue!r}.", fix="Start one, or choose another queue.")
    return str(queue)


def _shown(test: ConnectionTest, *, is_late: bool) -> dict[str, Any]:
    answer = test.answer
    late = f"No worker of the queue {test.queue} answered within {ANSWER_S} s: see whether one is alive on the page Queues."
    return {
        "token": test.token,
        "connection_id": test.conn_id,
        "queue": test.queue,
        "state": ("success" if answer.ok else "failed") if answer else "failed" if is_late else "pending",
        "message": answer.message if answer else late if is_late else None,
        "worker": answer.worker if answer else None,
    }
