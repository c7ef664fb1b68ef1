"""The state of tasks and assets: what user code keeps from try to try, or from run to run."""

from typing import Annotated, Any

from fastapi import Path

from scheduler.actions import stored
from scheduler.api.access import OPERATOR, OPERATOR_OF_DAG, TI, VIEWER, VIEWER_OF_DAG
from scheduler.api.call import Api, new_router
from scheduler.api.models import states as models
from scheduler.api.params import Number, Page, TaskPlace
from scheduler.api.routes.assets import known
from scheduler.store.read import values

router = new_router()

TASK, ASSET = f"{TI}/state-store", "/assets/{asset_id}/state-store"
Key = Annotated[str, Path(min_length=1, max_length=512)]


@router.get(TASK, VIEWER_OF_DAG, response_model=models.TaskStates, tags=["Task State Store"])
def list_task_state_store(api: Api, place: TaskPlace, page: Page) -> dict[str, Any]:
    """List the values that a task instance keeps."""
    return api.page("task_state_store", values.TASKS, values.task_filters(*place), page)


@router.get(f"{TASK}/{{key:path}}", VIEWER_OF_DAG, response_model=models.TaskState, tags=["Task State Store"])
def get_task_state_store(api: Api, place: TaskPlace, key: Key) -> dict[str, Any]:
    """Show a value that a task instance keeps."""
    return api.read(values.one_of_task, values.task_filters(*place), key)


@router.put(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def set_task_state_store(api: Api, place: TaskPlace, key: Key, body: models.TaskStateBody) -> None:
    """Store a value for a task instance."""
    stored.set_state(api.actor, place, key, body.value, expires_at=body.expires_at)


@router.patch(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, tags=["Task State Store"])
def patch_task_state_store(api: Api, place: TaskPlace, key: Key, body: models.ValueBody) -> None:
    """Replace a value of a task instance. The time at which it expires stays the same."""
    stored.replace_state(api.actor, place, key, body.value)


@router.delete(f"{TASK}/{{key:path}}", OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def delete_task_state_store(api: Api, place: TaskPlace, key: Key) -> None:
    """Delete a value of a task instance, if there is one."""
    stored.delete_state(api.actor, place, key)


@router.delete(TASK, OPERATOR_OF_DAG, status_code=204, tags=["Task State Store"])
def clear_task_state_store(api: Api, place: TaskPlace, all_map_indices: bool = False) -> None:
    """Delete all values of a task instance or, with all_map_indices, of all instances of the task. Requests to people and their
    answers remain.
    """
    stored.delete_state(api.actor, place, None, of_all_instances=all_map_indices)


@router.get(ASSET, VIEWER, response_model=models.AssetStates, tags=["Asset State Store"])
def list_asset_state_store(api: Api, asset_id: Number, page: Page) -> dict[str, Any]:
    """List the values that tasks keep for an asset."""
    return api.page("asset_state_store", values.ASSETS, values.asset_filters(known(api, asset_id)["uri"]), page)


@router.get(f"{ASSET}/{{key:path}}", VIEWER, response_model=models.AssetState, tags=["Asset State Store"])
def get_asset_state_store(api: Api, asset_id: Number, key: Key) -> dict[str, Any]:
    """Show a value that tasks keep for an asset."""
    return api.read(values.one_of_asset, values.asset_filters(known(api, asset_id)["uri"]), key)


@router.put(f"{ASSET}/{{key:path}}", OPERATOR, status_code=204, tags=["Asset State Store"])
def set_asset_state_store(api: Api, asset_id: Number, key: Key, body: models.ValueBody) -> None:
    """Store a value for an asset."""
    stored.set_asset_state(api.actor, known(api, asset_id)["uri"], key, body.value)


@router.delete(f"{ASSET}/{{key:path}}", OPERATOR, status_code=204, tags=["Asset State Store"])
def delete_asset_state_store(api: Api, asset_id: Number, key: Key) -> None:
    """Delete a value of an asset, if there is one."""
    stored.delete_asset_state(api.actor, known(api, asset_id)["uri"], key)


@router.delete(ASSET, OPERATOR, status_code=204, tags=["Asset State Store"])
def clear_asset_state_store(api: Api, asset_id: Number) -> None:
    """Delete all values of an asset."""
    stored.delete_asset_state(api.actor, known(api, asset_id)["uri"], None)
