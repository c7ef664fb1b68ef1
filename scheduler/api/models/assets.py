"""Assets and their updates."""

from datetime import datetime
from typing import Any

from pydantic import Field, model_validator

from scheduler.api.models.base import Body, Model, Page, from_row


class AssetUse(Model):
    """A DAG that is scheduled by an asset, or a task that updates it."""

    dag_id: str
    created_at: datetime
    updated_at: datetime


class AssetTask(AssetUse):
    """A task that updates an asset."""

    task_id: str


class LastAssetEvent(Model):
    """The newest update of an asset."""

    id: int | None = None
    timestamp: datetime | None = None


class Asset(Model):
    """An asset."""

    id: int
    name: str
    uri: str
    group: str = "asset"
    extra: dict[str, Any] | None = None
    created_at: datetime
    updated_at: datetime
    scheduled_dags: list[AssetUse]
    producing_tasks: list[AssetTask]
    consuming_tasks: list[AssetTask] = Field(default_factory=list)
    aliases: list[dict[str, Any]] = Field(default_factory=list)
    watchers: list[dict[str, Any]] = Field(default_factory=list)
    last_asset_event: LastAssetEvent | None


class AssetPage(Page):
    """A page of assets."""

    assets: list[Asset]


class AssetAliasPage(Page):
    """Always empty: Paceline has no asset aliases."""

    asset_aliases: list[dict[str, Any]] = Field(default_factory=list)


class AssetRun(Model):
    """A run that an update of an asset created."""

    run_id: str
    dag_id: str
    logical_date: datetime | None
    start_date: datetime
    end_date: datetime | None
    state: str
    data_interval_start: datetime | None
    data_interval_end: datetime | None
    partition_key: str | None = None
    triggering: bool = True


class AssetEvent(Model):
    """An update of an asset."""

    id: int
    asset_id: int = from_row("asset_number")
    uri: str | None
    name: str | None
    group: str | None = "asset"
    extra: dict[str, Any] | None
    source_task_id: str | None = from_row("task_id")
    source_dag_id: str | None = from_row("dag_id")
    source_run_id: str | None = from_row("run_id")
    source_map_index: int = from_row("map_index")
    created_dagruns: list[AssetRun] = from_row("created_runs")
    timestamp: datetime = from_row("created_at")
    partition_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_row(cls, row: dict[str, Any]) -> dict[str, Any]:
        return row | {"map_index": -1} if row["map_index"] is None else row


class AssetEventPage(Page):
    """A page of updates of assets."""

    asset_events: list[AssetEvent]


class AssetEventBody(Body):
    """An update of an asset."""

    asset_id: int
    extra: dict[str, Any] = Field(default_factory=dict)
    partition_key: str | None = None
    access_control: dict[str, Any] | None = None


class QueuedEvent(Model):
    """An update that a DAG waits to consume."""

    dag_id: str
    dag_display_name: str = from_row("dag_id")
    asset_id: int = from_row("asset_number")
    created_at: datetime


class QueuedEventPage(Page):
    """Updates that DAGs wait to consume."""

    queued_events: list[QueuedEvent]


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
