"""Operations of Airflow's client that write."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow_client import client as airflow
from airflow_client.client.exceptions import ApiException, ConflictException, NotFoundException
from sqlalchemy import event
from support.scenario import dag

from paceline.exceptions import UnreachableError
from scheduler.api.routes import dag_runs

from .conftest import Web, World

GOOD = ("etl", "good")


def refused(call: Any, *arguments: Any, **named: Any) -> tuple[int, str]:
    """The status and the detail of a request that fails."""
    with pytest.raises(ApiException) as error:
        call(*arguments, **named)
    return error.value.status, str(json.loads(error.value.body or "{}")["detail"])


def test_trigger(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)
    at = datetime(2026, 2, 1, tzinfo=UTC)

    run = api.trigger_dag_run(
        "etl", airflow.TriggerDAGRunPostBody(dag_run_id="mine", logical_date=at, conf={"rows": 7}, note="why")
    )

    assert (run.dag_run_id, run.state.value, run.conf, run.note) == ("mine", "queued", {"rows": 7}, "why")
    assert (run.triggered_by and run.triggered_by.value, run.triggering_user_name) == ("rest_api", "ada")
    assert world.scenario.rows("select actor from event where to_state = 'queued' order by at desc limit 1") == [("api:ada",)]
    assert refused(api.trigger_dag_run, "etl", airflow.TriggerDAGRunPostBody(dag_run_id="mine"))[0] == 409
    assert refused(api.trigger_dag_run, "etl", airflow.TriggerDAGRunPostBody(conf={"rows": "many"}))[0] == 400
    assert refused(api.trigger_dag_run, "nothing", airflow.TriggerDAGRunPostBody())[0] == 404
    assert world.scenario.broker.zcard("paceline:wakeups") > 0, "a scheduler is woken"


def test_a_run_without_a_logical_date_is_triggered_with_null(client: airflow.ApiClient, world: World, web: Web) -> None:
    undated = airflow.DagRunApi(client).trigger_dag_run("etl", airflow.TriggerDAGRunPostBody(logical_date=None))
    with web.http(web.account("bob", "operator")) as http:
        left_out = http.post("/api/v2/dags/etl/dagRuns", json={}).raise_for_status().json()

    assert (undated.logical_date, undated.data_interval_start, undated.data_interval_end) == (None, None, None)
    assert undated.dag_run_id == f"manual__{undated.run_after.astimezone(UTC).isoformat()}"
    assert left_out["logical_date"] is not None and left_out["data_interval_end"] is not None
    world.scenario.sql("update task_instance set state = 'success', ended_at = now() where state = 'running'")
    world.scenario.run_to_end()
    assert [world.state(run_id) for run_id in (undated.dag_run_id, left_out["dag_run_id"])] == ["success", "success"]


def test_a_run_and_an_update_have_a_partition(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)

    run = api.trigger_dag_run("etl", airflow.TriggerDAGRunPostBody(dag_run_id="mine", partition_key="eu"))
    api.trigger_dag_run("etl", airflow.TriggerDAGRunPostBody(dag_run_id="other", partition_key="us"))

    assert run.partition_key == "eu"
    assert world.scenario.rows("select run_id, partition_key from dag_run where partition_key is not null order by id") == [
        ("mine", "eu"),
        ("other", "us"),
    ]
    assert [one.dag_run_id for one in api.get_dag_runs("etl", partition_key_pattern="eu").dag_runs] == ["mine"]
    assert refused(api.trigger_dag_run, "etl", airflow.TriggerDAGRunPostBody(partition_key="x" * 251))[0] in {400, 422}


def test_an_idempotency_key_makes_one_run(client: airflow.ApiClient, world: World, web: Web) -> None:
    token = web.account("bob", "operator")
    with web.http(token) as http:
        send = lambda key, **body: http.post(  # noqa: E731
            "/api/v2/dags/etl/dagRuns", json=body, headers={"Idempotency-Key": key}
        )
        first, second = send("k", conf={"rows": 1}), send("k", conf={"rows": 1})

        assert first.status_code == second.status_code == 200
        assert first.json()["dag_run_id"] == second.json()["dag_run_id"]
        assert send("k", conf={"rows": 2}).status_code == 409
        assert send("other", conf={"rows": 1}).json()["dag_run_id"] != first.json()["dag_run_id"]


def test_a_clear_of_several_indexes_and_runs_is_made_as_a_whole_or_not_at_all(
    client: airflow.ApiClient, world: World, web: Web
) -> None:
    with web.http(web.account("bob", "operator")) as http:

        def clear(**body: Any) -> Any:
            return http.post("/api/v2/dags/etl/clearTaskInstances", json={"only_failed": False, "dry_run": False} | body)

        refused = clear(dag_run_id="good", task_ids=[["each", 0], ["each", 99]], note="why")
        assert (refused.status_code, set(world.states("good").values())) == (404, {"success"})
        assert world.scenario.rows("select count(*) from instance_note") == [(0,)]

        world.scenario.sql("update task_instance set map_index = 7 where task_id = 'each' and map_index = 2 and dag_run_id ="
                           " (select id from dag_run where run_id = 'bad')")  # fmt: skip
        everywhere = {"task_ids": [["each", 2], ["load", -1]], "start_date": "2020-01-01T00:00:00Z"}
        would, done = clear(**everywhere, dry_run=True).json(), clear(**everywhere, note="why").json()
        runs = [{one["dag_run_id"] + one["task_id"] for one in answer["task_instances"]} for answer in (would, done)]
        assert runs[0] == runs[1] >= {"goodeach", "goodload", "badload"}
        assert world.scenario.rows("select count(*) from instance_note") == [(len(done["task_instances"]),)]
        only_good = clear(task_ids=[["each", 7]], start_date="2020-01-01T00:00:00Z").json()
        assert [one["dag_run_id"] for one in only_good["task_instances"]] == ["bad"] and only_good["passed_over"] == 2


def test_several_runs_are_cleared_as_a_whole_or_not_at_all(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)
    names = [airflow.BulkDAGRunBody(dag_run_id=name) for name in ("good", "bad", "gone")]

    status, _ = refused(api.clear_dag_runs, "etl", airflow.BulkDAGRunClearBody(dag_runs=names, dry_run=False, note="why"))

    assert status == 404
    assert (world.state("good"), world.state("bad")) == ("success", "failed")


def test_dags_are_paused_as_a_whole_or_not_at_all(world: World, web: Web) -> None:
    world.scenario.sql("alter table dag_schedule add constraint refused check (dag_id <> 'hourly' or not is_paused)")
    with web.http(web.account("bob", "operator")) as http:
        assert http.patch("/api/v2/dags?dag_id_pattern=~", json={"is_paused": True}).status_code >= 400

    assert world.scenario.rows("select distinct is_paused from dag_schedule") == [(False,)]


def test_change_runs(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)

    run = api.patch_dag_run("etl", "now", airflow.DAGRunPatchBody(state=airflow.DagRunMutableStates.SUCCESS, note="enough"))
    assert (run.state.value, run.note) == ("success", "enough")
    run = api.patch_dag_run("etl", "now", airflow.DAGRunPatchBody(note="only this"), update_mask=["note"])
    assert (run.state.value, run.note) == ("success", "only this")
    assert api.patch_dag_run(*GOOD, airflow.DAGRunPatchBody(state=airflow.DagRunMutableStates.QUEUED)).state.value == "queued"
    assert set(world.states("good").values()) == {"success"}, "what has ended does not run again"

    # The client cannot read its own declared type of a dry run: an entry fits both kinds of its union.
    would = api.clear_dag_run_without_preload_content("etl", "bad", airflow.DAGRunClearBody(dry_run=True, only_failed=True))
    assert json.loads(would.data)["total_entries"] == 5 and world.state("bad") == "failed"
    did = api.clear_dag_run("etl", "bad", airflow.DAGRunClearBody(dry_run=False)).actual_instance
    assert did.state.value == "queued" and world.states("bad")["extract"] == "none"

    several = airflow.BulkDAGRunClearBody(dag_runs=[airflow.BulkDAGRunBody(dag_run_id="good")], dry_run=False)
    assert api.clear_dag_runs("etl", several).actual_instance.total_entries == 1
    assert refused(api.clear_dag_run_partitions, "etl", airflow.ClearPartitionsBody())[0] == 501


def test_delete_and_change_runs_in_bulk(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)

    api.delete_dag_run(*GOOD)
    assert refused(api.get_dag_run, *GOOD)[0] == 404
    assert refused(api.delete_dag_run, "etl", "now")[0] == 409

    update = airflow.BulkUpdateActionBulkDAGRunBody(
        action="update",
        action_on_non_existence=airflow.BulkActionNotOnExistence.SKIP,
        entities=[
            airflow.BulkDAGRunBody(dag_run_id="now", state=airflow.DagRunMutableStates.FAILED),
            airflow.BulkDAGRunBody(dag_run_id="nothing", note="x"),
        ],
    )
    delete = airflow.BulkDeleteActionBulkDAGRunBody(action="delete", entities=[airflow.EntitiesInner("bad")])
    body = airflow.BulkBodyBulkDAGRunBody(actions=[airflow.ActionsInner(update), airflow.ActionsInner(delete)])
    result = api.bulk_dag_runs("etl", body)
    assert result.update and result.update.success == ["etl.now"] and result.update.errors == []
    assert result.delete and result.delete.success == ["etl.bad"] and world.state("now") == "failed"


def test_wait_for_the_end_of_a_run(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)

    done = api.wait_dag_run_until_finished_without_preload_content(*GOOD, 0.1, result=["extract", "each"])

    (line,) = [json.loads(one) for one in done.data.splitlines()]
    assert line == {"state": "success", "results": {"extract": "extract", "each": ["each"] * 3}}
    assert refused(api.wait_dag_run_until_finished, "etl", "nothing", 1)[0] == 404


def test_a_wait_explains_why_it_has_no_state(
    client: airflow.ApiClient, world: World, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away for one look, and then the run is deleted."""
    monkeypatch.setattr(dag_runs, "SHORTEST_INTERVAL_S", 0.3)
    world.scenario.trigger("etl", run_id="new")

    def away(_: object) -> None:
        event.remove(web.engine, "begin", away)
        raise UnreachableError("PostgreSQL does not answer.")

    with (
        web.http(client.configuration.access_token) as http,
        http.stream("GET", "/api/v2/dags/etl/dagRuns/new/wait", params={"interval": 1e-9}) as stream,
    ):
        lines = (json.loads(line) for line in stream.iter_lines())
        assert next(lines) == {"state": "queued"}
        event.listen(web.engine, "begin", away)
        assert {"state": "queued", "detail": "PostgreSQL does not answer."} in [next(lines), next(lines)]
        http.delete("/api/v2/dags/etl/dagRuns/new").raise_for_status()
        *_, last = lines
    assert last["state"] is None and "has no run 'new'" in last["detail"]


def test_clear_task_instances(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)
    inner = airflow.ClearTaskInstancesBodyTaskIdsInner
    body = airflow.ClearTaskInstancesBody(dag_run_id="good", task_ids=[inner("load"), inner(["each", 1])], only_failed=False)

    would = api.post_clear_task_instances("etl", body)
    assert {(instance.task_id, instance.map_index) for instance in would.task_instances} == {("load", -1), ("each", 1)}
    assert set(world.states("good").values()) == {"success"}, "dry_run is the default"
    body.dry_run, body.note = False, "again"
    did = api.post_clear_task_instances("etl", body)
    assert did.total_entries == 2 and {instance.note for instance in did.task_instances} == {"again"}
    assert world.states("good") == {
        "extract": "success", "each[0]": "success", "each[1]": "none", "each[2]": "success", "load": "none"
    }  # fmt: skip
    assert world.state("good") == "queued"

    stay = airflow.ClearTaskInstancesBody(dag_run_id="good", only_failed=False, dry_run=False, reset_dag_runs=False)
    assert refused(api.post_clear_task_instances, "etl", stay)[0] == 400
    world.scenario.sql("update dag_run set logical_date = null, run_after = '2026-02-01' where run_id = 'bad'")
    undated = airflow.ClearTaskInstancesBody(dag_run_id="bad", task_ids=[inner("extract")], include_past=True, only_failed=False)
    placed = api.post_clear_task_instances("etl", undated)
    assert {one.dag_run_id for one in placed.task_instances} == {"good", "bad", "now"}, "its run_after is after their dates"
    mark = airflow.PatchTaskInstanceBody(new_state=airflow.TaskInstanceState.FAILED, include_past=True)
    assert api.patch_task_instance_dry_run("etl", "bad", "extract", mark).total_entries > 1
    running = airflow.ClearTaskInstancesBody(dag_run_id="now", only_failed=False, dry_run=False, prevent_running_task=True)
    assert refused(api.post_clear_task_instances, "etl", running)[0] == 409
    assert refused(api.post_clear_task_instances, "etl", airflow.ClearTaskInstancesBody(dag_run_id="nothing"))[0] == 404


def test_mark_task_instances(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)
    failed = airflow.PatchTaskInstanceBody(new_state=airflow.TaskInstanceState.FAILED)

    assert api.patch_task_instance_dry_run(*GOOD, "extract", failed).total_entries == 1
    assert world.states("good")["extract"] == "success"
    assert api.patch_task_instance(*GOOD, "extract", failed).task_instances[0].state == "failed"
    assert api.patch_task_instance_dry_run_by_map_index(*GOOD, "each", 1, failed).total_entries == 1
    assert api.patch_task_instance_by_map_index(*GOOD, "each", 1, failed).task_instances[0].map_index == 1
    assert world.states("good")["each[1]"] == "failed" and world.states("good")["each[0]"] == "success"
    assert api.patch_task_group_instances_dry_run(*GOOD, "g", failed).total_entries == 2
    assert api.patch_task_group_instances(*GOOD, "g", failed).total_entries == 2
    noted = api.patch_task_instance(*GOOD, "load", airflow.PatchTaskInstanceBody(note="look"), update_mask=["note"])
    assert noted.task_instances[0].note == "look"
    running = airflow.PatchTaskInstanceBody(new_state=airflow.TaskInstanceState.RUNNING)
    assert refused(api.patch_task_instance, *GOOD, "load", running)[0] == 400

    entity = airflow.BulkTaskInstanceBody(task_id="load", new_state=airflow.TaskInstanceState.SKIPPED)
    update = airflow.BulkUpdateActionBulkTaskInstanceBody(action="update", entities=[entity])
    body = airflow.BulkBodyBulkTaskInstanceBody(actions=[airflow.ActionsInner1(update)])
    result = api.bulk_task_instances(*GOOD, body)
    assert result.update and result.update.success == ["etl.good.load[-1]"] and world.states("good")["load"] == "skipped"
    entity.dag_run_id = "bad"
    result = api.bulk_task_instances(*GOOD, body)
    assert result.update and result.update.success == ["etl.bad.load[-1]"] and world.states("bad")["load"] == "skipped"
    assert refused(api.delete_task_instance, *GOOD, "load")[0] == 409
    assert api.get_hitl_details(*GOOD).hitl_details == []


def test_pause_delete_and_favor_dags(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DAGApi(client)

    assert api.patch_dag("etl", airflow.DAGPatchBody(is_paused=True)).is_paused
    assert [one.is_paused for one in api.patch_dags(airflow.DAGPatchBody(is_paused=True), dag_id_pattern="%").dags] == [True, True]
    assert not api.patch_dag("etl", airflow.DAGPatchBody(is_paused=False), update_mask=["is_paused"]).is_paused
    api.favorite_dag("etl")
    assert [one.dag_id for one in api.get_dags(is_favorite=True).dags] == ["etl"] and api.get_dag_details("etl").is_favorite
    api.unfavorite_dag("etl")
    assert api.get_dags(is_favorite=True).total_entries == 0
    token = api.get_dag("hourly").file_token
    world.scenario.sql("insert into dag_file (path, modified_at, next_parse_at) values ('hourly.py', now(), 'infinity')")
    airflow.DAGParsingApi(client).reparse_dag_file(token)
    assert world.scenario.rows("select next_parse_at < 'infinity' from dag_file") == [(True,)]
    api.delete_dag("hourly")
    assert refused(api.get_dag, "hourly")[0] == 404


def test_pausing_by_filter_changes_the_dags_that_the_same_filter_lists(client: airflow.ApiClient, world: World, web: Web) -> None:
    airflow.DAGApi(client).favorite_dag("etl")
    with web.http(client.configuration.access_token) as http:

        def paused(value: bool, **chosen: Any) -> list[str]:
            http.patch("/api/v2/dags", params=chosen, json={"is_paused": value}).raise_for_status()
            return [one["dag_id"] for one in http.get("/api/v2/dags", params={"paused": True}).json()["dags"]]

        assert paused(True, last_dag_run_state="running") == ["etl"]
        assert paused(False, is_favorite=True) == []
        assert paused(True, dag_id_pattern="~", limit=1) == ["etl", "hourly"], "not the page alone"


def test_pools(client: airflow.ApiClient, world: World) -> None:
    api = airflow.PoolApi(client)

    created = api.post_pool(airflow.PoolBody(name="a/b", slots=3, description="d"))
    assert (created.name, created.slots, created.open_slots, created.include_deferred) == ("a/b", 3, 3, False)
    assert refused(api.post_pool, airflow.PoolBody(name="a/b", slots=1))[0] == 409
    assert api.get_pool("a/b").description == "d"
    assert [pool.name for pool in api.get_pools(order_by=["-slots"]).pools] == ["default_pool", "a/b"]
    assert api.get_pool("default_pool").running_slots == 1
    assert api.patch_pool("a/b", airflow.PoolPatchBody(slots=5, description="x"), update_mask=["slots"]).slots == 5
    assert api.get_pool("a/b").description == "d"

    create = airflow.BulkCreateActionPoolBody(
        action="create", entities=[airflow.PoolBody(name="a/b", slots=9), airflow.PoolBody(name="c", slots=1)]
    )
    delete = airflow.BulkDeleteActionPoolBody(action="delete", entities=[airflow.EntitiesInner3("c")])
    body = airflow.BulkBodyPoolBody(actions=[airflow.ActionsInner3(create), airflow.ActionsInner3(delete)])
    result = api.bulk_pools(body)
    assert result.create and result.create.success == [] and (result.create.errors or [{}])[0]["status_code"] == 409
    assert result.delete and result.delete.success == [] and (result.delete.errors or [{}])[0]["status_code"] == 404
    api.delete_pool("a/b")
    assert refused(api.delete_pool, "default_pool")[0] == 409
    with pytest.raises(NotFoundException):
        api.get_pool("a/b")


def test_variables(client: airflow.ApiClient, world: World) -> None:
    api = airflow.VariableApi(client)

    created = api.post_variable(airflow.VariableBody(key="a/key", value={"n": 1, "password": "hidden"}, description="d"))
    assert (created.key, created.value, created.is_encrypted) == ("a/key", '{"n": 1, "password": "***"}', True)
    with pytest.raises(ConflictException):
        api.post_variable(airflow.VariableBody(key="a/key", value="x"))
    api.post_variable(airflow.VariableBody(key="api_token", value="never shown"))
    assert api.get_variable("api_token").value == "***"
    assert [variable.value for variable in api.get_variables(variable_key_pattern="token").variables] == ["***"]
    assert api.patch_variable("a/key", airflow.VariableBody(key="a/key", value="new", description="e")).value == "new"
    api.patch_variable("api_token", airflow.VariableBody(key="api_token", value="***"))
    assert world.scenario.rows("select count(*) from variable where value like '%%***%%'") == [(0,)]

    update = airflow.BulkUpdateActionVariableBody(action="update", entities=[airflow.VariableBody(key="a/key", value="bulk")])
    result = api.bulk_variables(airflow.BulkBodyVariableBody(actions=[airflow.ActionsInner4(update)]))
    assert result.update and result.update.success == ["a/key"] and api.get_variable("a/key").value == "bulk"
    api.delete_variable("a/key")
    with pytest.raises(NotFoundException):
        api.get_variable("a/key")


def test_connections(client: airflow.ApiClient, world: World, web: Web) -> None:
    api = airflow.ConnectionApi(client)
    body = airflow.ConnectionBody(
        connection_id="db", conn_type="postgres", host="h", login="me", password="hidden", port=5432, schema="s",
        extra='{"sslmode": "require"}',
    )  # fmt: skip

    created = api.post_connection(body)
    assert (created.connection_id, created.host, created.var_schema, created.password) == ("db", "h", "s", "***")
    assert created.extra == '{"sslmode": "***"}'
    with pytest.raises(ConflictException):
        api.post_connection(body)
    assert [connection.password for connection in api.get_connections().connections] == ["***"]
    shown = airflow.ConnectionBody(connection_id="db", conn_type="postgres", host="other", password="***", extra=created.extra)
    assert api.patch_connection("db", shown).host == "other"
    from scheduler.store.db.database import transact
    from scheduler.store.secrets import connections
    from scheduler.store.secrets.cipher import Cipher

    kept = transact(web.engine, connections.connection, "db", Cipher.of(web.settings, make=False))
    assert (kept.password, kept.extra_dejson) == ("hidden", {"sslmode": "require"})

    create = airflow.BulkCreateActionConnectionBody(
        action="create", action_on_existence=airflow.BulkActionOnExistence.SKIP, entities=[body]
    )
    result = api.bulk_connections(airflow.BulkBodyConnectionBody(actions=[airflow.ActionsInner2(create)]))
    assert result.create and result.create.success == [] and result.create.errors == []
    assert refused(api.test_connection, body)[0] == 501
    assert refused(api.create_default_connections, _request_timeout=30)[0] == 501
    api.delete_connection("db")
    with pytest.raises(NotFoundException):
        api.get_connection("db")


def test_xcoms(client: airflow.ApiClient, world: World) -> None:
    api = airflow.XComApi(client)
    place = {"dag_id": "etl", "dag_run_id": "good", "task_id": "extract"}

    created = api.create_xcom_entry(**place, x_com_create_body=airflow.XComCreateBody(key="a/b", value=[1, "<script>"]))
    assert (created.key, created.value) == ("a/b", [1, "<script>"])
    assert refused(api.create_xcom_entry, **place, x_com_create_body=airflow.XComCreateBody(key="a/b", value=1))[0] == 409
    changed = api.update_xcom_entry(**place, xcom_key="a/b", x_com_update_body=airflow.XComUpdateBody(value=2))
    assert changed.value == 2
    api.delete_xcom_entry(**place, xcom_key="a/b")
    assert refused(api.delete_xcom_entry, **place, xcom_key="a/b")[0] == 404
    deep = json.loads("[" * 300 + "]" * 300)
    created = api.create_xcom_entry(**place, x_com_create_body=airflow.XComCreateBody(key="deep", value=deep))
    assert created.value == json.dumps(deep)


def test_backfills(client: airflow.ApiClient, world: World) -> None:
    api = airflow.BackfillApi(client)
    first, last = datetime(2026, 3, 1, 0, tzinfo=UTC), datetime(2026, 3, 1, 3, tzinfo=UTC)
    body = airflow.BackfillPostBody(dag_id="hourly", from_date=first, to_date=last, max_active_runs=2)

    assert [backfill.logical_date and backfill.logical_date.hour for backfill in api.create_backfill_dry_run(body).backfills] == [
        0,
        1,
        2,
        3,
    ]
    created = api.create_backfill(body)
    assert (created.dag_id, created.max_active_runs, created.is_paused, created.completed_at) == ("hourly", 2, False, None)
    assert refused(api.create_backfill, body)[0] == 409
    assert api.pause_backfill(created.id).is_paused
    assert not api.unpause_backfill(created.id).is_paused
    assert api.get_backfill(created.id).id == created.id
    assert [backfill.id for backfill in api.list_backfills(dag_id="hourly").backfills] == [created.id]
    assert api.cancel_backfill(created.id).completed_at is not None
    assert refused(api.cancel_backfill, created.id)[0] == 409
    assert refused(api.create_backfill, airflow.BackfillPostBody(dag_id="etl", from_date=first, to_date=last))[0] == 422
    ever = airflow.BackfillPostBody(dag_id="hourly", from_date=datetime.min.replace(tzinfo=UTC), to_date=last)
    assert refused(api.create_backfill, ever)[0] == 422


def test_the_audit_log_has_every_change_with_its_outcome(client: airflow.ApiClient, world: World, web: Web) -> None:
    airflow.VariableApi(client).post_variable(airflow.VariableBody(key="k", value="never in the log"))
    refused(airflow.DagRunApi(client).trigger_dag_run, "etl", airflow.TriggerDAGRunPostBody(dag_run_id="good"))
    airflow.DAGApi(client).patch_dag("etl", airflow.DAGPatchBody(is_paused=True))
    api = airflow.EventLogApi(client)

    found = api.get_event_logs(order_by=["-event_log_id"]).event_logs
    assert [one.event for one in found] == ["patch_dag", "trigger_dag_run", "post_variable", "login"]
    assert {one.owner for one in found} == {"ada"} and (found[0].dag_id, found[1].run_id) == ("etl", "good")
    entries = world.scenario.rows("select event, status, address from audit order by id")
    assert [entry[:2] for entry in entries] == [
        ("login", 200),
        ("post_variable", 201),
        ("trigger_dag_run", 409),
        ("patch_dag", 200),
    ]
    assert {entry[2] for entry in entries} == {"127.0.0.1"}
    with web.http(client.configuration.access_token) as http:
        for body in ({"Conf": {"password": "never in the log"}}, "never in the log"):
            assert http.post("/api/v2/dags/etl/dagRuns", json=body).status_code == 422
    assert "never" not in str(world.scenario.rows("select extra from audit"))
    assert api.get_event_log(found[0].event_log_id).event == "patch_dag"
    assert api.get_event_logs(dag_id="etl", event="patch_dag").total_entries == 1


def test_the_audit_log_has_no_dry_runs(web: Web, world: World) -> None:
    run = {"dag_id": "etl", "dag_run_id": "bad"}
    by_filter = {"filter": {"dag_ids": ["etl"], "state": ["failed"]}}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/dags/etl/clearTaskInstances", {"dag_run_id": "bad"}),
        ("/dags/etl/dagRuns/bad/clear", {}),
        ("/dags/etl/clearDagRuns", {"dag_runs": [run]}),
        ("/clearByFilter", by_filter),
        ("/markByFilter", {**by_filter, "new_state": "success"}),
        ("/deleteByFilter", {"filter": {"dag_ids": ["etl"], "state": ["failed"]}}),
    ]

    def recorded() -> int:
        return int(world.scenario.rows("select count(*) from audit")[0][0])

    with web.http(web.account("oli", "operator")) as http:
        for path, body in requests:
            for dry in ({}, {"dry_run": True}):
                http.post(f"/api/v2{path}", json={**body, **dry}).raise_for_status()
            assert recorded() == 0, path
        for number, (path, body) in enumerate(requests, start=1):
            # Pydantic takes "no" for false.
            http.post(f"/api/v2{path}", json={**body, "dry_run": "no" if number % 2 else False})
            assert recorded() == number, path


def test_the_audit_log_names_the_task_that_a_request_clears(web: Web, client: airflow.ApiClient, world: World) -> None:
    with web.http(client.configuration.access_token) as http:
        for tasks in (["each"], [["each", 1]], ["each", "load"], [["each"]], [{}], "each"):
            body = {"dag_run_id": "good", "task_ids": tasks, "dry_run": False}
            http.post("/api/v2/dags/etl/clearTaskInstances", json=body)

    found = world.scenario.rows("select run_id, task_id, map_index from audit where event <> 'login' order by id")
    assert found == [("good", "each", None), ("good", "each", 1), *[("good", None, None)] * 4]


def test_removed_task_instances_can_be_deleted(client: airflow.ApiClient, world: World) -> None:
    world.scenario.add(dag("etl", {"extract": []}))
    world.scenario.sql("update task_instance set state = 'removed' where task_id = 'load'")

    airflow.TaskInstanceApi(client).delete_task_instance(*GOOD, "load")

    assert "load" not in world.states("good")
