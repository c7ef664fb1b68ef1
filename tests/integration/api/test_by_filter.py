"""Clear, mark and delete by filter: the preview is exact, and the change matches it."""

from typing import Any

import httpx
import pytest

from scheduler.api.call import PREFIX

from .conftest import Web, World


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
