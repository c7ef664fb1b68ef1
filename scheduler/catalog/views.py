"""Views, as version 1 of Iceberg's specification describes them. What a try does with views is published like its tables."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pyiceberg.schema import Schema
from pyiceberg.view.metadata import ViewHistoryEntry, ViewMetadata, ViewVersion

from scheduler.catalog import files
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import CatalogError, CommitFailedError, ExistsError, NoSuchViewError, UnsupportedError
from scheduler.catalog.files import PATHS, Warehouse
from scheduler.catalog.tables import VIEW, Tables, taken
from scheduler.store.tables import pointers
from scheduler.store.tables.pointers import Change

#: The property with the number of versions that a view keeps, and its default.
KEPT, KEEPS = "version.history.num-entries", 10
#: The last schema or version that the same commit has added.
LAST = -1


class CreateView(BaseModel):
    """The request that creates a view."""

    model_config = ConfigDict(populate_by_name=True)

    name: str
    location: str | None = None
    fields: Schema = Field(alias="schema")
    version: ViewVersion = Field(alias="view-version")
    properties: dict[str, str] = {}


class Views:
    """The views of a catalog. Views and tables share their names."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def names(self, caller: Caller, namespace: str) -> list[str]:
        """The views of a namespace."""
        return self._tables.names(caller, namespace, views=True)

    def load(self, caller: Caller, namespace: str, name: str) -> tuple[ViewMetadata, str]:
        """The metadata of a view, and where that is."""
        self._tables.namespaces.check_use(caller, namespace, writes=False)
        return self._found(caller, namespace, name)

    def create(self, caller: Caller, namespace: str, request: Mapping[str, Any]) -> tuple[ViewMetadata, str]:
        """Create a view. ExistsError if the name is taken."""
        tables = self._tables
        tables.namespaces.properties(caller, namespace, writes=True)
        if caller.reproduces:
            request = {**request, "location": None}
        view = created(tables.warehouse, caller.own(namespace), wanted := CreateView.model_validate(request))
        if tables.namespaces.is_done(caller):
            return self._found(caller, namespace, wanted.name)
        there = tables.pointer(caller, namespace, wanted.name).location
        if there is not None:
            raise taken(VIEW, there, f"{namespace}.{wanted.name}")
        if not wanted.location:
            tables.give_folder(view.location)
        return self._store(caller, namespace, wanted.name, view, before=None, taken=ExistsError)

    def replace(self, caller: Caller, namespace: str, name: str, request: Mapping[str, Any]) -> tuple[ViewMetadata, str]:
        """Apply the updates of a request to a view."""
        self._tables.namespaces.properties(caller, namespace, writes=True)
        before, location = self._found(caller, namespace, name)
        if self._tables.namespaces.is_done(caller):
            return before, location
        for requirement in request.get("requirements") or ():
            if requirement != {"type": "assert-view-uuid", "uuid": before.view_uuid}:
                raise CommitFailedError(f"The view {namespace}.{name} is not the one that was read: {requirement}")
        view = updated(before, request.get("updates") or ())
        check_properties(view.properties)
        if view.location != before.location:
            self._tables.warehouse.check_location(view.location, caller.own(namespace), "location")
        self._tables.use(caller, before.location)
        return self._store(caller, namespace, name, view, before=location)

    def drop(self, caller: Caller, namespace: str, name: str) -> None:
        """Drop a view."""
        if self._tables.namespaces.is_done(caller):
            return
        self._tables.namespaces.properties(caller, namespace, writes=True)
        _, location = self._found(caller, namespace, name)
        self._tables.store(caller, [Change(namespace=namespace, name=name, expected=location, location=None)])

    def rename(self, caller: Caller, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Give a view another name, also in another namespace."""
        if self._tables.namespaces.is_done(caller):
            return
        for namespace in {source[0], target[0]}:
            self._tables.namespaces.properties(caller, namespace, writes=True)
        files.check_name("view", target[1])
        _, location = self._found(caller, *source)
        self._tables.check_free(caller, source, target)
        self._tables.store(caller, [
            Change(namespace=source[0], name=source[1], expected=location, location=None),
            Change(namespace=target[0], name=target[1], expected=None, location=location, is_new=False),
        ], taken=ExistsError)  # fmt: skip

    def _found(self, caller: Caller, namespace: str, name: str) -> tuple[ViewMetadata, str]:
        location = self._tables.pointer(caller, namespace, name).location
        if not pointers.is_view(location):
            raise NoSuchViewError(f"View does not exist: {namespace}.{name}")
        assert location is not None
        try:
            return ViewMetadata.model_validate_json(self._tables.warehouse.text(location)), location
        except FileNotFoundError:
            raise NoSuchViewError(f"The metadata file {location} is gone: create the view again.") from None

    def _store(
        self, caller: Caller, namespace: str, name: str, view: ViewMetadata, *, before: str | None,
        taken: type[CatalogError] = CommitFailedError,
    ) -> tuple[ViewMetadata, str]:  # fmt: skip
        location = self._tables.warehouse.write_view(view, before)
        facts = {"uuid": view.view_uuid, "columns": {one.name: str(one.field_type) for one in current_schema(view).fields}}
        change = Change(namespace=namespace, name=name, expected=before, location=location, facts=facts)
        if not self._tables.store(caller, [change], taken=taken):
            return self._found(caller, namespace, name)
        return view, location


def created(warehouse: Warehouse, namespace: str, wanted: CreateView) -> ViewMetadata:
    """The metadata of a new view. Its first schema has the ID 0, its first version 1."""
    files.check_name("view", wanted.name)
    check_properties(wanted.properties)
    if wanted.location:
        location = warehouse.check_location(wanted.location, namespace, "location")
    else:
        location = warehouse.new_location(namespace, wanted.name)
    _check_version(wanted.version)
    version = wanted.version.model_copy(update={"version_id": 1, "schema_id": 0})
    return ViewMetadata(
        **{"view-uuid": str(uuid.uuid4()), "format-version": 1, "current-version-id": 1},
        location=location, schemas=[_fresh(wanted.fields, 0)], versions=[version], properties=wanted.properties,
        **{"version-log": [ViewHistoryEntry(**{"version-id": 1, "timestamp-ms": version.timestamp_ms})]},
    )  # fmt: skip


def updated(view: ViewMetadata, updates: Sequence[Mapping[str, Any]]) -> ViewMetadata:
    """A view after the updates of a commit. CatalogError for one that does not fit."""
    schemas, versions, log, properties = list(view.schemas), list(view.versions), list(view.version_log), dict(view.properties)
    location, current = view.location, view.current_version_id
    added_schema = added_version = None
    for update in updates:
        match update:
            case {"action": "assign-uuid", "uuid": view.view_uuid} | {"action": "upgrade-format-version", "format-version": 1}:
                pass
            case {"action": "set-location", "location": str(place)}:
                location = place.rstrip("/")
            case {"action": "set-properties", "updates": dict(values)}:
                properties |= {str(key): str(value) for key, value in values.items()}
            case {"action": "remove-properties", "removals": list(keys)}:
                properties = {key: value for key, value in properties.items() if key not in keys}
            case {"action": "add-schema", "schema": dict(fields)}:
                schema = _fresh(Schema.model_validate(fields), max(one.schema_id for one in schemas) + 1)
                same = [one for one in schemas if one == schema]
                added_schema = same[0].schema_id if same else schema.schema_id
                schemas += [] if same else [schema]
            case {"action": "add-view-version", "view-version": dict(fields)}:
                version = ViewVersion.model_validate(fields)
                _check_version(version)
                number = added_schema if version.schema_id == LAST else version.schema_id
                if number not in {one.schema_id for one in schemas}:
                    raise CatalogError(f"The version of the view has the schema {number}, which the view does not have.")
                added_version = max(one.version_id for one in versions) + 1
                versions.append(version.model_copy(update={"version_id": added_version, "schema_id": number}))
            case {"action": "set-current-view-version", "view-version-id": int(number)}:
                chosen = added_version if number == LAST else number
                if chosen not in {one.version_id for one in versions}:
                    raise CatalogError(f"The view has no version {number}.")
                current = int(chosen)
                (written,) = (one.timestamp_ms for one in versions if one.version_id == current)
                log.append(ViewHistoryEntry(**{"version-id": current, "timestamp-ms": max(written, log[-1].timestamp_ms)}))
            case other:
                raise CatalogError(f"The update {other!r:.200} cannot be applied to the view.")
    versions = _kept(versions, current, properties)
    numbers = {one.version_id for one in versions}
    return view.model_copy(
        update={
            "location": location, "schemas": schemas, "versions": versions, "properties": properties,
            "current_version_id": current, "version_log": [one for one in log if one.version_id in numbers],
        }
    )  # fmt: skip


def current_schema(view: ViewMetadata) -> Schema:
    """The columns of a view."""
    (version,) = (one for one in view.versions if one.version_id == view.current_version_id)
    return next(one for one in view.schemas if one.schema_id == version.schema_id)


def check_properties(properties: Mapping[str, str]) -> None:
    """UnsupportedError for a folder of its own, CatalogError for a number of versions that is none."""
    for key in PATHS:
        if key in properties:
            raise UnsupportedError(f"A view has no property {key}: its metadata is in its location.")
    if not properties.get(KEPT, "1").isdecimal() or int(properties.get(KEPT, "1")) < 1:
        raise CatalogError(f"The property {KEPT} is a number of versions from 1, not {properties[KEPT]!r}.")


def _kept(versions: list[ViewVersion], current: int, properties: Mapping[str, str]) -> list[ViewVersion]:
    most = int(properties.get(KEPT, KEEPS))
    newest = {one.version_id for one in versions[-most:]}
    if current not in newest:
        newest = {current, *(one.version_id for one in versions[len(versions) - most + 1 :])}
    return [one for one in versions if one.version_id in newest]


def _check_version(version: ViewVersion) -> None:
    dialects = [one.root.dialect.lower() for one in version.representations]
    if not dialects or len(set(dialects)) < len(dialects):
        raise CatalogError("A version of a view needs its SQL, once for each dialect.")


def _fresh(schema: Schema, number: int) -> Schema:
    """A schema with another number."""
    return Schema(*schema.fields, schema_id=number, identifier_field_ids=schema.identifier_field_ids)
