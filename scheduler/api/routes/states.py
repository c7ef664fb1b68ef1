"""The state of tasks and assets: what user code keeps from try to try, or from run to run."""

import json
from typing import Annotated, Any

from fastapi import Path

from paceline.exceptions import UsageError
from scheduler.api.access import OPERATOR, OPERATOR_OF_DAG, TI, VIEWER, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.errors import ForbiddenError
from scheduler.api.models import states as models
from scheduler.api.params import Number, Page, TaskPlace
from scheduler.api.routes.assets import known
from scheduler.store.read import instances, requests, states

router = new_router()

TASK, ASSET = f"{TI}/state-store", "/assets/{asset_id}/state-store"
Key = Annotated[str, Path(min_length=1, max_length=512)]


@router.get(TASK, VIEWER_OF_DAG, response_model=models.TaskStates, tags=["Task State Store"])
def list_task_state_store(api: Api, place: TaskPlace, page: Page) -> dict[str, Any]:
    """List the values that a task instance keeps."""
    return api.page("task_state_store", states.TASKS, states.task_filters(*place), page)


@router.get(f"{TASK}/{{key:path}}", VIEWER_OF_DAG, response_model=models.TaskState, tags=["Task State Store"])
def get_task_state_store(api: Api, place: TaskPlace, key: Key) -> dict[str, Any]:
    """Show a value that a task instance keeps."""
    return api.read(states.one_of_task, states.task_filters(*place), key)


@router.put(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def set_task_state_store(api: Api, place: TaskPlace, key: Key, body: models.TaskStateBody) -> None:
    """Store a value for a task instance."""
    _refuse_reserved(key)
    ti = api.read(instances.instance, *place)
    at, days = body.expires_at, None
    if at == "default":
        at, days = None, api.settings.core.task_state_retention_days or None
    api.write(states.set_of_task, ti["id"], key, _encoded(api, key, body.value), at=at, days=days)


@router.patch(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, tags=["Task State Store"])
def patch_task_state_store(api: Api, place: TaskPlace, key: Key, body: models.ValueBody) -> None:
    """Replace a value of a task instance. The time at which it expires stays the same."""
    _refuse_reserved(key)
    ti = api.read(instances.instance, *place)
    api.write(states.replace_of_task, ti["id"], key, _encoded(api, key, body.value))


@router.delete(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def delete_task_state_store(api: Api, place: TaskPlace, key: Key) -> None:
    """Delete a value of a task instance, if there is one."""
    _refuse_reserved(key)
    api.read(instances.instance, *place)
    api.write(states.delete_of_task, *place, key=key)


@router.delete(TASK, OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def clear_task_state_store(api: Api, place: TaskPlace, all_map_indices: bool = False) -> None:
    """Delete all values of a task instance or, with all_map_indices, of all instances of the task. Requests to people and their
    answers remain.
    """
    if all_map_indices:
        api.write(states.delete_of_task, *place[:3], map_index=None, key=None)
    else:
        api.read(instances.instance, *place)
        api.write(states.delete_of_task, *place, key=None)


@router.get(ASSET, VIEWER, response_model=models.AssetStates, tags=["Asset State Store"])
def list_asset_state_store(api: Api, asset_id: Number, page: Page) -> dict[str, Any]:
    """List the values that tasks keep for an asset."""
    return api.page("asset_state_store", states.ASSETS, states.asset_filters(known(api, asset_id)["uri"]), page)


@router.get(f"{ASSET}/{{key:path}}", VIEWER, response_model=models.AssetState, tags=["Asset State Store"])
def get_asset_state_store(api: Api, asset_id: Number, key: Key) -> dict[str, Any]:
    """Show a value that tasks keep for an asset."""
    return api.read(states.one_of_asset, states.asset_filters(known(api, asset_id)["uri"]), key)


@router.put(f"{ASSET}/{{key:path}}", OPERATOR, status_code=204, tags=["Asset State Store"])
def set_asset_state_store(api: Api, asset_id: Number, key: Key, body: models.ValueBody) -> None:
    """Store a value for an asset."""
    api.write(states.set_of_asset, known(api, asset_id)["uri"], key, _encoded(api, key, body.value))


@router.delete(f"{ASSET}/{{key:path}}", OPERATOR, status_code=204, tags=["Asset State Store"])
def delete_asset_state_store(api: Api, asset_id: Number, key: Key) -> None:
    """Delete a value of an asset, if there is one."""
    api.write(states.delete_of_asset, known(api, asset_id)["uri"], key)


@router.delete(ASSET, OPERATOR, status_code=204, tags=["Asset State Store"])
def clear_asset_state_store(api: Api, asset_id: Number) -> None:
    """Delete all values of an asset."""
    api.write(states.delete_of_asset, known(api, asset_id)["uri"], None)


def _refuse_reserved(key: str) -> None:
    """ForbiddenError for the keys of requests to people: a client could forge the answer of another account."""
    if key.startswith(requests.RESERVED):
        raise ForbiddenError(f"Keys that begin with {requests.RESERVED} are reserved: answer with PATCH .../hitlDetails.")


def _encoded(api: Call, key: str, value: Any) -> str:
    """A value as JSON. UsageError if it is none, or too large."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise UsageError(f"The value {key!r} cannot be written as JSON: {error}.") from None
    size, limit = len(text.encode()), api.settings.core.max_xcom_bytes
    if size > limit:
        raise UsageError(f"The value {key!r} has {size:,} bytes of JSON; {limit:,} are allowed (core.max_xcom_bytes).")
    return text
