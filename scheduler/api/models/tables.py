"""Iceberg tables and their versions."""

from datetime import datetime
from typing import Any

from pydantic import model_validator

from scheduler.api.models.base import Model, Page


class TableVersion(Model):
    """What a publication changed in a table: by a task, or by an account or a command."""

    publication: int | None
    published_at: datetime | None
    published_by: str | None
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int | None
    try_number: int | None
    is_dropped: bool | None
    operation: str | None
    #: As a text: it has more digits than the numbers of JavaScript.
    snapshot_id: str | None
    rows: int | None
    added_rows: int | None
    deleted_rows: int | None
    #: The columns with their types, if this version has other ones than the one before.
    columns: dict[str, str] | None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        facts = row.get("facts") or {}
        snapshot = facts.get("snapshot_id")
        return row | {
            "operation": facts.get("operation"),
            "snapshot_id": None if snapshot is None else str(snapshot),
            "rows": facts.get("total_records"),
            "added_rows": facts.get("added_records"),
            "deleted_rows": facts.get("deleted_records"),
            "columns": facts.get("columns"),
        }


class Table(TableVersion):
    """A table with its newest version. Without one, a program outside of Paceline made it."""

    name: str


class TablePage(Page):
    """A page of tables."""

    tables: list[Table]
    #: Whether this installation has a warehouse.
    is_on: bool


class TableHistory(Model):
    """The versions of a table, the newest first."""

    name: str
    catalog: str
    #: The asset that the table is, if a DAG names it.
    asset_id: int | None
    versions: list[TableVersion]
