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


@pytest.mark.parametrize("value", ["text", 7, {"subject": 7}, {"task_instance": "x", "options": {}}])
def test_a_value_that_is_no_request_does_not_break_the_list(client: airflow.ApiClient, world: World, value: Any) -> None:
    airflow.TaskStateStoreApi(client).set_task_state_store(
        **TASK, key=hitl.REQUEST, task_state_store_body=airflow.TaskStateStoreBody(value=value)
    )
    api = airflow.TaskInstanceApi(client)

    assert [one.subject for one in api.get_hitl_details("~", "~").hitl_details] == [routes.UNREADABLE]
    assert api.get_hitl_detail(**PLACE).task_instance.task_id == "extract"
    assert refused(client, "yes") == 409


def test_only_assigned_users_may_answer(client: airflow.ApiClient, world: World) -> None:
    ask(client, assigned_users=[{"id": "nobody", "name": "nobody"}])

    assert refused(client, "yes") == 403


def test_the_task_and_the_api_use_the_same_keys() -> None:
    assert (routes.REQUEST, routes.RESPONSE) == (hitl.REQUEST, hitl.RESPONSE)


def test_requests_are_listed_by_their_task_instance_and_their_answer(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)

    def listed(dag_id: str = "~", run_id: str = "~", **filters: Any) -> list[tuple[str, bool]]:
        page = api.get_hitl_details(dag_id, run_id, **filters)
        assert page.total_entries == len(page.hitl_details)
        return [(one.subject, one.response_received) for one in page.hitl_details]

    assert listed() == []
    ask(client, subject="Publish the prices?", body="Nine of them rise.")
    waiting, answered = [("Publish the prices?", False)], [("Publish the prices?", True)]
    for filters in (
        {}, {"dag_id": "etl"}, {"dag_id": "etl", "run_id": "good"}, {"response_received": False}, {"subject_search": "PRICES"},
        {"body_search": "rise"}, {"task_id": "extract", "map_index": -1}, {"task_id_prefix_pattern": "ext"},
        {"dag_id_pattern": "TL"}, {"order_by": ["-created_at", "subject", "responded_at"]},
        {"created_at_gte": "2020-01-01T00:00:00Z"},
    ):  # fmt: skip
        assert listed(**filters) == waiting, filters  # type: ignore[arg-type]
    for filters in (
        {"response_received": True}, {"subject_search": "none"}, {"task_id": "load"}, {"state": ["running"]},
        {"dag_id_prefix_pattern": "x"}, {"created_at_lt": "2020-01-01T00:00:00Z"}, {"responded_by_user_id": ["me"]},
    ):  # fmt: skip
        assert listed(**filters) == [], filters  # type: ignore[arg-type]

    name = api.update_hitl_detail(**PLACE, update_hitl_detail_payload=answer("no")).responded_by.name

    assert listed(response_received=False) == []
    assert listed(response_received=True) == listed(responded_by_user_name=[name]) == answered
    with pytest.raises(ApiException) as unknown:
        listed("etl", "nope")
    assert unknown.value.status == 404
