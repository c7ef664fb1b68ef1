"""Requests to a person, and the answers, through Airflow's client."""

from typing import Any

import pytest
from airflow_client import client as airflow
from airflow_client.client.exceptions import ApiException

from scheduler.api.routes import hitl as routes
from scheduler.operators import hitl

from .conftest import World

TASK = {"dag_id": "etl", "dag_run_id": "good", "task_id": "extract"}
PLACE = {**TASK, "map_index": -1}


def ask(client: airflow.ApiClient, **request: Any) -> None:
    value = {"subject": "Go?", "options": ["yes", "no"], "multiple": False, "params": {}, "assigned_users": [], **request}
    airflow.TaskStateStoreApi(client).set_task_state_store(
        **TASK, key=hitl.REQUEST, task_state_store_body=airflow.TaskStateStoreBody(value=value)
    )


def answer(*options: str) -> airflow.UpdateHITLDetailPayload:
    return airflow.UpdateHITLDetailPayload(chosen_options=list(options), params_input={"n": 1})


def refused(client: airflow.ApiClient, *options: str) -> int:
    with pytest.raises(ApiException) as error:
        airflow.TaskInstanceApi(client).update_hitl_detail(**PLACE, update_hitl_detail_payload=answer(*options))
    return int(error.value.status)


def test_a_request_is_answered_once(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)
    assert refused(client, "yes") == 404
    ask(client)
    asked = api.get_hitl_detail(**PLACE)
    assert (asked.subject, asked.options, asked.response_received, asked.task_instance.task_id) == (
        "Go?", ["yes", "no"], False, "extract"
    )  # fmt: skip
    assert (refused(client, "maybe"), refused(client, "yes", "no")) == (400, 400)

    done = api.update_hitl_detail(**PLACE, update_hitl_detail_payload=answer("no"))

    assert (done.chosen_options, done.params_input) == (["no"], {"n": 1}) and done.responded_by.name
    stored = airflow.TaskStateStoreApi(client).get_task_state_store(**TASK, key=hitl.RESPONSE)
    assert stored.value["chosen_options"] == ["no"] and stored.expires_at is None
    assert api.get_hitl_detail(**PLACE).response_received and refused(client, "yes") == 409
    with pytest.raises(ApiException) as lists:
        api.get_hitl_details(TASK["dag_id"], TASK["dag_run_id"])
    assert lists.value.status == 501


def test_only_assigned_users_may_answer(client: airflow.ApiClient, world: World) -> None:
    ask(client, assigned_users=[{"id": "nobody", "name": "nobody"}])

    assert refused(client, "yes") == 403


def test_the_task_and_the_api_use_the_same_keys() -> None:
    assert (routes.REQUEST, routes.RESPONSE) == (hitl.REQUEST, hitl.RESPONSE)
