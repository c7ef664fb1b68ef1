"""Bulk requests as in Airflow, actions by filter with an exact preview, and concurrent requests of several people."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from scheduler.api.call import PREFIX

from .conftest import Web, World

RUNS, TASKS = "/dags/etl/dagRuns", "/dags/etl/dagRuns/good/taskInstances"
BODIES = {
    "/pools": lambda name, text: {"name": name, "slots": 1, "description": text},
    "/variables": lambda name, text: {"key": name, "value": "v", "description": text},
    "/connections": lambda name, text: {"connection_id": name, "conn_type": "http", "description": text},
}
FIELDS = {"/pools": "name", "/variables": "key", "/connections": "connection_id"}


def act(http: httpx.Client, path: str, action: str, entities: list[Any], **options: Any) -> dict[str, Any]:
    """The result of one action."""
    body = {"actions": [{"action": action, "entities": entities, **options}]}
    found: dict[str, Any] = http.patch(f"/api/v2{path}", json=body).raise_for_status().json()
    assert [kind for kind, result in found.items() if result is not None] == [action]
    return dict(found[action])


def errors(result: dict[str, Any]) -> list[tuple[int, str]]:
    return [(error["status_code"], error["error"]) for error in result["errors"]]


@pytest.mark.parametrize("path", BODIES)
def test_an_action_fails_as_a_whole(web: Web, world: World, path: str) -> None:
    body = BODIES[path]
    with web.http(web.account("ada", "admin")) as http:

        def descriptions() -> dict[str, str]:
            found = http.get(f"/api/v2{path}").json()[path[1:]]
            return {one[FIELDS[path]]: one["description"] for one in found if one[FIELDS[path]] != "default_pool"}

        assert act(http, path, "create", [body("a", "1"), body("b", "1")]) == {"success": ["a", "b"], "errors": []}

        result = act(http, path, "create", [body("new", "2"), body("b", "2"), body("a", "2")])
        assert result["success"] == []
        assert errors(result) == [(409, "Nothing was created, since these exist already: b, a.")]
        result = act(http, path, "update", [body("a", "2"), body("x", "2"), body("y", "2")])
        assert result["success"] == []
        assert errors(result) == [(404, "Nothing was updated, since these do not exist: x, y.")]
        result = act(http, path, "delete", ["a", "x"])
        assert result["success"] == [] and errors(result) == [(404, "Nothing was deleted, since these do not exist: x.")]
        assert descriptions() == {"a": "1", "b": "1"}

        result = act(http, path, "create", [body("c", "3"), body("a", "3")], action_on_existence="skip")
        assert result == {"success": ["c"], "errors": []}
        result = act(http, path, "create", [body("d", "4"), body("a", "4")], action_on_existence="overwrite")
        assert result == {"success": ["d", "a"], "errors": []}
        result = act(http, path, "update", [body("b", "5"), body("x", "5")], action_on_non_existence="skip")
        assert result == {"success": ["b"], "errors": []}
        assert descriptions() == {"a": "4", "b": "5", "c": "3", "d": "4"}
        assert act(http, path, "delete", ["a", "a", "c", "x"], action_on_non_existence="skip") == {
            "success": ["a", "c"], "errors": [],
        }  # fmt: skip
        assert descriptions() == {"b": "5", "d": "4"}


def test_overwriting_keeps_the_fields_that_an_entry_leaves_out(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        full = {"connection_id": "db", "conn_type": "postgres", "host": "h", "login": "me", "password": "hidden"}
        act(http, "/connections", "create", [full])
        less = {"connection_id": "db", "conn_type": "postgres", "host": "other"}

        act(http, "/connections", "create", [less], action_on_existence="overwrite")

        found = http.get("/api/v2/connections/db").json()
        assert (found["host"], found["login"], found["password"]) == ("other", "me", "***")


def test_an_entry_that_is_refused_for_another_reason_stops_no_other(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        act(http, "/pools", "create", [{"name": "mine", "slots": 1}])
        result = act(http, "/pools", "delete", ["default_pool", "mine"])
        assert result["success"] == ["mine"] and [status for status, _ in errors(result)] == [409]


def test_changes_of_task_instances_fail_as_a_whole(web: Web, world: World) -> None:
    def failed(task_id: str, **more: Any) -> dict[str, Any]:
        return {"task_id": task_id, "new_state": "failed", **more}

    with web.http(web.account("oli", "operator")) as http:
        result = act(http, TASKS, "update", [failed("load"), failed("nothing"), failed("each", map_index=7)])
        assert result["success"] == [] and world.states("good")["load"] == "success"
        missing = "etl.good.nothing[-1], etl.good.each[7]"
        assert errors(result) == [(404, f"Nothing was updated, since these do not exist: {missing}.")]

        result = act(http, TASKS, "update", [failed("each"), failed("nothing")], action_on_non_existence="skip")
        assert result == {"success": [f"etl.good.each[{index}]" for index in range(3)], "errors": []}
        assert {world.states("good")[f"each[{index}]"] for index in range(3)} == {"failed"}

        world.scenario.sql("update task_instance set state = 'removed' where task_id = 'each' and state = 'failed'")
        assert errors(act(http, TASKS, "delete", ["each", "nothing"]))[0][0] == 404
        assert world.states("good")["each[0]"] == "removed"
        result = act(http, TASKS, "delete", ["each", {"task_id": "each"}])
        assert result == {"success": [f"etl.good.each[{index}]" for index in range(3)], "errors": []}
        assert set(world.states("good")) == {"extract", "load"}
        assert [status for status, _ in errors(act(http, TASKS, "create", [{"task_id": "load"}]))] == [405]


def test_changes_of_runs_fail_as_a_whole(web: Web, world: World) -> None:
    with web.http(web.account("oli", "operator")) as http:
        result = act(http, RUNS, "update", [{"dag_run_id": "good", "state": "failed"}, {"dag_run_id": "nothing", "note": "x"}])
        assert errors(result) == [(404, "Nothing was updated, since these do not exist: etl.nothing.")]
        assert result["success"] == [] and world.state("good") == "success"
        assert act(http, RUNS, "delete", ["good", "nothing"])["success"] == []
        result = act(http, RUNS, "delete", ["good", "nothing"], action_on_non_existence="skip")
        assert result == {"success": ["etl.good"], "errors": []}
        assert [status for status, _ in errors(act(http, RUNS, "create", [{"dag_run_id": "good"}]))] == [405]


@pytest.fixture
def http(web: Web) -> Any:
    with web.http(web.account("ada", "operator")) as made:
        yield made


def post(http: httpx.Client, what: str, **body: Any) -> Any:
    answer = http.post(f"{PREFIX}/{what}ByFilter", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_clear_by_filter_matches_its_preview(http: httpx.Client, world: World) -> None:
    chosen = {"state": ["failed", "upstream_failed"], "dag_ids": ["etl"]}

    preview = post(http, "clear", filter=chosen)

    assert (preview["count"], preview["runs"], preview["dry_run"]) == (5, 1, True)
    assert {(change["state"], change["count"]) for change in preview["changes"]} == {("failed", 1), ("upstream_failed", 4)}
    assert world.state("bad") == "failed"
    wrong = http.post(f"{PREFIX}/clearByFilter", json={"filter": chosen, "dry_run": False, "expected": 7})
    assert wrong.status_code == 409 and world.state("bad") == "failed"
    done = post(http, "clear", filter=chosen, dry_run=False, expected=5)
    assert done | {"dry_run": True} == preview
    assert world.state("bad") == "queued"
    assert set(world.states("bad").values()) == {"none"}
    assert post(http, "clear", filter=chosen)["count"] == 0


def test_mark_by_filter(http: httpx.Client, world: World) -> None:
    chosen = {"run_id_pattern": "ba%", "task_ids": ["load"]}

    assert post(http, "mark", filter=chosen, new_state="success")["count"] == 1
    assert world.states("bad")["load"] == "upstream_failed"
    assert post(http, "mark", filter=chosen, new_state="success", dry_run=False)["changes"] == [
        {"state": "upstream_failed", "becomes": "success", "count": 1}
    ]
    assert world.states("bad")["load"] == "success"


def test_delete_by_filter_leaves_running_runs(http: httpx.Client, world: World) -> None:
    planned = post(http, "delete", filter={"dag_ids": ["etl"]})

    done = post(http, "delete", filter={"dag_ids": ["etl"]}, dry_run=False, expected=2)

    assert done["count"] == 2 and "now" in done["errors"][0]
    assert planned == done | {"dry_run": True}
    assert [row[0] for row in world.scenario.rows("select run_id from dag_run")] == ["now"]


def test_a_run_that_cannot_be_changed_stops_no_other(http: httpx.Client, world: World) -> None:
    world.scenario.sql("insert into dag_version (dag_id, number, content_hash, data) values ('etl', 99, 'x', '{}')")
    world.scenario.sql("update dag_run set version_id = (select id from dag_version where number = 99) where run_id = 'good'")
    world.scenario.broker.delete("paceline:wakeups")

    done = post(http, "mark", filter={"task_ids": ["load"], "dag_run_ids": ["good", "bad"]}, new_state="skipped", dry_run=False)

    assert (done["count"], len(done["errors"])) == (1, 1)
    assert (world.states("good")["load"], world.states("bad")["load"]) == ("success", "skipped")
    assert world.scenario.broker.zcard("paceline:wakeups") > 0, "a scheduler is woken"


def test_an_empty_filter_is_refused_and_tags_limit_it(web: Web, http: httpx.Client, world: World) -> None:
    assert http.post(f"{PREFIX}/clearByFilter", json={"filter": {}}).status_code == 400
    assert http.post(f"{PREFIX}/deleteByFilter", json={"filter": {}}).status_code == 400
    assert post(http, "clear", filter={"dag_ids": ["~"]})["count"] == 11
    with web.http(web.account("tim", tags={"nightly": "viewer", "other": "admin"})) as limited:
        assert post(limited, "clear", filter={"dag_ids": ["~"]})["count"] == 0


EMPTY: list[dict[str, Any]] = [
    {"dag_ids": []}, {"dag_run_ids": []}, {"state": []}, {"dag_id_pattern": ""}, {"run_id_pattern": ""},
    {"dag_ids": ["etl"], "state": []},
]  # fmt: skip


def test_an_empty_list_or_pattern_and_an_unknown_state_select_nothing_in_silence(http: httpx.Client, world: World) -> None:
    """A script that found no DAG to clear must not clear all of them."""
    for chosen in (*EMPTY, {"state": ["sucess"]}):
        for what in ("clear", "delete"):
            answer = http.post(f"{PREFIX}/{what}ByFilter", json={"filter": chosen, "dry_run": False})
            assert answer.status_code == 422, (what, chosen, answer.text)
    assert (world.state("good"), world.state("bad")) == ("success", "failed")


PEOPLE = 12


def at_once(web: Web, token: str, method: str, path: str, **options: Any) -> list[httpx.Response]:
    """The same request from several people, each over a connection of their own; more than there are database connections."""
    headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
    with ThreadPoolExecutor(PEOPLE) as pool:
        sent = [
            pool.submit(httpx.request, method, f"{web.url}{PREFIX}{path}", headers=headers, timeout=60, **options)
            for _ in range(PEOPLE)
        ]
        return [one.result() for one in sent]


def test_one_idempotency_key_sent_at_once_makes_one_run(web: Web, world: World) -> None:
    token = web.account("ada", "operator")

    answers = at_once(web, token, "POST", "/dags/etl/dagRuns", json={}, headers={"Idempotency-Key": "k"})

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["dag_run_id"] for answer in answers}) == 1
    assert world.scenario.rows("select count(*) from dag_run where dag_id = 'etl'") == [(4,)]


def test_people_who_clear_one_run_at_once_clear_it_once(web: Web, world: World) -> None:
    token = web.account("ada", "operator")

    answers = at_once(web, token, "POST", "/dags/etl/dagRuns/good/clear", json={"dry_run": False})

    assert {answer.status_code for answer in answers} == {200}
    assert world.state("good") == "queued" and set(world.states("good").values()) == {"none"}
    assert world.scenario.rows("select clear_number from dag_run where run_id = 'good'") == [(1,)]
    world.scenario.sql("update task_instance set state = 'failed', ended_at = now() where state = 'running'")
    world.scenario.run_to_end()
    assert world.state("good") == "success"


def test_a_run_of_one_name_is_created_once(web: Web, world: World) -> None:
    token = web.account("ada", "operator")

    answers = at_once(web, token, "POST", "/dags/etl/dagRuns", json={"dag_run_id": "same"})

    assert sorted(answer.status_code for answer in answers) == [200] + [409] * (PEOPLE - 1)


def test_a_conf_of_ten_megabytes_is_refused_with_its_limit(web: Web, world: World) -> None:
    with web.http(web.account("ada", "operator")) as http:
        answer = http.post(f"{PREFIX}/dags/hourly/dagRuns", json={"conf": {"text": "x" * 10_000_000}})

        assert answer.status_code == 400 and "bytes" in answer.json()["detail"]


def test_a_log_with_one_line_of_megabytes_comes_in_parts(web: Web, world: World) -> None:
    path = world.log("good", "extract", "")
    path.write_bytes(b"\xff\x00<script>" + b"x" * 3_000_000 + b"\nlast\n")
    with web.http(web.account("ada", "viewer")) as http:
        url = f"{PREFIX}/dags/etl/dagRuns/good/taskInstances/extract/logs/1"
        text, token, parts = "", None, 0
        while parts == 0 or token is not None:
            answer = http.get(url, params={} if token is None else {"token": token}).json()
            text += "".join(line["event"] for line in answer["content"])
            token, parts = answer["continuation_token"], parts + 1
        assert parts == 3 and text.endswith("xlast") and len(text) == 3_000_014
        with http.stream("GET", url, params={"full_content": True}) as whole:
            assert "content-length" not in whole.headers, "it is not made in memory"
            found = json.loads(whole.read())
        assert found["continuation_token"] is None and "".join(line["event"] for line in found["content"]) == text
        path.unlink()
        assert http.get(url).status_code == 404
