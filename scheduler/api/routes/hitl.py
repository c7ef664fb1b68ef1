"""Requests of HITLOperator to a person, and the answers. Both are values in the state store of the task instance."""

import json
from typing import Any

from fastapi import APIRouter

from scheduler.api.access import TI
from scheduler.api.call import Api, Call
from scheduler.api.errors import ForbiddenError
from scheduler.api.models import hitl as models
from scheduler.api.routes.task_instances import shown
from scheduler.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.store.db import clock
from scheduler.store.lists import instances, states
from scheduler.store.lists.listing import Row

router = APIRouter(tags=["Task Instance"])

PATH = f"{TI}/{{map_index}}/hitlDetails"
#: The keys of scheduler/operators/hitl.py.
REQUEST, RESPONSE = "hitl_request", "hitl_response"


@router.get(PATH, response_model=models.HitlDetail)
def get_hitl_detail(api: Api, dag_id: str, dag_run_id: str, task_id: str, map_index: int) -> dict[str, Any]:
    """Show what a task instance asks a person, and the answer if there is one."""
    place = (dag_id, dag_run_id, task_id, map_index)
    request, answer = _asked(api, *place), _value(api, *place, RESPONSE)
    answered = {"response_received": True, **answer["value"]} if answer is not None else {}
    return {"task_instance": shown(api, *place), "created_at": request["updated_at"], **request["value"], **answered}


@router.patch(PATH, response_model=models.HitlAnswered)
def update_hitl_detail(
    api: Api, dag_id: str, dag_run_id: str, task_id: str, map_index: int, body: models.HitlAnswer
) -> dict[str, Any]:
    """Answer what a task instance asks. It goes on within seconds. A second answer is a conflict."""
    request = _asked(api, dag_id, dag_run_id, task_id, map_index)["value"]
    _check(api.account.name, request, body)
    answer = {
        "chosen_options": body.chosen_options, "params_input": body.params_input, "responded_at": api.read(clock.now).isoformat(),
        "responded_by_user": {"id": api.account.name, "name": api.account.name},
    }  # fmt: skip
    ti = api.read(instances.instance, dag_id, dag_run_id, task_id, map_index=map_index)
    if not api.write(states.add_to_task, ti["id"], RESPONSE, json.dumps(answer)):
        raise ConflictError(f"Task {task_id!r} has been answered already.")
    return {**answer, "responded_by": answer["responded_by_user"]}


def _check(account: str, request: dict[str, Any], body: models.HitlAnswer) -> None:
    """ForbiddenError if this account may not answer; UsageError if the options do not fit. The task checks the params."""
    users = request.get("assigned_users") or []
    if users and not any(account in {user.get("id"), user.get("name")} for user in users):
        raise ForbiddenError(f"Only {', '.join(str(user.get('name')) for user in users)} may answer.")
    if unknown := [one for one in body.chosen_options if one not in request["options"]]:
        raise UsageError(f"{unknown} are not in the options {request['options']}.")
    if len(body.chosen_options) > 1 and not request.get("multiple"):
        raise UsageError("Only one option can be chosen.")


def _asked(api: Call, dag_id: str, run_id: str, task_id: str, map_index: int) -> Row:
    """The request. NotFoundError if there is no such task instance, or it has asked nothing."""
    instance = api.read(instances.instance, dag_id, run_id, task_id, map_index=map_index)
    found = _value(api, dag_id, run_id, task_id, map_index, REQUEST)
    if found is None:
        raise NotFoundError(f"Task {instance['task_id']!r} asks nothing.")
    return found


def _value(api: Call, dag_id: str, run_id: str, task_id: str, map_index: int, key: str) -> Row | None:
    try:
        return api.read(states.one_of_task, states.task_filters(dag_id, run_id, task_id, map_index), key)
    except NotFoundError:
        return None
