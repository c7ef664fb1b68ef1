"""Requests of HITLOperator to a person, and the answers. Both are values in the state store of the task instance."""

from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query
from pydantic import ValidationError

from paceline.exceptions import NotFoundError
from scheduler.actions import stored
from scheduler.api import params
from scheduler.api.access import OPERATOR_OF_DAG, RUN, TI, VIEWER_OF_DAG
from scheduler.api.call import Api, new_router
from scheduler.api.models import hitl as models
from scheduler.api.params import MappedPlace
from scheduler.api.routes.task_instances import of_run, of_try, ours, shown, with_operators
from scheduler.store.read import requests
from scheduler.store.read.listing import Filters, Row
from scheduler.store.read.requests import EARLIER, REQUEST, RESPONSE

router = new_router(tags=["Task Instance"])
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


@router.get(f"{RUN}/hitlDetails", VIEWER_OF_DAG, response_model=models.HitlDetailPage)
def get_hitl_details(
    api: Api, dag_id: str, dag_run_id: str, filters: Annotated[Filters, Depends(_filters)], page: params.Page
) -> dict[str, Any]:
    """List the questions that task instances of a run ask people, with the answers; ~ stands for any DAG or any run."""
    of_run(api, filters, dag_id, dag_run_id)
    found = api.page("hitl_details", requests.REQUESTS, filters, page)
    return found | {"hitl_details": [_read(models.HitlDetail, row) for row in with_operators(api, found["hitl_details"])]}


@router.get(PATH, VIEWER_OF_DAG, response_model=models.HitlDetail)
def get_hitl_detail(api: Api, place: MappedPlace) -> models.HitlDetail:
    """Show the question that a task instance asks a person, and the answer if there is one."""
    request, answer = api.read(stored.question, place), api.read(stored.value_of, place, RESPONSE)
    own = {"request": request["value"], "created_at": request["updated_at"], "answer": answer and answer["value"]}
    return _read(models.HitlDetail, shown(api, place) | own)


@router.get(f"{PATH}/tries/{{try_number}}", VIEWER_OF_DAG, response_model=models.HitlTryDetail)
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


@router.patch(PATH, OPERATOR_OF_DAG, response_model=models.HitlAnswered)
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
