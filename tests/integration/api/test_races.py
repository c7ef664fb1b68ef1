"""Concurrent requests of several people, and requests of unusual size."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from scheduler.api.call import PREFIX

from .conftest import Web, World

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
