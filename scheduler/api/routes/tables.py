"""Iceberg tables: what is current, and what each publication changed."""

from typing import Any

from scheduler.api import params
from scheduler.api.access import VIEWER
from scheduler.api.call import Api, new_router
from scheduler.api.models import tables as models
from scheduler.api.params import Limit
from scheduler.store.dags import assets as store
from scheduler.store.read import assets

router = new_router(prefix="/tables", tags=["Paceline"])


@router.get("", VIEWER, response_model=models.TablePage)
def get_tables(api: Api, name_pattern: str | None = None, limit: Limit = 50, offset: Limit = 0) -> dict[str, Any]:
    """List the current tables with their newest version. `name_pattern` is a part of the name."""
    page = params.page(limit, offset)
    name = (name_pattern or "").strip("%") or None
    found, total = api.read(assets.tables, api.settings.tables.catalog, name=name, limit=page.limit, offset=page.offset)
    return {"tables": found, "total_entries": total, "is_on": bool(api.settings.tables.warehouse)}


@router.get("/{table_name}", VIEWER, response_model=models.TableHistory)
def get_table(api: Api, table_name: str) -> dict[str, Any]:
    """Show the versions of a table, the newest first: who published each, its rows, and the columns that it changed."""
    catalog = api.settings.tables.catalog
    found = api.read(assets.table_versions, catalog, table_name)
    uri = f"table:{table_name}"
    is_asset = any(row["uri"] == uri for row in api.read(store.assets))
    number = api.read(assets.asset_numbers, [uri])[uri] if is_asset else None
    return {"name": table_name, "catalog": catalog, "asset_id": number, "versions": found}
