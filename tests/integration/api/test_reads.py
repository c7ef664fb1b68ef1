"""Operations of Airflow's client that read, and the stored state of tasks and assets."""

import json
from datetime import UTC, datetime

import pytest
from airflow_client import client as airflow
from airflow_client.client.exceptions import ApiException, NotFoundException, UnprocessableEntityException
from support.scenario import chain

from paceline.authoring import timetable
from paceline.authoring.asset import Asset
from scheduler.store.db import database
from scheduler.store.read import listing, reads

from .conftest import Web, World

GOOD = ("etl", "good")


def test_dags(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DAGApi(client)

    found = api.get_dags()
    assert [dag.dag_id for dag in found.dags] == ["etl", "hourly"] and found.total_entries == 2
    assert [dag.dag_id for dag in api.get_dags(order_by=["-dag_id"], limit=1).dags] == ["hourly"]
    assert [
        dag.dag_id for dag in api.get_dags(tags=["nightly"], paused=False, last_dag_run_state=airflow.DagRunState.RUNNING).dags
    ] == ["etl"]
    assert [dag.dag_id for dag in api.get_dags(dag_id_pattern="ou").dags] == ["hourly"]
    assert [dag.dag_id for dag in api.get_dags(dag_run_state=["failed"]).dags] == ["etl"]
    assert api.get_dag_tags().tags == ["nightly"]

    dag = api.get_dag("etl")
    assert (dag.timetable_summary, dag.tags[0].name, dag.is_paused, dag.has_import_errors) == (
        "never, only by hand",
        "nightly",
        False,
        False,
    )
    details = api.get_dag_details("etl")
    assert details.latest_dag_version and details.latest_dag_version.version_number == 1
    assert details.params and details.params["rows"]["value"] == 3 and details.active_runs_count == 1
    assert api.get_dag_details("hourly").timetable_periodic and not details.is_backfillable

    with pytest.raises(NotFoundException) as missing:
        api.get_dag("nothing")
    assert json.loads(missing.value.body or "") == {"detail": "There is no DAG 'nothing'."}


def test_params_are_in_the_order_of_their_author(client: airflow.ApiClient, world: World) -> None:
    spec = {"schema": {}, "description": None}
    params = {name: spec | {"value": name} for name in ("region", "rows")}
    world.scenario.add(chain("form", 1, params=params, param_order=("region", "rows")))

    assert list(airflow.DAGApi(client).get_dag_details("form").params or ()) == ["region", "rows"]
    assert list(database.transact(world.scenario.engine, reads.dag, "form")["params"]) == ["region", "rows"]


def test_tasks_versions_and_sources(client: airflow.ApiClient, world: World) -> None:
    tasks = airflow.TaskApi(client).get_tasks("etl")
    assert [task.task_id for task in tasks.tasks] == ["each", "extract", "load"]
    each = airflow.TaskApi(client).get_task("etl", "each")
    assert each.is_mapped and each.downstream_task_ids == ["load"] and each.retries == 1
    assert each.retry_delay and each.retry_delay.seconds == 300

    versions = airflow.DagVersionApi(client)
    assert [version.version_number for version in versions.get_dag_versions("etl").dag_versions] == [1]
    assert versions.get_dag_versions("~").total_entries == 2
    assert versions.get_dag_version("etl", 1).dag_id == "etl"
    source = airflow.DagSourceApi(client).get_dag_source("etl")
    assert (source.content, source.version_number) == ("# the file of etl\n", 1)

    stats = airflow.DagStatsApi(client).get_dag_stats()
    counts = {one.state.value: one.count for one in stats.dags[0].stats}
    assert counts == {"queued": 0, "running": 1, "success": 1, "failed": 1}


def test_dag_runs(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)

    good = api.get_dag_run(*GOOD)
    assert (good.state.value, good.run_type.value, good.conf) == ("success", "manual", {"rows": 5})
    assert good.logical_date == datetime(2026, 1, 1, tzinfo=UTC)
    assert good.dag_versions[0].version_number == 1 and good.duration is not None and good.triggered_by
    found = api.get_dag_runs("etl", order_by=["-logical_date"])
    assert [run.dag_run_id for run in found.dag_runs] == ["now", "bad", "good"] and found.total_entries == 3
    assert [run.dag_run_id for run in api.get_dag_runs("~", state=["failed"]).dag_runs] == ["bad"]
    since = datetime(2026, 1, 2, tzinfo=UTC)
    assert [run.dag_run_id for run in api.get_dag_runs("etl", logical_date_gte=since).dag_runs] == ["bad", "now"]
    assert [run.dag_run_id for run in api.get_dag_runs("etl", run_id_pattern="oo").dag_runs] == ["good"]
    batch = airflow.DAGRunsBatchBody(dag_ids=["etl"], states=["success"], order_by="-run_after")
    assert [run.dag_run_id for run in api.get_list_dag_runs_batch("~", batch).dag_runs] == ["good"]
    assert api.get_upstream_asset_events(*GOOD).total_entries == 0


def test_cursors_of_dag_runs(client: airflow.ApiClient, world: World) -> None:
    api = airflow.DagRunApi(client)

    for order, expected in ((["-logical_date"], ["now", "bad", "good"]), (["end_date"], ["good", "bad", "now"])):
        first = api.get_dag_runs("etl", order_by=order, limit=2, cursor="")
        assert [run.dag_run_id for run in first.dag_runs] == expected[:2]
        assert first.total_entries == 3 and first.previous_cursor is None and first.next_cursor
        second = api.get_dag_runs("etl", order_by=order, limit=2, cursor=first.next_cursor)
        assert [run.dag_run_id for run in second.dag_runs] == expected[2:] and second.next_cursor is None
        back = api.get_dag_runs("etl", order_by=order, limit=2, cursor=second.previous_cursor)
        assert [run.dag_run_id for run in back.dag_runs] == expected[:2] and back.previous_cursor is None


#: The fields by which Airflow 3.3 orders each list.
ORDERS = {
    "/assets": "id name uri created_at updated_at",
    "/assets/events": "source_task_id source_dag_id source_run_id source_map_index timestamp",
    "/backfills": "id",
    "/connections": "conn_id conn_type description host port id team_name connection_id",
    "/dags/~/dagRuns": "id state dag_id run_id logical_date partition_date run_after start_date end_date updated_at conf duration"
    " dag_run_id",
    "/dagTags": "name",
    "/dags/~/dagVersions": "id version_number bundle_name bundle_version",
    "/dagWarnings": "dag_id warning_type message timestamp",
    "/dags": "dag_id dag_display_name next_dagrun state start_date last_run_state last_run_start_date",
    "/eventLogs": "id dttm dag_id task_id run_id event logical_date owner extra when event_log_id",
    "/importErrors": "id timestamp filename bundle_name stacktrace import_error_id",
    "/jobs": "id dag_id state job_type start_date end_date latest_heartbeat executor_class hostname unixname",
    "/pools": "id pool name",
    "/dags/~/dagRuns/~/taskInstances": "id state duration start_date end_date map_index try_number logical_date run_after"
    " data_interval_start data_interval_end rendered_map_index operator",
    "/variables": "key id _val description is_encrypted team_name",
    "/dags/~/dagRuns/~/taskInstances/~/xcomEntries": "key dag_id run_id task_id map_index timestamp run_after",
}


def test_each_order_that_airflow_has(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        for path, columns in ORDERS.items():
            for column in columns.split():
                for sign in ("", "-"):
                    answer = http.get(f"/api/v2{path}", params={"order_by": sign + column, "limit": 2})
                    assert answer.status_code == 200, (path, column, answer.text)


def test_the_total_is_exact_but_beside_a_cursor(client: airflow.ApiClient, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_COUNTED", 2)
    api = airflow.DagRunApi(client)

    page = api.get_dag_runs("etl", limit=1)
    counted = api.get_dag_runs("etl", limit=1, cursor="")
    none = api.get_dag_runs("etl", limit=0)

    assert (len(page.dag_runs), page.total_entries, page.total_entries_limit) == (1, 3, None)
    assert (len(counted.dag_runs), counted.total_entries, counted.total_entries_limit) == (1, 2, 2)
    assert (len(none.dag_runs), none.total_entries) == (0, 3)


def test_a_client_limits_how_many_entries_are_counted(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:

        def totals(**query: int) -> tuple[int, int | None]:
            page = http.get("/api/v2/dags/etl/dagRuns", params={"limit": 1, **query}).json()
            return page["total_entries"], page["total_entries_limit"]

        assert (totals(), totals(count_limit=2), totals(count_limit=4)) == ((3, None), (2, 2), (3, 4))
        assert totals(limit=2, offset=2, count_limit=2) == (3, None), "the last page shows how many there are"
        assert http.get("/api/v2/dags/etl/dagRuns", params={"count_limit": 0}).status_code == 422


def test_states_and_types_that_do_not_exist_are_refused(client: airflow.ApiClient, world: World) -> None:
    runs, tasks = airflow.DagRunApi(client), airflow.TaskInstanceApi(client)

    for refused in (
        lambda: runs.get_dag_runs("~", state=["sucess"]),
        lambda: runs.get_dag_runs("~", run_type=["cron"]),
        lambda: tasks.get_task_instances(*GOOD, state=["sucess"]),
        lambda: airflow.DAGApi(client).get_dags(dag_run_state=["sucess"]),
    ):
        with pytest.raises(UnprocessableEntityException) as error:
            refused()
        assert "is not a" in str(error.value.body) and "choose" in str(error.value.body)
    assert {instance.task_id for instance in tasks.get_task_instances("etl", "now", state=["no_status"]).task_instances} == {
        "each",
        "load",
    }
    assert tasks.get_task_instances(*GOOD, state=["restarting", "none"]).total_entries == 0


def test_task_instances(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)

    found = api.get_task_instances(*GOOD, order_by=["task_id", "map_index"])
    assert [(instance.task_id, instance.map_index) for instance in found.task_instances] == [
        ("each", 0), ("each", 1), ("each", 2), ("extract", -1), ("load", -1)
    ]  # fmt: skip
    assert {instance.operator for instance in found.task_instances} == {"EmptyOperator"}
    assert [instance.task_id for instance in api.get_task_instances("~", "~", state=["running"]).task_instances] == ["extract"]
    assert {instance.task_id for instance in api.get_task_instances(*GOOD, task_group_id="g").task_instances} == {"each"}
    page = api.get_task_instances("~", "~", limit=4, cursor="", order_by=["task_id"])
    rest = api.get_task_instances("~", "~", limit=100, cursor=page.next_cursor, order_by=["task_id"])
    assert len({instance.id for instance in (*page.task_instances, *rest.task_instances)}) == 15
    body = airflow.TaskInstancesBatchBody(dag_ids=["etl"], state=["failed"])
    assert [instance.task_id for instance in api.get_task_instances_batch("~", "~", body).task_instances] == ["extract"]

    extract = api.get_task_instance(*GOOD, "extract")
    assert (extract.state and extract.state.value, extract.try_number, extract.hostname) == ("success", 1, "h")
    assert api.get_mapped_task_instance(*GOOD, "each", 2).map_index == 2
    mapped = api.get_mapped_task_instances(*GOOD, "each", order_by=["-map_index"])
    assert [instance.map_index for instance in mapped.task_instances] == [2, 1, 0]
    assert api.get_extra_links(*GOOD, "extract").total_entries == 0
    with pytest.raises(NotFoundException):
        api.get_task_instance(*GOOD, "each")


def test_tries_and_dependencies(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskInstanceApi(client)

    assert [instance.try_number for instance in api.get_task_instance_tries(*GOOD, "extract").task_instances] == [1]
    assert api.get_task_instance_try_details(*GOOD, "extract", 1).state == "success"
    assert api.get_mapped_task_instance_tries(*GOOD, "each", 1).total_entries == 1
    assert api.get_mapped_task_instance_try_details(*GOOD, "each", 1, 1).map_index == 1
    waits = api.get_task_instance_dependencies("etl", "now", "load").dependencies
    assert waits and "each" in waits[0].reason
    assert api.get_task_instance_dependencies_by_map_index("etl", "now", "each", 0).dependencies


def test_logs(client: airflow.ApiClient, world: World, web: Web) -> None:
    world.log("good", "extract", "one\ntwo\n")
    world.log("now", "extract", "begun\nhalf a li")
    api = airflow.TaskInstanceApi(client)

    whole = api.get_log(*GOOD, "extract", 1)
    assert [line.event for line in whole.content.actual_instance] == ["one", "two"] and whole.continuation_token is None
    part = api.get_log("etl", "now", "extract", 1)
    assert [line.event for line in part.content.actual_instance] == ["begun"] and part.continuation_token
    world.log("now", "extract", "begun\nhalf a line\n")
    rest = api.get_log("etl", "now", "extract", 1, token=part.continuation_token)
    assert [line.event for line in rest.content.actual_instance] == ["half a line"]

    streamed = api.get_log_without_preload_content(*GOOD, "extract", 1, accept="application/x-ndjson")
    assert [json.loads(line)["event"] for line in streamed.data.splitlines()] == ["one", "two"]
    with pytest.raises(NotFoundException) as missing:
        api.get_log("etl", "now", "load", 1)
    assert "has not begun" in str(missing.value.body)
    with pytest.raises(NotFoundException):
        api.get_external_log_url(*GOOD, "extract", 1)


def test_xcoms(client: airflow.ApiClient, world: World) -> None:
    api = airflow.XComApi(client)

    found = api.get_xcom_entries(*GOOD, "extract")
    assert [(entry.key, entry.task_id) for entry in found.xcom_entries] == [("return_value", "extract")]
    assert api.get_xcom_entries("~", "~", "~").total_entries == 5
    assert api.get_xcom_entry("etl", "extract", "good", "return_value").actual_instance.value == "extract"
    text = api.get_xcom_entry("etl", "extract", "good", "return_value", stringify=True).actual_instance.value
    assert text == '"extract"'
    pages = [api.get_xcom_entries("~", "~", "~", order_by=["-dag_id"], limit=1, offset=at).xcom_entries for at in range(5)]
    assert len({(one.task_id, one.map_index) for page in pages for one in page}) == 5


def test_import_errors_and_warnings(client: airflow.ApiClient, world: World) -> None:
    world.scenario.sql("insert into import_error (file, line, message, traceback) values ('bad.py', 3, 'no', 'Traceback: no')")
    world.scenario.add(chain("lost", 1, task={"pool": "nowhere"}))
    api = airflow.ImportErrorApi(client)

    (found,) = api.get_import_errors().import_errors
    assert (found.filename, found.stack_trace) == ("bad.py", "Traceback: no")
    assert api.get_import_error(found.import_error_id).filename == "bad.py"
    (warning,) = airflow.DagWarningApi(client).list_dag_warnings().dag_warnings
    assert (warning.dag_id, warning.warning_type.value) == ("lost", "non-existent pool")


def test_installation(client: airflow.ApiClient, world: World) -> None:
    assert airflow.VersionApi(client).get_version().version
    health = airflow.MonitorApi(client).get_health()
    assert (health.metadatabase.status, health.scheduler.status) == ("healthy", "healthy")
    jobs = airflow.JobApi(client).get_jobs(is_alive=True)
    assert {job.job_type for job in jobs.jobs} == {"SchedulerJob", "LocalTaskJob"}
    assert airflow.PluginApi(client).get_plugins().total_entries == 0
    assert airflow.PluginApi(client).import_errors().total_entries == 0
    assert airflow.ProviderApi(client).get_providers().total_entries == 0

    config = airflow.ConfigApi(client)
    sections = {
        section.name: {option.key: option.value.actual_instance for option in section.options}
        for section in config.get_config().sections
    }
    assert sections["core"]["parallelism"] == "256" and "postgres" in sections["database"]["url"]
    (section,) = config.get_config_value("core", "default_queue").sections
    assert section.options[0].value.actual_instance == "default"


def test_assets(client: airflow.ApiClient, world: World) -> None:
    one = Asset("one", "s3://bucket/one")
    world.scenario.add(chain("producer", 1, task={"outlets": (one.uri,), "notify": ("asset",)}))
    world.scenario.add(chain("consumer", 1, schedule=timetable.WhenUpdated(one).to_spec()))
    api = airflow.AssetApi(client)

    (found,) = api.get_assets(uri_pattern="bucket").assets
    assert [dag.dag_id for dag in found.scheduled_dags] == ["consumer"]
    assert [(task.dag_id, task.task_id) for task in found.producing_tasks] == [("producer", "t000")]
    assert api.get_asset(found.id).uri == one.uri
    assert api.get_asset_aliases().total_entries == 0
    with pytest.raises(NotFoundException):
        api.get_asset_alias(1)

    created = api.create_asset_event(airflow.CreateAssetEventsBody(asset_id=found.id, extra={"rows": 7}))
    assert (created.uri, created.extra, created.source_map_index) == (one.uri, {"rows": 7}, -1)
    assert [event.id for event in api.get_asset_events(asset_id=found.id).asset_events] == [created.id]
    assert [event.dag_id for event in api.get_asset_queued_events(found.id).queued_events] == ["consumer"]
    assert api.get_dag_asset_queued_events("consumer").total_entries == 1
    assert api.get_dag_asset_queued_event("consumer", found.id).dag_id == "consumer"
    api.delete_dag_asset_queued_event("consumer", found.id)
    with pytest.raises(NotFoundException):
        api.delete_dag_asset_queued_events("consumer")
    with pytest.raises(NotFoundException):
        api.delete_asset_queued_events(found.id)
    run = api.materialize_asset(found.id, airflow.MaterializeAssetBody(conf={"x": 1}))
    assert (run.dag_id, run.conf) == ("producer", {"x": 1})


TASK = {"dag_id": "etl", "dag_run_id": "good", "task_id": "extract"}
EACH = TASK | {"task_id": "each"}


def test_the_state_of_a_task(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskStateStoreApi(client)
    until = datetime(2126, 1, 1, tzinfo=UTC)

    api.set_task_state_store(**TASK, key="a/b", task_state_store_body=airflow.TaskStateStoreBody(value={"seen": [1, 2.5]}))
    api.set_task_state_store(
        **TASK, key="until", task_state_store_body=airflow.TaskStateStoreBody(value=1, expires_at=airflow.ExpiresAt(until))
    )
    client.call_api("PUT", f"{client.configuration.host}/api/v2/dags/etl/dagRuns/good/taskInstances/extract/state-store/never",
                    {"Authorization": f"Bearer {client.configuration.access_token}", "Content-Type": "application/json"},
                    {"value": "x", "expires_at": None}).read()  # fmt: skip

    found = {one.key: one for one in api.list_task_state_store(**TASK).task_state_store}
    assert list(found) == ["a/b", "never", "until"]
    assert found["never"].expires_at is None and found["until"].expires_at == until
    assert found["a/b"].expires_at is not None and (found["a/b"].expires_at - found["a/b"].updated_at).days in {29, 30}
    assert api.list_task_state_store(**TASK, limit=1, offset=1).task_state_store[0].key == "never"

    api.patch_task_state_store(**TASK, key="until", task_state_store_patch_body=airflow.TaskStateStorePatchBody(value=[2]))
    changed = api.get_task_state_store(**TASK, key="until")
    assert (changed.value, changed.expires_at) == ([2], until)
    world.scenario.sql("update task_state set expires_at = now() where key = 'until'")
    with pytest.raises(NotFoundException):
        api.get_task_state_store(**TASK, key="until")
    with pytest.raises(NotFoundException):
        api.patch_task_state_store(**TASK, key="until", task_state_store_patch_body=airflow.TaskStateStorePatchBody(value=3))

    api.delete_task_state_store(**TASK, key="a/b")
    api.delete_task_state_store(**TASK, key="a/b")
    assert [one.key for one in api.list_task_state_store(**TASK).task_state_store] == ["never"]
    api.clear_task_state_store(**TASK)
    assert api.list_task_state_store(**TASK).total_entries == 0


def test_the_state_of_all_instances_of_a_task_is_cleared_at_once(client: airflow.ApiClient, world: World) -> None:
    api = airflow.TaskStateStoreApi(client)
    for index in range(3):
        api.set_task_state_store(**EACH, key="k", task_state_store_body=airflow.TaskStateStoreBody(value=index), map_index=index)

    api.clear_task_state_store(**EACH, map_index=1)
    assert world.scenario.rows("select value from task_state order by task_instance_id") == [(0,), (2,)]
    api.clear_task_state_store(**EACH, all_map_indices=True)
    assert world.scenario.rows("select value from task_state") == []


@pytest.mark.parametrize(("value", "status"), [(None, 422), ("x" * 1_100_000, 400)])
def test_a_value_that_cannot_be_kept_is_refused(client: airflow.ApiClient, world: World, value: object, status: int) -> None:
    body = airflow.TaskStateStoreBody(value=value)
    with pytest.raises(ApiException) as refused:
        airflow.TaskStateStoreApi(client).set_task_state_store(**TASK, key="k", task_state_store_body=body)
    assert refused.value.status == status

    body = airflow.TaskStateStoreBody(value=1)
    with pytest.raises(NotFoundException):
        airflow.TaskStateStoreApi(client).set_task_state_store(**TASK | {"task_id": "nope"}, key="k", task_state_store_body=body)


def test_the_state_of_an_asset_names_its_last_writer(client: airflow.ApiClient, world: World) -> None:
    one = Asset("s3://bucket/one")
    world.scenario.add(chain("producer", 1, task={"outlets": (one.uri,), "notify": ("asset",)}))
    (asset,) = airflow.AssetApi(client).get_assets(uri_pattern="bucket").assets
    api = airflow.AssetStateStoreApi(client)
    world.scenario.sql(
        "insert into asset_state (uri, key, value, dag_id, run_id, task_id, map_index) values (%s, 'mark', '7', 'p', 'r', 't', 2)",
        one.uri,
    )

    (stored,) = api.list_asset_state_store(asset.id).asset_state_store
    assert stored.value == 7 and stored.last_updated_by is not None
    by = stored.last_updated_by
    assert (by.kind.value, by.dag_id, by.run_id, by.task_id, by.map_index) == ("task", "p", "r", "t", 2)

    api.set_asset_state_store(asset_id=asset.id, key="mark", asset_state_store_body=airflow.AssetStateStoreBody(value={"at": 8}))
    stored = api.get_asset_state_store(asset_id=asset.id, key="mark")
    assert stored.value == {"at": 8} and stored.last_updated_by is not None and stored.last_updated_by.kind.value == "api"
    assert stored.last_updated_by.dag_id is None
    api.set_asset_state_store(asset_id=asset.id, key="other", asset_state_store_body=airflow.AssetStateStoreBody(value=1))
    api.delete_asset_state_store(asset_id=asset.id, key="mark")
    with pytest.raises(NotFoundException):
        api.get_asset_state_store(asset_id=asset.id, key="mark")
    api.clear_asset_state_store(asset.id)
    assert api.list_asset_state_store(asset.id).total_entries == 0
    with pytest.raises(NotFoundException):
        api.list_asset_state_store(1)
