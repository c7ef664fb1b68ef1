"""Bulk requests with existing and missing entities, as in Airflow."""

from typing import Any

import httpx
import pytest

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
