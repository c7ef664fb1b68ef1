"""Questions to a person and their answers, through Airflow's client."""

import json
from typing import Any

import pytest
from airflow_client import client as airflow
from airflow_client.client.exceptions import ApiException

from paceline import DAG
from paceline.operators import HITLOperator, hitl
from scheduler.actions import stored
from scheduler.api.routes import values as routes
from scheduler.store.db.database import transact
from scheduler.store.runs import edits

from .conftest import Web, World

TASK = {"dag_id": "etl", "dag_run_id": "now", "task_id": "extract"}
PLACE = {**TASK, "map_index": -1}


def keep(world: World, key: str, value: Any) -> None:
    """Store a value as the task does."""
    where = "t.task_id = 'extract' and r.run_id = 'now'"
    ((ti_id,),) = world.scenario.rows(f"select t.id from task_instance t join dag_run r on r.id = t.dag_run_id where {where}")
    transact(world.scenario.engine, edits.set_of_task, ti_id, key, json.dumps(value), at=None, days=None)


def ask(world: World, **request: Any) -> None:
    params = {"n": {"value": 1, "schema": {"type": "integer"}, "description": None}}
    keep(world, hitl.REQUEST, {
        "subject": "Go?", "options": ["yes", "no"], "multiple": False, "params": params, "assigned_users": [], **request
    })  # fmt: skip


def answer(*options: str) -> airflow.UpdateHITLDetailPayload:
    return airflow.UpdateHITLDetailPayload(chosen_options=list(options), params_input={"n": 1})


def refused(client: airflow.ApiClient, *options: str) -> int:
    with pytest.raises(ApiException) as error:
        airflow.TaskInstanceApi(client).update_hitl_detail(**PLACE, update_hitl_detail_payload=answer(*options))
    return int(error.value.status)


def test_a_request_is_answered_once(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)
    assert refused(client, "yes") == 404
    ask(world)
    question = api.get_hitl_detail(**PLACE)
    assert (question.subject, question.options, question.response_received, question.task_instance.task_id) == (
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
    keep(world, hitl.REQUEST, value)
    api = airflow.TaskInstanceApi(client)

    assert [detail.subject for detail in api.get_hitl_details("~", "~").hitl_details] == [stored.UNREADABLE]
    assert api.get_hitl_detail(**PLACE).task_instance.task_id == "extract"
    assert refused(client, "yes") == 409


@pytest.mark.parametrize("params", [{"n": 5}, ["n"]])
def test_params_that_cannot_be_read_do_not_break_the_answer(client: airflow.ApiClient, world: World, params: Any) -> None:
    ask(world, params=params)

    assert refused(client, "yes") == 409


@pytest.mark.parametrize(
    "schema",
    [{"type": "nothing"}, {"$ref": "#"}, {"pattern": "(?=a)"}, {"$ref": "http://127.0.0.1:9/x"}, {"$dynamicRef": "#x"}, None],
)
def test_a_schema_that_is_not_valid_is_refused(client: airflow.ApiClient, world: World, schema: Any) -> None:
    ask(world, params={"n": {"schema": schema}})

    assert refused(client, "yes") == 422


@pytest.mark.parametrize("key", [hitl.REQUEST, hitl.RESPONSE, hitl.EARLIER.format(1), "hitl_new"])
def test_a_client_cannot_write_what_stands_for_requests_and_answers(web: Web, world: World, key: str) -> None:
    """An answer names the account that gave it, and only assigned users give one."""
    forged = {"chosen_options": ["yes"], "params_input": {}, "responded_by_user": {"id": "boss", "name": "boss"}}
    ask(world, assigned_users=[{"id": "boss", "name": "boss"}])
    store = "/api/v2/dags/etl/dagRuns/now/taskInstances/extract/state-store"
    before = world.scenario.rows("select key, value from task_state")
    with web.http(web.account("ada", "admin")) as http:
        assert http.put(f"{store}/{key}", json={"value": forged}).status_code == 403
        assert http.patch(f"{store}/{key}", json={"value": forged}).status_code == 403
        assert http.delete(f"{store}/{key}").status_code == 403
        assert http.delete(store, params={"all_map_indices": True}).status_code == 204

    assert world.scenario.rows("select key, value from task_state") == before


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rows": "many"}, "Param 'rows' cannot be \"many\": 'many' is not of type 'integer'."),
        ({"rows": 0}, "Param 'rows' cannot be 0: 0 is less than the minimum of 1."),
        ({}, "Param 'rows' needs a value."),
        ({"rows": 1, "row": 2}, "There is no param 'row': the params are rows, name."),
    ],
)
def test_values_that_do_not_fit_the_params_are_refused(
    client: airflow.ApiClient, web: Web, world: World, given: dict[str, Any], sentence: str
) -> None:
    rows = {"schema": {"type": "integer", "minimum": 1}, "description": None}
    ask(world, params={"rows": rows, "name": {"value": "x", "schema": {}, "description": None}}, params_order=["rows", "name"])
    path = "/api/v2/dags/etl/dagRuns/now/taskInstances/extract/-1/hitlDetails"
    with web.http(web.account("oli", "operator")) as http:
        refusal = http.patch(path, json={"chosen_options": ["yes"], "params_input": given})
        assert (refusal.status_code, refusal.json()["detail"]) == (400, sentence)
        assert not http.get(path).json()["response_received"]
        assert http.patch(path, json={"chosen_options": ["yes"], "params_input": {"rows": 1}}).status_code == 200


def test_the_params_of_a_request_have_the_order_of_their_author(client: airflow.ApiClient, web: Web, world: World) -> None:
    with DAG("d", schedule=None):
        task = HITLOperator(task_id="t", subject="s", options=["a"], params={"zebra": 1, "a": 2, "medium": 3})
    ask(world, **task.request())

    with web.http(web.account("uma", "viewer")) as http:
        (listed,) = http.get("/api/v2/dags/~/dagRuns/~/hitlDetails").json()["hitl_details"]
        one = http.get("/api/v2/dags/etl/dagRuns/now/taskInstances/extract/-1/hitlDetails").json()

    assert list(listed["params"]) == list(one["params"]) == ["zebra", "a", "medium"]


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("state = 'up_for_retry', ended_at = now(), due_at = now()", "up_for_retry"),
        ("state = 'failed', ended_at = now()", "failed"),
        ("state = null", "none"),
        ("state = 'queued'", "queued"),
        ("try_number = 2", "running"),
    ],
)
def test_an_answer_to_a_try_that_has_ended_is_refused(
    client: airflow.ApiClient, web: Web, world: World, change: str, state: str
) -> None:
    ask(world, try_number=1)
    path = "/api/v2/dags/etl/dagRuns/now/taskInstances/extract/-1/hitlDetails"
    which = "task_id = 'extract' and dag_run_id = (select id from dag_run where run_id = 'now')"
    world.scenario.sql(f"update task_instance set {change} where {which}")
    with web.http(web.account("oli", "operator")) as http:
        refusal = http.patch(path, json={"chosen_options": ["yes"]})
        sentence = f"Task 'extract' is {state} and no longer waits for this answer."
        assert (refusal.status_code, refusal.json()["detail"]) == (409, sentence)

        # A task that waits does so between two polls, in these states.
        for waiting in ("up_for_reschedule", "queued"):
            values = f"state = '{waiting}', ended_at = null, try_number = 1, resume = '{{}}', due_at = now()"
            world.scenario.sql(f"update task_instance set {values} where {which}")
            world.scenario.sql("delete from task_state where key = 'hitl_response'")
            assert http.patch(path, json={"chosen_options": ["yes"]}).status_code == 200


def test_each_try_has_its_request(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)
    question = {"subject": "First?", "options": ["yes"], "try_number": 1, "asked_at": "2026-01-01T00:00:00+00:00"}
    answered = {"chosen_options": ["yes"], "responded_by_user": {"id": "7", "name": "ann"}}

    def detail(number: int) -> airflow.HITLDetailHistory:
        return api.get_hitl_detail_try_detail(**PLACE, try_number=number)

    def missing(number: int) -> bool:
        with pytest.raises(ApiException) as error:
            detail(number)
        return bool(error.value.status == 404)

    assert missing(1)
    ask(world, **question)
    assert (detail(1).subject, detail(1).response_received, detail(1).task_instance.try_number) == ("First?", False, 1)
    assert missing(2)

    world.scenario.sql(
        "insert into task_try (task_instance_id, try_number, state, started_at, ended_at)"
        " select id, 1, 'failed', now(), now() from task_instance where task_id = 'extract' and state = 'running'"
    )
    world.scenario.sql("update task_instance set try_number = 2 where task_id = 'extract' and state = 'running'")
    ask(world, subject="Second?", try_number=2)
    assert missing(1)
    keep(world, hitl.EARLIER.format(1), {"request": question, "answer": answered})
    assert (detail(2).subject, detail(2).response_received) == ("Second?", False)
    first = detail(1)
    assert (first.subject, first.chosen_options, first.created_at.year) == ("First?", ["yes"], 2026)
    assert first.responded_by_user and first.responded_by_user.name == "ann"
    for value in ("text", {"request": 7}, {"request": {"asked_at": "never"}}):
        keep(world, hitl.EARLIER.format(1), value)
        assert missing(1) if value == "text" else detail(1).subject == stored.UNREADABLE


def test_only_assigned_users_may_answer(client: airflow.ApiClient, world: World) -> None:
    ask(world, assigned_users=[{"id": "nobody", "name": "nobody"}])

    assert refused(client, "yes") == 403


def test_the_task_and_the_api_use_the_same_keys() -> None:
    assert (routes.REQUEST, routes.RESPONSE, routes.EARLIER) == (hitl.REQUEST, hitl.RESPONSE, hitl.EARLIER)


def test_requests_are_listed_by_their_task_instance_and_their_answer(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)

    def listed(dag_id: str = "~", run_id: str = "~", **filters: Any) -> list[tuple[str, bool]]:
        page = api.get_hitl_details(dag_id, run_id, **filters)
        assert page.total_entries == len(page.hitl_details)
        return [(detail.subject, detail.response_received) for detail in page.hitl_details]

    assert listed() == []
    ask(world, subject="Publish the prices?", body="Nine of them rise.")
    waiting, answered = [("Publish the prices?", False)], [("Publish the prices?", True)]
    for filters in (
        {}, {"dag_id": "etl"}, {"dag_id": "etl", "run_id": "now"}, {"response_received": False}, {"subject_search": "PRICES"},
        {"body_search": "rise"}, {"task_id": "extract", "map_index": -1}, {"task_id_prefix_pattern": "ext"},
        {"dag_id_pattern": "TL"}, {"order_by": ["-created_at", "subject", "responded_at"]},
        {"created_at_gte": "2020-01-01T00:00:00Z"},
    ):  # fmt: skip
        assert listed(**filters) == waiting, filters  # type: ignore[arg-type]
    for filters in (
        {"response_received": True}, {"subject_search": "none"}, {"task_id": "load"}, {"state": ["failed"]},
        {"dag_id_prefix_pattern": "x"}, {"created_at_lt": "2020-01-01T00:00:00Z"}, {"responded_by_user_id": ["me"]},
    ):  # fmt: skip
        assert listed(**filters) == [], filters  # type: ignore[arg-type]

    name = api.update_hitl_detail(**PLACE, update_hitl_detail_payload=answer("no")).responded_by.name

    assert listed(response_received=False) == []
    assert listed(response_received=True) == listed(responded_by_user_name=[name]) == answered
    with pytest.raises(ApiException) as unknown:
        listed("etl", "nope")
    assert unknown.value.status == 404
