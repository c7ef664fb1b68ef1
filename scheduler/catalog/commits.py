"""What a commit of a client makes of the metadata of a table, checked as Iceberg's own catalogs do."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest
from pyiceberg.table import update as updates
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from scheduler.catalog import files, numbering
from scheduler.catalog.errors import CatalogError, CommitFailedError, NoSuchTableError
from scheduler.catalog.files import Warehouse

MAIN = "main"
#: What a requirement has found to be different, in Iceberg's words.
CHANGED: dict[type[Any], str] = {
    updates.AssertCreate: "table already exists",
    updates.AssertTableUUID: "UUID does not match",
    updates.AssertLastAssignedFieldId: "last assigned field id changed",
    updates.AssertCurrentSchemaId: "current schema changed",
    updates.AssertLastAssignedPartitionId: "last assigned partition id changed",
    updates.AssertDefaultSpecId: "default partition spec changed",
    updates.AssertDefaultSortOrderId: "default sort order changed",
}


def mark(caller: str, request: Mapping[str, Any]) -> str:
    """The first half of the UUID in the name of each metadata file of a request; a repeated request has the same one.

    So the names tell whether a request was stored whose answer was lost, whatever it contains.
    """
    digest = hashlib.sha256(json.dumps([caller, request], sort_keys=True).encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}"


def created(warehouse: Warehouse, namespace: str, request: Mapping[str, Any]) -> tuple[TableMetadata, bool]:
    """The metadata of a new table, and whether it is only staged: the client commits it later."""
    wanted = CreateTableRequest.model_validate({"location": None, "partition-spec": None, "write-order": None, **request})
    files.check_name("table", wanted.name)
    properties = dict(wanted.properties)
    warehouse.check_properties(properties, namespace)
    if wanted.location:
        location = warehouse.check_location(wanted.location, namespace, "location")
    else:
        location = warehouse.new_location(namespace, wanted.name)
    try:
        table = new_table_metadata(
            wanted.table_schema, wanted.partition_spec or UNPARTITIONED_PARTITION_SPEC, wanted.write_order or UNSORTED_SORT_ORDER,
            location, properties,
        )  # fmt: skip
    except (ValueError, ValidationError) as error:
        raise CatalogError(f"The table cannot be created: {error}") from None
    return table, bool(wanted.stage_create)


def parsed(request: Mapping[str, Any], namespace: str, name: str) -> CommitTableRequest:
    """The commit of a request. UnsupportedError for what only a newer format has."""
    for update in request.get("updates") or ():
        if isinstance(update, dict):
            if update.get("action") == "upgrade-format-version":
                files.check_format(update.get("format-version"))
            if update.get("action") == "set-properties":
                files.check_format((update.get("updates") or {}).get("format-version"))
    return CommitTableRequest.model_validate({**request, "identifier": {"namespace": namespace.split("."), "name": name}})


def applied(warehouse: Warehouse, namespace: str, commit: CommitTableRequest, base: files.Metadata | None) -> TableMetadata:
    """The metadata after a commit on `base`. CommitFailedError if the table is not what the client requires."""
    for requirement in commit.requirements:
        try:
            requirement.validate(None if base is None else base.table)
        except CommitFailedException as error:
            found = str(error).removeprefix("Requirement failed: ")
            if type(requirement) in CHANGED:
                found = CHANGED[type(requirement)] + "".join(found.partition(": ")[1:])
            raise CommitFailedError(f"Requirement failed: {found}") from None
    is_new = any(isinstance(requirement, updates.AssertCreate) for requirement in commit.requirements)
    if base is None and not is_new:
        raise NoSuchTableError(f"Table does not exist: {namespace}.{commit.identifier.name}")
    try:
        if base is None:
            table = updates.update_table_metadata(MetastoreCatalog._empty_table_metadata(), commit.updates, enforce_validation=True)
        else:
            fitting = numbering.fit(base.table, commit.updates)
            table = updates.update_table_metadata(base.table, fitting, metadata_location=base.location)
    except (ValueError, ValidationError, NotImplementedError, KeyError) as error:
        raise CatalogError(f"The commit cannot be applied: {error}") from None
    _check_places(warehouse, namespace, commit, table, base)
    return table


def appends(changes: Sequence[Any]) -> bool:
    """Whether updates only add rows to the main branch."""
    return bool(changes) and all(_only_adds(update, Operation.APPEND) for update in changes)


def replaces(changes: Sequence[Any]) -> bool:
    """Whether updates only replace files of the main branch by others with the same rows, as a compaction does."""
    return bool(changes) and all(_only_adds(update, Operation.REPLACE) for update in changes)


def _only_adds(update: Any, operation: Operation) -> bool:
    """Whether an update adds a snapshot of this operation, or makes one current."""
    match update:
        case updates.AddSnapshotUpdate(snapshot=snapshot):
            return snapshot.summary is not None and snapshot.summary.operation is operation
        case updates.SetSnapshotRefUpdate(ref_name=name, type=kind):
            return name == MAIN and kind == "branch"
    return False


def _check_places(
    warehouse: Warehouse, namespace: str, commit: CommitTableRequest, table: TableMetadata, base: files.Metadata | None
) -> None:
    """ForbiddenError if the commit points to files outside of its table, or moves the table out of its namespace."""
    if base is None or table.location != base.table.location:
        warehouse.check_location(table.location, namespace, "location")
    for update in commit.updates:
        match update:
            case updates.SetPropertiesUpdate(updates=properties):
                warehouse.check_properties(properties, namespace)
            case updates.AddSnapshotUpdate(snapshot=snapshot):
                warehouse.check_file(snapshot.manifest_list, table, "manifest list")
            case updates.SetStatisticsUpdate(statistics=statistics):
                warehouse.check_file(statistics.statistics_path, table, "statistics file")
            case updates.SetPartitionStatisticsUpdate(partition_statistics=statistics):
                warehouse.check_file(statistics.statistics_path, table, "statistics file")


def names(requests: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The namespace and name of each table of a transaction. CatalogError if one is missing or named twice."""
    found = []
    for request in requests:
        identifier = request.get("identifier") or {}
        namespace, name = identifier.get("namespace"), identifier.get("name")
        if not isinstance(namespace, list) or not isinstance(name, str) or not all(isinstance(part, str) for part in namespace):
            raise CatalogError("Each table of a transaction needs an identifier with a namespace and a name.")
        found.append((".".join(namespace), name))
    if len(set(found)) != len(found):
        raise CatalogError("A transaction names each table once: put all updates of a table into one entry.")
    return found
