"""Reproductions over the REST API: what they would do, their comparison with the original, and why there is none."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.reproductions import BODIES, EDGES, original, work
from support.run_actions import clear_
from support.table_fixtures import lake, settings
from support.tables import SCHEMA, Lake, rows
from support.waiting import eventually

from scheduler.api.call import PREFIX
from scheduler.catalog import scratch
from scheduler.settings import Settings

from .conftest import Web
from .test_web import web_url

__all__ = ["lake", "settings", "web_url"]
ORIGINAL = f"{PREFIX}/dags/d/dagRuns/one"
REPRODUCTION = f"{PREFIX}/dags/d/dagRuns/reproduce__one__1"


@pytest.fixture
def http(web: Web, lake: Lake) -> Iterator[httpx.Client]:
    """An operator, and a run to reproduce."""
    prepare(lake)
    with web.http(web.account("oscar", "operator")) as client:
        yield client


def prepare(lake: Lake, **options: Any) -> None:
    lake.person().create_table("sales.source", SCHEMA).append(rows(1, 2))
    original(lake, BODIES, EDGES, **options)


def start(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post(f"{ORIGINAL}/reproductions", json={"dry_run": False} | body)
    return dict(answer.raise_for_status().json())


def shown(http: httpx.Client, path: str = ORIGINAL) -> dict[str, Any]:
    """The one reproduction of the run."""
    (found,) = http.get(f"{path}/reproductions").raise_for_status().json()["reproductions"]
    return dict(found)


def compared(http: httpx.Client) -> dict[str, Any]:
    """The reproduction when it is compared."""
    eventually(lambda: shown(http)["verdict"] not in {"pending", "comparing"}, timeout=30)
    return shown(http)


def test_a_reproduction_is_started_compared_once_and_keeps_its_result(
    lake: Lake, settings: Settings, web_url: str, make_web: Any
) -> None:
    prepare(lake)
    web = make_web(settings.model_copy(update={"web": settings.web.model_copy(update={"database_url": web_url})}))
    with web.http(web.account("oscar", "operator")) as http:
        plan = http.post(f"{ORIGINAL}/reproductions", json={}).raise_for_status().json()
        assert plan == {"version_number": 1, "moved": False, "effects": []}
        assert http.get(f"{ORIGINAL}/reproductions").json() == {"reproductions": []}
        made = start(http)
        assert (made["dag_run_id"], made["run_type"], made["reproduction_of"]) == ("reproduce__one__1", "reproduction", "one")
        assert (shown(http)["verdict"], shown(http)["namespace"][:10]) == ("pending", "reproduce_")
        work(lake, BODIES)
        found = compared(http)
        assert (found["verdict"], found["reason"], found["original_run_id"], found["state"]) == ("equal", None, "one", "success")
        assert [(row["table"], row["is_equal"], row["original_rows"], row["reproduced_rows"]) for row in found["tables"]] == [
            ("sales.orders", True, 2, 2),
            ("sales.totals", True, 2, 2),
        ]
        assert found["tables"][0]["original_checksum"] == found["tables"][0]["reproduced_checksum"]
        assert shown(http, REPRODUCTION) == found
        scratch.drop(lake.scenario.settings, lake.scenario.engine, found["namespace"])
        assert shown(http) == found | {"namespace": None}
        listed = http.get(f"{PREFIX}/dags/d/dagRuns", params={"run_type": "reproduction"}).json()["dag_runs"]
        assert [(run["dag_run_id"], run["reproduction_of"]) for run in listed] == [("reproduce__one__1", "one")]
        assert http.get(ORIGINAL).json()["reproduction_of"] is None
    assert lake.scenario.rows("select event, account, status, dag_id, run_id from audit where event like '%%reproduc%%'") == [
        ("runs.reproduce", "oscar", 200, "d", "one")
    ]


def test_a_result_that_differs_names_the_columns_that_are_not_ignored(http: httpx.Client, lake: Lake) -> None:
    def other(catalog: Any, claim: Any) -> None:
        catalog.load_table("sales.source")
        catalog.create_table("sales.orders", SCHEMA).append(rows(1, 2, who=claim.run_id))

    start(http)
    work(lake, BODIES | {"load": other})
    found = compared(http)
    assert found["verdict"] == "different"
    assert {row["table"]: row["columns_that_differ"] for row in found["tables"]} == {"sales.orders": ["who"], "sales.totals": []}
    lake.scenario.sql("delete from dag_run where id = (select max(id) from dag_run)")
    start(http, ignore=["who"])
    work(lake, BODIES | {"load": other})
    assert (compared(http)["verdict"], compared(http)["ignored"]) == ("equal", ["who"])


def test_effects_beside_tables_are_named_before_they_need_consent(web: Web, lake: Lake) -> None:
    prepare(lake, dag={"options": {"load": {"outlets": ("s3://b/report.csv",)}}})
    with web.http(web.account("oscar", "operator")) as http:
        plan = http.post(f"{ORIGINAL}/reproductions", json={"dry_run": True}).raise_for_status().json()
        assert plan["effects"] == ["task load updates s3://b/report.csv, which is no table"]
        refused = http.post(f"{ORIGINAL}/reproductions", json={"dry_run": False})
        assert (refused.status_code, "despite_effects" in refused.json()["detail"]) == (400, True)
        assert start(http, despite_effects=True)["dag_run_id"] == "reproduce__one__1"


def test_a_run_that_cannot_be_reproduced_is_refused_with_the_reason(http: httpx.Client, lake: Lake) -> None:
    lake.scenario.sql("update dag_run set state = 'running', ended_at = null")
    for dry_run in (True, False):
        refused = http.post(f"{ORIGINAL}/reproductions", json={"dry_run": dry_run})
        assert (refused.status_code, refused.json()["detail"]) == (
            400, "Run one of DAG d cannot be reproduced: it has not ended (running); wait for its end.",
        )  # fmt: skip
    assert lake.scenario.rows("select count(*) from dag_run") == [(1,)]


def test_tables_that_are_gone_are_not_compared(http: httpx.Client, lake: Lake) -> None:
    start(http)
    work(lake, BODIES)
    (name,) = lake.scenario.rows("select scratch from reproduction")[0]
    scratch.drop(lake.scenario.settings, lake.scenario.engine, name)
    found = shown(http)
    assert (found["verdict"], found["reason"]) == ("unknown", "Its tables were deleted before anybody compared them.")
    assert found["tables"] == []
    lake.scenario.sql("update reproduction set failure = 'It took too long.', tried_end = (select max(ended_at) from dag_run)")
    assert (shown(http)["verdict"], shown(http)["reason"]) == ("unknown", "It took too long.")


def test_the_result_of_an_earlier_end_counts_no_more(http: httpx.Client, lake: Lake) -> None:
    start(http, keep=True)
    work(lake, BODIES)
    assert compared(http)["verdict"] == "equal"
    clear_(lake.scenario, dag_id="d", run_id="reproduce__one__1")
    assert (shown(http)["verdict"], shown(http)["tables"]) == ("pending", [])
    work(lake, BODIES)
    assert [row["table"] for row in compared(http)["tables"]] == ["sales.orders", "sales.totals"]


def test_files_that_cannot_be_read_are_the_reason_for_no_result(http: httpx.Client, lake: Lake) -> None:
    start(http)
    work(lake, BODIES)
    for file in (lake.scenario.settings.home / "lake").rglob("*.parquet"):
        file.unlink()
    found = compared(http)
    assert found["verdict"] == "unknown" and "the log of the web process has the reason" in found["reason"]


def test_who_may_not_see_the_dag_sees_no_reproduction_and_a_viewer_starts_none(web: Web, http: httpx.Client, lake: Lake) -> None:
    start(http)
    work(lake, BODIES)
    with web.http(web.account("eve", tags={"other": "operator"})) as other, web.http(web.account("vera", "viewer")) as viewer:
        for path in (ORIGINAL, REPRODUCTION):
            assert other.get(f"{path}/reproductions").status_code == 403
            assert other.post(f"{path}/reproductions", json={"dry_run": True}).status_code == 403
            assert viewer.post(f"{path}/reproductions", json={"dry_run": True}).status_code == 403
        assert compared(viewer)["verdict"] == "equal"
    assert lake.scenario.rows("select count(*) from dag_run") == [(2,)]


def test_it_is_not_compared_while_the_original_runs_again(http: httpx.Client, lake: Lake) -> None:
    start(http)
    work(lake, BODIES)
    clear_(lake.scenario, dag_id="d", run_id="one")
    assert (shown(http)["verdict"], shown(http)["reason"]) == (
        "unknown",
        "Its original runs again, and is compared when it has ended.",
    )
    work(lake, BODIES)
    assert compared(http)["verdict"] == "different", "it has appended its rows twice"
