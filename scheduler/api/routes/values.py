"""What tasks and assets store: XComs, and what user code keeps from try to try, or from run to run."""

import json
from typing import Annotated, Any

from fastapi import Depends, Path, Query

from scheduler.actions import stored
from scheduler.actions.tasks import Place
from scheduler.api import params
from scheduler.api.access import OPERATOR, OPERATOR_OF_DAG, TI, VIEWER, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import values as models
from scheduler.api.params import Number, Page, TaskPlace, patterns, ranges
from scheduler.api.routes.assets import known
from scheduler.store.read import runs, values

xcoms = new_router(tags=["XCom"])

#: Levels of a value that a response can have; pydantic writes no more than 255.
DEEPEST = 200
state_store = new_router()
TASK, ASSET = f"{TI}/state-store", "/assets/{asset_id}/state-store"
Key = Annotated[str, Path(min_length=1, max_length=512)]


@xcoms.get(f"{TI}/xcomEntries", VIEWER_OF_DAG, response_model=models.XComPage)
def get_xcom_entries(
    api: Api,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    page: Page,
    ranges_: Annotated[params.Ranges, Depends(ranges("logical_date", "run_after"))],
    patterns_: Annotated[
        params.Patterns, Depends(patterns(xcom_key="key", dag_display_name="dag_id", run_id="run_id", task_id="task_id"))
    ],
    xcom_key: str | None = None,
    map_index: Annotated[int | None, Query(ge=-1)] = None,
    map_index_filter: int | None = None,
) -> dict[str, Any]:
    """List XComs without their values; ~ stands for any DAG, run or task."""
    filters = values.XCOMS.filters().visible(api.tags() if dag_id == "~" else None)
    for name, value in (("dag_id", dag_id), ("run_id", dag_run_id), ("task_id", task_id)):
        filters.equals(name, None if value == "~" else value)
    if "~" not in {dag_id, dag_run_id}:
        api.read(runs.run, dag_id, dag_run_id)
    filters.equals("key", xcom_key).equals("map_index", map_index).equals("map_index", map_index_filter)
    return api.page("xcom_entries", values.XCOMS, filters.in_ranges(ranges_).like_each(patterns_), page)


@xcoms.get(f"{TI}/xcomEntries/{{xcom_key:path}}", VIEWER_OF_DAG, response_model=models.XComValue)
def get_xcom_entry(api: Api, place: TaskPlace, xcom_key: str, deserialize: bool = False, stringify: bool = False) -> dict[str, Any]:
    """Show an XCom. With stringify, the value is a string of JSON, as is a value with more than 200 levels."""
    row = _entry(api, place, xcom_key)
    return row | {"value": json.dumps(row["value"], ensure_ascii=False)} if stringify else row


@xcoms.post(f"{TI}/xcomEntries", OPERATOR_OF_DAG, response_model=models.XComValue, status_code=201)
def create_xcom_entry(api: Api, dag_id: str, dag_run_id: str, task_id: str, body: models.XComCreate) -> dict[str, Any]:
    """Add an XCom to a task instance."""
    place = Place(dag_id, dag_run_id, task_id, body.map_index)
    stored.put_xcom(api.actor, place, body.key, body.value, new=True)
    return _entry(api, place, body.key)


@xcoms.patch(f"{TI}/xcomEntries/{{xcom_key:path}}", OPERATOR_OF_DAG, response_model=models.XComValue)
def update_xcom_entry(
    api: Api, dag_id: str, dag_run_id: str, task_id: str, xcom_key: str, body: models.XComUpdate
) -> dict[str, Any]:
    """Replace the value of an XCom."""
    place = Place(dag_id, dag_run_id, task_id, body.map_index)
    stored.put_xcom(api.actor, place, xcom_key, body.value, new=False)
    return _entry(api, place, xcom_key)


@xcoms.delete(f"{TI}/xcomEntries/{{xcom_key:path}}", OPERATOR_OF_DAG, status_code=204)
def delete_xcom_entry(api: Api, place: TaskPlace, xcom_key: str) -> None:
    """Delete an XCom."""
    stored.delete_xcom(api.actor, place, xcom_key)


def _entry(api: Call, place: Place, key: str) -> dict[str, Any]:
    filters = values.XCOMS.filters().equals("key", key)
    for name, value in place._asdict().items():
        filters.equals(name, value)
    row = api.read(values.XCOMS_WITH_VALUES.one, filters, "There is no such XCom.")
    return row if _is_flat(row["value"], DEEPEST) else row | {"value": json.dumps(row["value"], ensure_ascii=False)}


def _is_flat(value: Any, levels: int) -> bool:
    """Whether a value has at most so many levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inner)


@state_store.get(TASK, VIEWER_OF_DAG, response_model=models.TaskStates, tags=["Task State Store"])
def list_task_state_store(api: Api, place: TaskPlace, page: Page) -> dict[str, Any]:
    """List the values that a task instance keeps."""
    return api.page("task_state_store", values.TASKS, values.task_filters(*place), page)


@state_store.get(f"{TASK}/{{key:path}}", VIEWER_OF_DAG, response_model=models.TaskState, tags=["Task State Store"])
def get_task_state_store(api: Api, place: TaskPlace, key: Key) -> dict[str, Any]:
    """Show a value that a task instance keeps."""
    return api.read(values.TASKS.one, values.task_filters(*place).equals("key", key), f"There is no value {key!r}.")


@state_store.put(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def set_task_state_store(api: Api, place: TaskPlace, key: Key, body: models.TaskStateBody) -> None:
    """Store a value for a task instance."""
    stored.set_state(api.actor, place, key, body.value, expires_at=body.expires_at)


@state_store.patch(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, tags=["Task State Store"])
def patch_task_state_store(api: Api, place: TaskPlace, key: Key, body: models.ValueBody) -> None:
    """Replace a value of a task instance. The time at which it expires stays the same."""
    stored.replace_state(api.actor, place, key, body.value)


@state_store.delete(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def delete_task_state_store(api: Api, place: TaskPlace, key: Key) -> None:
    """Delete a value of a task instance, if there is one."""
    stored.delete_state(api.actor, place, key)


@state_store.delete(TASK, OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def clear_task_state_store(api: Api, place: TaskPlace, all_map_indices: bool = False) -> None:
    """Delete all values of a task instance or, with all_map_indices, of all instances of the task. Requests to people and their
    answers remain.
    """
    stored.delete_state(api.actor, place, None, of_all_instances=all_map_indices)


@state_store.get(ASSET, VIEWER, response_model=models.AssetStates, tags=["Asset State Store"])
def list_asset_state_store(api: Api, asset_id: Number, page: Page) -> dict[str, Any]:
    """List the values that tasks keep for an asset."""
    return api.page("asset_state_store", values.ASSETS, values.asset_filters(known(api, asset_id)["uri"]), page)


@state_store.get(f"{ASSET}/{{key:path}}", VIEWER, response_model=models.AssetState, tags=["Asset State Store"])
def get_asset_state_store(api: Api, asset_id: Number, key: Key) -> dict[str, Any]:
    """Show a value that tasks keep for an asset."""
    filters = values.asset_filters(known(api, asset_id)["uri"]).equals("key", key)
    return api.read(values.ASSETS.one, filters, f"There is no value {key!r}.")


@state_store.put(f"{ASSET}/{{key:path}}", OPERATOR, status_code=204, tags=["Asset State Store"])
def set_asset_state_store(api: Api, asset_id: Number, key: Key, body: models.ValueBody) -> None:
    """Store a value for an asset."""
    stored.set_asset_state(api.actor, known(api, asset_id)["uri"], key, body.value)


@state_store.delete(f"{ASSET}/{{key:path}}", OPERATOR, status_code=204, tags=["Asset State Store"])
def delete_asset_state_store(api: Api, asset_id: Number, key: Key) -> None:
    """Delete a value of an asset, if there is one."""
    stored.delete_asset_state(api.actor, known(api, asset_id)["uri"], key)


@state_store.delete(ASSET, OPERATOR, status_code=204, tags=["Asset State Store"])
def clear_asset_state_store(api: Api, asset_id: Number) -> None:
    """Delete all values of an asset."""
    stored.delete_asset_state(api.actor, known(api, asset_id)["uri"], None)
