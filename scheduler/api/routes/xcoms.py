"""XComs."""

import json
from typing import Annotated, Any

from fastapi import Depends, Query

from scheduler.actions import stored
from scheduler.actions.tasks import Place
from scheduler.api import params
from scheduler.api.access import OPERATOR_OF_DAG, TI, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import records as models
from scheduler.api.params import Page, TaskPlace, patterns, ranges
from scheduler.store.read import runs, values

router = new_router(tags=["XCom"])

#: Levels of a value that a response can have; pydantic writes no more than 255.
DEEPEST = 200


@router.get(f"{TI}/xcomEntries", VIEWER_OF_DAG, response_model=models.XComPage)
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


@router.get(f"{TI}/xcomEntries/{{xcom_key:path}}", VIEWER_OF_DAG, response_model=models.XComValue)
def get_xcom_entry(api: Api, place: TaskPlace, xcom_key: str, deserialize: bool = False, stringify: bool = False) -> dict[str, Any]:
    """Show an XCom. With stringify, the value is a string of JSON, as is a value with more than 200 levels."""
    row = _entry(api, place, xcom_key)
    return row | {"value": json.dumps(row["value"], ensure_ascii=False)} if stringify else row


@router.post(f"{TI}/xcomEntries", OPERATOR_OF_DAG, response_model=models.XComValue, status_code=201)
def create_xcom_entry(api: Api, dag_id: str, dag_run_id: str, task_id: str, body: models.XComCreate) -> dict[str, Any]:
    """Add an XCom to a task instance."""
    place = Place(dag_id, dag_run_id, task_id, body.map_index)
    stored.put_xcom(api.actor, place, body.key, body.value, new=True)
    return _entry(api, place, body.key)


@router.patch(f"{TI}/xcomEntries/{{xcom_key:path}}", OPERATOR_OF_DAG, response_model=models.XComValue)
def update_xcom_entry(
    api: Api, dag_id: str, dag_run_id: str, task_id: str, xcom_key: str, body: models.XComUpdate
) -> dict[str, Any]:
    """Replace the value of an XCom."""
    place = Place(dag_id, dag_run_id, task_id, body.map_index)
    stored.put_xcom(api.actor, place, xcom_key, body.value, new=False)
    return _entry(api, place, xcom_key)


@router.delete(f"{TI}/xcomEntries/{{xcom_key:path}}", OPERATOR_OF_DAG, status_code=204)
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
