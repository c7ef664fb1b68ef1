"""The six routes of things that have a name: list, create, change in bulk, show, change and delete."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from sqlalchemy import Connection

from paceline.exceptions import UsageError
from scheduler.api import bulk, params
from scheduler.api.access import Needs
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models.base import BulkResponse
from scheduler.api.params import Page, UpdateMask
from scheduler.store.read.listing import Filters, Listing, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of things with names."""

    #: Such as "variable", in paths and messages.
    noun: str
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
    #: Of the store. NotFoundError, ConflictError.
    delete: Callable[[Connection, str], None]


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
            delete=lambda entity: api.write(kind.delete, entity),
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
        api.write(kind.delete, name)

    return router


def _create(api: Call, kind: Kind, body: Any) -> None:
    if (name := getattr(body, kind.field)) in {".", ".."}:
        raise UsageError(f"A {kind.noun} cannot be named {name!r}: browsers and proxies remove it from an address.")
    kind.create(api, body)


def one(api: Call, kind: Kind, name: str) -> Row:
    """One thing as a response. NotFoundError."""
    return kind.show(api, api.read(kind.listing.one, _named(kind, name), f"There is no {kind.noun} {name!r}."))


def exists(api: Call, kind: Kind, name: str) -> bool:
    """Whether there is a thing of this name."""
    return api.read(kind.listing.count, _named(kind, name)) > 0


def _named(kind: Kind, name: str) -> Filters:
    return kind.listing.filters().equals(kind.column, name)
