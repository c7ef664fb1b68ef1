"""The stored state of tasks and assets through Airflow's client, beside tasks that use it."""

from datetime import UTC, datetime

import pytest
from airflow_client import client as airflow
from airflow_client.client.exceptions import ApiException, NotFoundException
from support.scenario import chain

from paceline.authoring.asset import Asset

from .conftest import World

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
