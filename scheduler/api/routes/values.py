"""What tasks and assets store: XComs, and the values of the state store. Two of these are the request of HITLOperator and its
answer.
"""

import json
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query
from pydantic import ValidationError

from paceline.exceptions import NotFoundError
from scheduler.actions import stored
from scheduler.actions.tasks import Place
from scheduler.api import params
from scheduler.api.access import OPERATOR, OPERATOR_OF_DAG, RUN, TI, VIEWER, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import values as models
from scheduler.api.params import MappedPlace, Number, Page, TaskPlace, patterns, ranges
from scheduler.api.routes.assets import known
from scheduler.api.routes.task_instances import of_run, of_try, ours, shown, with_operators
from scheduler.store.read import requests, runs, values
from scheduler.store.read.listing import Filters, Row
from scheduler.store.read.requests import EARLIER, REQUEST, RESPONSE

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


hitl = new_router(tags=["Task Instance"])
D = TypeVar("D", models.HitlDetail, models.HitlTryDetail)

#: The option of a request that HITLOperator did not store.
NO_OPTION = "none"
PATH = f"{TI}/{{map_index}}/hitlDetails"


async def _filters(
    ranges_: Annotated[params.Ranges, Depends(params.ranges("created_at"))],
    patterns_: Annotated[params.Patterns, Depends(params.patterns(dag_id="dag_id", task_id="task_id"))],
    task_id: str | None = None,
    map_index: Annotated[int | None, Query(ge=-1, le=2**31 - 1)] = None,
    state: params.TaskStates = None,
    subject_search: str | None = None,
    body_search: str | None = None,
    response_received: bool | None = None,
    responded_by_user_id: params.Strings = None,
    responded_by_user_name: params.Strings = None,
) -> Filters:
    found = requests.REQUESTS.filters().like_each(patterns_).equals("task_id", task_id).equals("map_index", map_index)
    found.one_of("state", ours(state))
    found.matches("subject", subject_search).matches("body", body_search).in_ranges(ranges_)
    found.one_of("responded_by_user_id", responded_by_user_id).one_of("responded_by_user_name", responded_by_user_name)
    return requests.is_answered(found, response_received)


@hitl.get(f"{RUN}/hitlDetails", VIEWER_OF_DAG, response_model=models.HitlDetailPage)
def get_hitl_details(
    api: Api, dag_id: str, dag_run_id: str, filters: Annotated[Filters, Depends(_filters)], page: params.Page
) -> dict[str, Any]:
    """List the questions that task instances of a run ask people, with the answers; ~ stands for any DAG or any run."""
    of_run(api, filters, dag_id, dag_run_id)
    found = api.page("hitl_details", requests.REQUESTS, filters, page)
    return found | {"hitl_details": [_read(models.HitlDetail, row) for row in with_operators(api, found["hitl_details"])]}


@hitl.get(PATH, VIEWER_OF_DAG, response_model=models.HitlDetail)
def get_hitl_detail(api: Api, place: MappedPlace) -> models.HitlDetail:
    """Show the question that a task instance asks a person, and the answer if there is one."""
    request, answer = api.read(stored.question, place), api.read(stored.value_of, place, RESPONSE)
    own = {"request": request["value"], "created_at": request["updated_at"], "answer": answer and answer["value"]}
    return _read(models.HitlDetail, shown(api, place) | own)


@hitl.get(f"{PATH}/tries/{{try_number}}", VIEWER_OF_DAG, response_model=models.HitlTryDetail)
def get_hitl_detail_try_detail(api: Api, place: MappedPlace, try_number: params.Number) -> models.HitlTryDetail:
    """Show the question that a try of a task instance asked a person, and the answer if there was one."""
    row = of_try(api, place, try_number)
    newest = api.read(stored.value_of, place, REQUEST)
    if newest is not None and _try_of(newest["value"]) in {None, try_number}:
        answer = api.read(stored.value_of, place, RESPONSE)
        own = {"request": newest["value"], "created_at": newest["updated_at"], "answer": answer and answer["value"]}
    else:
        earlier = api.read(stored.value_of, place, EARLIER.format(try_number))
        if earlier is None or not isinstance(earlier["value"], dict):
            raise NotFoundError(f"Try {try_number} of task {place.task_id!r} has no question.")
        request = earlier["value"].get("request")
        created_at = requests.asked_at(request) or earlier["updated_at"]
        own = {"request": request, "created_at": created_at, "answer": earlier["value"].get("answer")}
    return _read(models.HitlTryDetail, row | own)


@hitl.patch(PATH, OPERATOR_OF_DAG, response_model=models.HitlAnswered)
def update_hitl_detail(api: Api, place: MappedPlace, body: models.HitlAnswer) -> dict[str, Any]:
    """Answer the question of a task instance, which continues within seconds.

    A second answer is a conflict, as is an answer to a try that has ended.
    """
    answer = stored.answer(api.actor, api.account.name, place, body.chosen_options, body.params_input)
    return {**answer, "responded_by": answer["responded_by_user"]}


def _read(model: type[D], row: Row) -> D:
    """A request with its answer. Tasks and clients can store other values under their keys."""
    own = {"task_instance": row, "created_at": row["created_at"], "response_received": row["answer"] is not None}
    request, answer = (value if isinstance(value, dict) else {} for value in (row["request"], row["answer"]))
    try:
        return model.model_validate({**requests.in_order(request), **answer, **own})
    except ValidationError:
        return model.model_validate({"subject": stored.UNREADABLE, "options": [NO_OPTION], **own})


def _try_of(request: Any) -> Any:
    """The number of the try that stored a request; None if it is not known."""
    return request.get("try_number") if isinstance(request, dict) else None
