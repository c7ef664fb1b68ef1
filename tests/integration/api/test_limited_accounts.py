"""An account that is limited to DAGs with a tag sees no names of other DAGs, and revoked rights end immediately."""

import json
from typing import Any

import httpx
import pytest
from support.waiting import eventually

from scheduler.api import stream
from scheduler.api.call import PREFIX
from scheduler.store.accounts import accounts
from scheduler.store.db.database import transact

from .conftest import PASSWORD, Web, World
from .test_stream import Listener

NOW = f"{PREFIX}/dags/etl/dagRuns/now"
LIMITED = {"tags": {"nightly": "operator"}}


def wait_behind_another_dag(world: World, *, slots: int = 1, needs: int = 1) -> None:
    """`load` of etl waits for 40 s for a pool that a task of the DAG hourly holds."""
    scenario = world.scenario
    scenario.trigger("hourly", run_id="theirs")
    scenario.sql("insert into pool (name, slots) values ('db', %s)", slots)
    scenario.sql("update task_instance set pool = 'db', state = 'scheduled', scheduled_at = now() where task_id = 'load'"
                 " and dag_run_id = (select id from dag_run where run_id = 'now')")  # fmt: skip
    scenario.sql("update dag_run set state = 'running', started_at = now() where run_id = 'theirs'")
    state = "state = 'running', started_at = now()" if needs <= slots else "state = 'scheduled', priority_weight = 9, rank = 9"
    scenario.sql(f"update task_instance set pool = 'db', pool_slots = %s, {state}, worker = %s, scheduled_at = now(),"
                 " queued_at = now() - interval '90 s', queued_by = 's#1', dispatch_id = gen_random_uuid()"
                 " where dag_run_id = (select id from dag_run where run_id = 'theirs')", needs, scenario.worker_id)  # fmt: skip
    scenario.sql("update event set at = at - interval '40 s' where to_state = 'scheduled'")


def test_why_does_not_name_other_dags(web: Web, world: World) -> None:
    wait_behind_another_dag(world)
    with web.http(web.account("tim", **LIMITED)) as tim, web.http(web.account("ada", "viewer")) as ada:
        path = f"{NOW}/taskInstances/load/why"
        assert "held by hourly.t000 of run 'theirs'" in ada.get(path).json()["waiting_for"][0]
        for place in (path, f"{NOW}/why", f"{NOW}/taskInstances/load/dependencies", f"{NOW}/taskInstances/load/view"):
            text = tim.get(place).raise_for_status().text
            assert "held by a task of another DAG" in text, place
            assert "hourly" not in text and "theirs" not in text, place


def test_the_history_does_not_name_other_dags(web: Web, world: World) -> None:
    wait_behind_another_dag(world)
    world.scenario.sql("update task_instance set state = 'queued', queued_at = now(), queued_by = 's#1',"
                       " dispatch_id = gen_random_uuid() where task_id = 'load' and state = 'scheduled'")  # fmt: skip
    with web.http(web.account("tim", **LIMITED)) as tim, web.http(web.account("ada", "viewer")) as ada:
        path = f"{NOW}/taskInstances/load/why"
        assert "in use by hourly.t000 of run 'theirs'" in ada.get(path).text
        text = tim.get(path).text
        assert "in use by a task of another DAG" in text and "hourly" not in text and "theirs" not in text


def test_a_hidden_task_instance_that_holds_its_place_in_line_is_not_named(web: Web, world: World) -> None:
    wait_behind_another_dag(world, slots=3, needs=3)
    scenario = world.scenario
    scenario.sql("update task_instance set state = 'scheduled', rank = 1000000 where pool = 'db' and pool_slots = 3")
    scenario.sql("update task_instance set pool = 'db', pool_slots = 2, rank = -1 where state = 'running'")
    with web.http(web.account("tim", **LIMITED)) as tim, web.http(web.account("ada", "viewer")) as ada:
        path = f"{NOW}/taskInstances/load/why"
        assert "hourly.t000 of run 'theirs' ranks higher" in ada.get(path).text
        text = tim.get(path).text
        assert "A task of another DAG ranks higher" in text and "hourly" not in text


def test_the_updates_that_made_a_run_do_not_name_other_dags(web: Web, world: World) -> None:
    sql = world.scenario.sql
    world.scenario.trigger("hourly", run_id="theirs")
    sql("insert into asset (uri, name) values ('s3://a', 'a')")
    sql("insert into asset_event (uri, dag_id, run_id, task_id, map_index, extra, created_by)"
        " values ('s3://a', 'hourly', 'r', 't000', -1, '{}', 'w#1')")  # fmt: skip
    sql("insert into dag_run_asset_event (dag_run_id, event_id) select r.id, e.id from dag_run r, asset_event e"
        " where r.run_id in ('now', 'theirs')")  # fmt: skip
    with web.http(web.account("tim", **LIMITED)) as tim, web.http(web.account("ada", "viewer")) as ada:
        (whole,) = ada.get(f"{NOW}/upstreamAssetEvents").json()["asset_events"]
        assert whole["source_dag_id"] == "hourly" and len(whole["created_dagruns"]) == 2
        (found,) = tim.get(f"{NOW}/upstreamAssetEvents").json()["asset_events"]
        assert found["uri"] == "s3://a" and [run["dag_id"] for run in found["created_dagruns"]] == ["etl"]
        assert "hourly" not in json.dumps(found) and "theirs" not in json.dumps(found)


def test_the_audit_log_does_not_name_other_dags(web: Web, world: World) -> None:
    entity = {"dag_id": "hourly", "dag_run_id": "theirs", "task_id": "t000", "new_state": "failed"}
    body = {"actions": [{"action": "update", "entities": [entity]}]}
    with web.http(web.account("tim", **LIMITED)) as tim, web.http(web.account("ada", "admin")) as ada:
        ada.patch(f"{PREFIX}/dags/etl/dagRuns/good/taskInstances", json=body).raise_for_status()
        ada.post(f"{PREFIX}/dags/etl/clearTaskInstances", params={"dag_ids": "hourly"}, json={"dry_run": False}).raise_for_status()
        assert "hourly" in ada.get(f"{PREFIX}/eventLogs").text
        found = tim.get(f"{PREFIX}/eventLogs").json()["event_logs"]
        assert [one["event"] for one in found] == ["bulk_task_instances", "post_clear_task_instances"]
        assert "another DAG" in found[0]["extra"] and "another DAG" in found[1]["extra"]
        one = tim.get(f"{PREFIX}/eventLogs/{found[0]['event_log_id']}").text
        assert "hourly" not in json.dumps(found) + one and "theirs" not in json.dumps(found) + one


def test_lists_across_all_dags_are_refused(web: Web, world: World) -> None:
    with web.http(web.account("tim", **LIMITED)) as tim:
        for path in (
            "/pools",
            "/poolLines/default_pool",
            "/queues",
            "/workers",
            "/processes",
            "/assets",
            "/assets/events",
            "/jobs",
        ):
            assert tim.get(PREFIX + path).status_code == 403, path


def test_no_list_names_other_dags(web: Web, world: World) -> None:
    world.scenario.trigger("hourly", run_id="theirs")
    with web.http(web.account("tim", **LIMITED)) as tim:
        for path in ("/home", "/dags", "/dagStats", "/dagTags", "/dagWarnings", "/importErrors", "/backfills", "/dags/~/dagRuns",
                     "/dags/~/dagRuns/~/taskInstances", "/dags/~/dagVersions", "/recentRuns?dag_ids=hourly",
                     "/dags/~/dagRuns?dag_id_pattern=hourly"):  # fmt: skip
            answer = tim.get(PREFIX + path).raise_for_status()
            assert "hourly" not in answer.text and "theirs" not in answer.text, path


def test_new_rights_hold_for_the_next_request(web: Web, world: World) -> None:
    token = web.account("bob", "operator")
    web.account("ada", "admin")
    session = httpx.post(f"{web.url}/auth/token", json={"username": "bob", "password": PASSWORD}).json()["access_token"]
    sql = world.scenario.sql
    with web.http(token) as first, web.http(session) as second:

        def statuses() -> list[int]:
            paused = [http.patch(f"{PREFIX}/dags/etl", json={"is_paused": False}).status_code for http in (first, second)]
            return [*paused, *(http.get(f"{PREFIX}/dags/hourly").status_code for http in (first, second))]

        assert statuses() == [200] * 4
        sql("update account set role = 'viewer' where name = 'bob'")
        assert statuses() == [403, 403, 200, 200]
        sql("update account set role = null where name = 'bob'")
        sql("insert into account_tag select id, 'nightly', 'operator' from account where name = 'bob'")
        assert statuses() == [200, 200, 403, 403]
        transact(web.engine, accounts.set_password, "bob", "a new password")
        assert statuses() == [200, 401, 403, 401], "an API token is no session"
        transact(web.engine, accounts.delete, "bob")
        assert statuses() == [401] * 4


def test_no_message_reaches_a_stream_after_its_rights_have_changed(web: Web, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks by the clock are off: the login is checked before each message."""
    monkeypatch.setattr(stream, "LOGINS_S", 3600.0)
    with web.http(web.account("bob", "viewer")) as http, web.http(web.account("ada", "viewer")) as other:
        page, stays = Listener(http, ""), Listener(other, "")
        world.scenario.sql("update account set role = null where name = 'bob'")
        world.scenario.sql("insert into account_tag select id, 'other', 'admin' from account where name = 'bob'")
        world.scenario.trigger("etl", run_id="secret")
        page.join()
        assert page.runs() == set()
        eventually(lambda: ("secret", "queued") in stays.runs(), timeout=20)
        web.app.state.service.stopping.set()
        stays.join()


@pytest.mark.parametrize("change", ["update account set role = null where name = 'bob'", "delete from account where name = 'bob'"])
def test_waiting_for_a_run_ends_with_the_rights(web: Web, world: World, change: str) -> None:
    token = web.account("bob", "viewer", {"other": "viewer"})
    with web.http(token) as http, http.stream("GET", f"{NOW}/wait", params={"interval": 0.1}) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines)) == {"state": "running"}
        world.scenario.sql(change)
        last: dict[str, Any] = [json.loads(line) for line in lines][-1]
        assert last["state"] is None and last["detail"]


def test_all_dags_are_paused_only_by_an_explicit_filter(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        for query in ("", "?limit=1", "?exclude_stale=false", "?dag_id_pattern=", "?dag_id_patern=etl"):
            answer = http.patch(f"{PREFIX}/dags{query}", json={"is_paused": True})
            assert answer.status_code == 400 and "dag_id_pattern=~" in answer.json()["detail"], query
        assert not any(dag["is_paused"] for dag in http.get(f"{PREFIX}/dags").json()["dags"])
        for query in ("dag_id_pattern=~", "dag_id_pattern=%25", "tags=nightly", "dag_run_start_date_gte=2000-01-01"):
            assert http.patch(f"{PREFIX}/dags?{query}", json={"is_paused": True}).status_code == 200, query
