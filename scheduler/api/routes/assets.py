"""Assets and their updates, and Iceberg tables with what each publication changed."""

from typing import Annotated, Any

from fastapi import Body, Depends, Query

from paceline.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.actions import stored
from scheduler.api import params
from scheduler.api.access import OPERATOR, OPERATOR_OF_DAG, VIEWER, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import assets as models
from scheduler.api.models.base import Moment
from scheduler.api.models.dag_runs import DagRun, TriggerBody
from scheduler.api.params import Limit, Number, Page, Strings, patterns, ranges
from scheduler.api.routes.dag_runs import trigger
from scheduler.store.dags import assets as store
from scheduler.store.read import assets, dags, listing
from scheduler.store.read.listing import in_memory

router = new_router(tags=["Asset"])

ORDERS = {"id", "name", "uri", "created_at", "updated_at"}
BeforeParam = Annotated[Moment | None, Query()]
tables = new_router(prefix="/tables", tags=["Paceline"])


@router.get("/assets", VIEWER, response_model=models.AssetPage)
def get_assets(
    api: Api,
    page: Page,
    patterns_: Annotated[params.Patterns, Depends(patterns(name="name", uri="uri"))],
    dag_ids: Strings = None,
    only_active: bool = True,
) -> dict[str, Any]:
    """List the assets that DAGs name or that were updated."""
    rows = [
        row
        for row in _all(api)
        if all(_matches(row[name], pattern, prefix) for name, pattern, prefix in patterns_)
        and (not only_active or row["scheduled_dags"] or row["producing_tasks"])
        and (not dag_ids or {one["dag_id"] for one in (*row["scheduled_dags"], *row["producing_tasks"])} & set(dag_ids))
    ]
    found = in_memory(rows, page, orders=ORDERS, default=("uri",))
    return {"assets": found.rows, "total_entries": found.total}


@router.get("/assets/aliases", VIEWER, response_model=models.AssetAliasPage)
def get_asset_aliases(
    api: Api, page: Page, patterns_: Annotated[params.Patterns, Depends(patterns(name="name"))]
) -> dict[str, Any]:
    """Always empty: Paceline has no asset aliases."""
    return {"asset_aliases": [], "total_entries": 0}


@router.get("/assets/aliases/{asset_alias_id}", VIEWER)
def get_asset_alias(api: Api, asset_alias_id: Number) -> None:
    """Always 404: Paceline has no asset aliases."""
    raise NotFoundError(f"There is no asset alias {asset_alias_id}.")


@router.get("/assets/events", VIEWER, response_model=models.AssetEventPage)
def get_asset_events(
    api: Api,
    page: Page,
    ranges_: Annotated[params.Ranges, Depends(ranges("timestamp"))],
    patterns_: Annotated[params.Patterns, Depends(patterns(name="name"))],
    asset_id: int | None = None,
    source_dag_id: str | None = None,
    source_task_id: str | None = None,
    source_run_id: str | None = None,
    source_map_index: int | None = None,
) -> dict[str, Any]:
    """List updates of assets."""
    filters = assets.ASSET_EVENTS.filters().equals("asset_id", asset_id).equals("source_dag_id", source_dag_id)
    filters.equals("source_task_id", source_task_id).equals("source_run_id", source_run_id)
    filters.equals("source_map_index", source_map_index).like_each(patterns_)
    return api.page("asset_events", assets.ASSET_EVENTS, filters.in_ranges(ranges_), page)


@router.post("/assets/events", OPERATOR, response_model=models.AssetEvent)
def create_asset_event(api: Api, body: models.AssetEventBody) -> dict[str, Any]:
    """Record an update of an asset. This can trigger the DAGs scheduled on it."""
    if body.access_control is not None:
        raise UsageError("Paceline has no access control of asset events: leave out access_control.")
    asset = known(api, body.asset_id)
    made = stored.update_asset(api.actor, asset["uri"], body.extra, body.partition_key)
    return api.read(assets.ASSET_EVENTS.by_keys, [made["id"]])[0]


@router.get("/assets/{asset_id}", VIEWER, response_model=models.Asset)
def get_asset(api: Api, asset_id: Number) -> dict[str, Any]:
    """Show an asset."""
    return known(api, asset_id)


@router.post("/assets/{asset_id}/materialize", OPERATOR, response_model=DagRun)
def materialize_asset(api: Api, asset_id: Number, body: Annotated[TriggerBody | None, Body()] = None) -> dict[str, Any]:
    """Trigger the DAG that updates an asset."""
    asset = known(api, asset_id)
    producers = sorted({task["dag_id"] for task in asset["producing_tasks"]})
    if not producers:
        raise NotFoundError(f"No DAG updates the asset {asset['uri']!r}.")
    if len(producers) > 1:
        raise ConflictError(f"Several DAGs update the asset {asset['uri']!r}: trigger one of {', '.join(producers)}.")
    return trigger(api, producers[0], body or TriggerBody())


@router.get("/assets/{asset_id}/queuedEvents", VIEWER, response_model=models.QueuedEventPage)
def get_asset_queued_events(
    api: Api, asset_id: Number, before: BeforeParam = None, limit: Limit = params.LONGEST_PAGE, offset: Limit = 0
) -> dict[str, Any]:
    """List the DAGs that wait to consume updates of an asset."""
    return _queued(api, known(api, asset_id)["uri"], None, before, params.page(limit, offset))


@router.delete("/assets/{asset_id}/queuedEvents", OPERATOR, status_code=204)
def delete_asset_queued_events(api: Api, asset_id: Number, before: BeforeParam = None) -> None:
    """Drop the updates of an asset that DAGs wait to consume."""
    stored.drop_updates(api.actor, uri=known(api, asset_id)["uri"], dag_id=None, before=before)


@router.get("/dags/{dag_id}/assets/queuedEvents", VIEWER_OF_DAG, response_model=models.QueuedEventPage)
def get_dag_asset_queued_events(
    api: Api, dag_id: str, before: BeforeParam = None, limit: Limit = params.LONGEST_PAGE, offset: Limit = 0
) -> dict[str, Any]:
    """List the updates that a DAG waits to consume."""
    api.read(dags.dag, dag_id)
    return _queued(api, None, dag_id, before, params.page(limit, offset))


@router.delete("/dags/{dag_id}/assets/queuedEvents", OPERATOR_OF_DAG, status_code=204)
def delete_dag_asset_queued_events(api: Api, dag_id: str, before: BeforeParam = None) -> None:
    """Drop the updates that a DAG waits to consume."""
    stored.drop_updates(api.actor, uri=None, dag_id=dag_id, before=before)


@router.get("/dags/{dag_id}/assets/{asset_id}/queuedEvents", VIEWER_OF_DAG, response_model=models.QueuedEvent)
def get_dag_asset_queued_event(api: Api, dag_id: str, asset_id: Number, before: BeforeParam = None) -> dict[str, Any]:
    """Show whether a DAG waits to consume updates of an asset."""
    found = _queued(api, known(api, asset_id)["uri"], dag_id, before, params.page(1))["queued_events"]
    if not found:
        raise NotFoundError(f"DAG {dag_id!r} has no queued update of this asset.")
    return dict(found[0])


@router.delete("/dags/{dag_id}/assets/{asset_id}/queuedEvents", OPERATOR_OF_DAG, status_code=204)
def delete_dag_asset_queued_event(api: Api, dag_id: str, asset_id: Number, before: BeforeParam = None) -> None:
    """Drop the updates of an asset that a DAG waits to consume."""
    stored.drop_updates(api.actor, uri=known(api, asset_id)["uri"], dag_id=dag_id, before=before)


def _queued(api: Call, uri: str | None, dag_id: str | None, before: Moment | None, page: listing.Page) -> dict[str, Any]:
    rows = api.read(assets.queued_events, uri=uri, dag_id=dag_id, before=before)
    found = in_memory(rows, page, orders={"dag_id", "uri"}, default=("dag_id", "uri"))
    return {"queued_events": found.rows, "total_entries": found.total}


def known(api: Call, asset_id: Number) -> dict[str, Any]:
    """NotFoundError."""
    for row in _all(api):
        if row["id"] == asset_id:
            return row
    raise NotFoundError(f"There is no asset {asset_id}.")


def _all(api: Call) -> list[dict[str, Any]]:
    """Every asset, with the tasks that update it and the DAGs that wait for it."""
    rows = api.read(store.assets)
    numbers = api.read(assets.asset_numbers, [row["uri"] for row in rows])
    facts = api.read(assets.asset_facts)
    found = []
    for row in rows:
        own = facts.get(row["uri"], {"created_at": assets.EPOCH, "last_id": None})
        times = {"created_at": own["created_at"], "updated_at": row["updated_at"] or own["created_at"]}
        producers = [one.split(".", 1) if one.count(".") == 1 else one.rsplit(".", 1) for one in row["updated_by"]]
        found.append(
            {
                "id": numbers[row["uri"]],
                "name": row["name"],
                "uri": row["uri"],
                **times,
                "scheduled_dags": [{"dag_id": dag_id, **times} for dag_id in row["waited_for_by"]],
                "producing_tasks": [{"dag_id": dag_id, "task_id": task_id, **times} for dag_id, task_id in producers],
                "last_asset_event": {"id": own["last_id"], "timestamp": row["updated_at"]} if own["last_id"] else None,
            }
        )
    return found


def _matches(text: str, pattern: str | None, prefix: str | None) -> bool:
    wanted = [one.strip("% ").lower() for one in (pattern or "").split("|")]
    return any(one in text.lower() for one in wanted) and any(text.startswith(one) for one in (prefix or "").split("|"))


@tables.get("", VIEWER, response_model=models.TablePage)
def get_tables(api: Api, name_pattern: str | None = None, limit: Limit = 50, offset: Limit = 0) -> dict[str, Any]:
    """List the current tables with their newest version. `name_pattern` is a part of the name."""
    page = params.page(limit, offset)
    name = (name_pattern or "").strip("%") or None
    found, total = api.read(assets.tables, api.settings.tables.catalog, name=name, limit=page.limit, offset=page.offset)
    return {"tables": found, "total_entries": total, "is_on": bool(api.settings.tables.warehouse)}


@tables.get("/{table_name}", VIEWER, response_model=models.TableHistory)
def get_table(api: Api, table_name: str) -> dict[str, Any]:
    """Show the versions of a table, the newest first: who published each, its rows, and the columns that it changed."""
    catalog = api.settings.tables.catalog
    found = api.read(assets.table_versions, catalog, table_name)
    uri = f"table:{table_name}"
    is_asset = any(row["uri"] == uri for row in api.read(store.assets))
    number = api.read(assets.asset_numbers, [uri])[uri] if is_asset else None
    return {"name": table_name, "catalog": catalog, "asset_id": number, "versions": found}
