"""Requests of hostile and careless clients: each table holds for every route of its kind."""

import contextlib
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg2
import pytest
from fastapi.routing import APIRoute

from scheduler.api import asgi, protocol
from scheduler.settings import log_copies, log_paths
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher

from .conftest import Web, World

API = "/api/v2"
LOG = f"{API}/dags/etl/dagRuns/good/taskInstances/extract/logs/1"
SECRET = "only the web process may read this"


#: Queries that select no DAGs by name, tag, owner or state.
EMPTY = (
    "", "tags_match_mode=any", "tags_match_mode=all", "exclude_stale=false", "bundle_name=dags-folder", "limit=1",
    "order_by=dag_id", "tags=",
    "dag_id_pattern=", "owners=", "update_mask=is_paused", "tags_match_mode=any&bundle_name=dags-folder",
)  # fmt: skip


def test_a_bulk_change_needs_a_filter(web: Web, world: World) -> None:
    with web.http(web.account("ada", "admin")) as http:
        for query in EMPTY:
            assert http.patch(f"{API}/dags?{query}", json={"is_paused": True}).status_code == 400, query
        for path in ("clearByFilter", "markByFilter", "deleteByFilter"):
            state = {"new_state": "success"} if path == "markByFilter" else {}
            for chosen in ({}, {"dag_ids": []}, {"dag_id_pattern": ""}, {"dag_run_ids": []}, {"state": []}, None):
                answer = http.post(f"{API}/{path}", json={"filter": chosen, "dry_run": False} | state)
                assert answer.status_code in {400, 422}, (path, chosen)

    assert world.scenario.rows("select count(*) from dag_schedule where is_paused") == [(0,)]
    assert world.scenario.rows("select count(*) from dag_run") == [(3,)]


def test_a_masked_value_that_is_sent_back_changes_nothing(web: Web, world: World) -> None:
    """What a GET shows can be sent to the PATCH of the same path, with and without a change of another field."""
    extra = {"region": "eu", "keys": {"token": "one"}, "hosts": [{"name": "a", "password": "two"}]}
    connection = {"connection_id": "c", "conn_type": "x", "password": "three", "extra": json.dumps(extra)}
    variable = {"key": "v", "value": json.dumps({"api_key": "four", "n": 1})}
    secret = {"key": "a_token", "value": "five"}
    cipher = Cipher.of(web.settings, make=True)

    def stored() -> list[object]:
        one = transact(web.engine, connections.connection, "c", cipher).as_dict()
        return [one["password"], one["extra"]] + [
            transact(web.engine, variables.variable, key, cipher)["value"] for key in ("v", "a_token")
        ]

    with web.http(web.account("ada", "admin")) as http:
        for kind, body in (("connections", connection), ("variables", variable), ("variables", secret)):
            assert http.post(f"{API}/{kind}", json=body).status_code == 201
        before = stored()
        for path in ("connections/c", "variables/v", "variables/a_token"):
            shown = http.get(f"{API}/{path}").json()
            body = {name: value for name, value in shown.items() if name not in {"is_encrypted", "team_name"}}
            assert "***" in str(body)
            assert http.patch(f"{API}/{path}", json=body | {"description": "new"}).status_code == 200
            assert stored() == before, path
        for path, body, status in (
            ("connections/c", {"extra": json.dumps({"keys": {"token": "***"}, "region": "us"})}, 200),
            ("connections/c", {"extra": json.dumps({"other": "***"})}, 400),
            ("connections/c", {"extra": "***"}, 400),
            ("variables/v", {"value": {"api_key": "***", "n": 2}}, 200),
            ("variables/v", {"value": "***"}, 400),
            ("variables/v", {"value": {"password": "***"}}, 400),
        ):
            name = {"connection_id": "c", "conn_type": "x"} if path.startswith("c") else {"key": "v"}
            assert http.patch(f"{API}/{path}", json=name | body).status_code == status, body
        assert http.post(f"{API}/connections", json=connection | {"connection_id": "d", "password": "***"}).status_code == 400

    assert [stored()[0], stored()[1], json.loads(str(stored()[2]))] == [
        "three", {"keys": {"token": "one"}, "region": "us"}, {"api_key": "four", "n": 2}
    ]  # fmt: skip


def test_a_change_with_an_old_etag_is_refused(web: Web, world: World) -> None:
    """Each resource that has a GET and a PATCH at one path."""
    run = f"{API}/dags/etl/dagRuns/good"
    with web.http(web.account("ada", "admin")) as http:
        http.post(f"{API}/variables", json={"key": "v", "value": "1"})
        http.post(f"{API}/connections", json={"connection_id": "c", "conn_type": "x"})
        http.post(f"{API}/pools", json={"name": "p", "slots": 1})
        for path, first, second in (
            (f"{API}/variables/v", {"key": "v", "value": "2"}, {"key": "v", "value": "3"}),
            (f"{API}/connections/c", {"connection_id": "c", "conn_type": "y"}, {"connection_id": "c", "conn_type": "z"}),
            (f"{API}/pools/p", {"slots": 2}, {"slots": 3}),
            (f"{API}/dags/etl", {"is_paused": True}, {"is_paused": False}),
            (run, {"note": "one"}, {"note": "two"}),
            (f"{run}/taskInstances/extract", {"note": "one"}, {"note": "two"}),
        ):
            old = http.get(path).headers["etag"]
            assert http.patch(path, json=first, headers={"If-Match": old}).status_code == 200, path
            after = http.get(path)
            assert http.patch(path, json=second, headers={"If-Match": old}).status_code == 412, path
            assert http.get(path).text == after.text
            assert http.patch(path, json=second, headers={"If-Match": f'"x", {after.headers["etag"]}'}).status_code == 200, path
        assert http.delete(f"{API}/variables/v", headers={"If-Match": '"old"'}).status_code == 412
        assert http.delete(f"{API}/variables/none", headers={"If-Match": "*"}).status_code == 412
        assert http.delete(f"{API}/variables/v", headers={"If-Match": "*"}).status_code == 204


def test_no_route_reads_a_large_body_without_a_login(web: Web) -> None:
    """The body never ends, so only a response that does not wait for it arrives."""
    paths = web.app.openapi()["paths"]
    taking = [(method, path) for path, methods in paths.items() for method in methods if method in {"post", "put", "patch"}]
    assert len(taking) > 30
    port = int(web.url.rpartition(":")[2])
    for method, path in taking:
        target = path.replace("{", "").replace("}", "")
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(f"{method.upper()} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n\r\n[[".encode())
            assert b" 401 " in client.recv(200), path


def test_a_body_of_too_many_lists_is_refused(web: Web) -> None:
    body = b"[" + b"[]," * 300_000 + b"1]"
    with web.http(web.account("ada", "admin")) as http:
        answer = http.post(f"{API}/variables", content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, "lists and objects" in answer.text) == (413, True)


def test_a_client_that_sends_nothing_is_closed(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.3)
    monkeypatch.setattr(asgi, "PART_S", 0.3)
    port = int(web.url.rpartition(":")[2])
    begun = (b"", b"GET /alive HTTP/1.1\r\nX: ", b"POST /auth/token HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    for sent in begun:
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            client.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                answer = client.recv(200)
                assert answer == b"" or b" 408 " in answer, sent


def test_idle_connections_keep_nobody_out(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_IDLE", 20)
    port = int(web.url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(60)]
        assert httpx.get(f"{web.url}/alive").status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert clients[0].recv(1) == b""


def test_alive_needs_no_thread(web: Web) -> None:
    """As while PostgreSQL is silent, and requests hold all threads."""
    token, threads = web.account("uma", "viewer"), web.settings.web.pool_size + 10
    with contextlib.closing(psycopg2.connect(web.settings.database_url)) as other, ThreadPoolExecutor(threads) as pool:
        other.cursor().execute("lock table account in access exclusive mode")
        with web.http(token) as http:
            blocked = [pool.submit(http.get, f"{API}/me") for _ in range(threads)]
            try:
                assert httpx.get(f"{web.url}/alive", timeout=5).status_code == 200
            finally:
                other.rollback()
            for one in blocked:
                one.result()


def _elsewhere(folder: Path, kind: str, place: Path) -> None:
    """Replace a file by what must not be read."""
    secret = folder / "elsewhere" / place.name
    secret.parent.mkdir()
    secret.write_text(SECRET)
    if kind == "folder":
        place.parent.rename(folder / "moved")
        place.parent.symlink_to(secret.parent)
        return
    place.unlink(missing_ok=True)
    {"link": lambda: place.symlink_to(secret), "pipe": lambda: os.mkfifo(place)}[kind]()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_the_source_of_a_dag_is_no_link_out_of_the_folder(web: Web, world: World, tmp_path: Path, kind: str) -> None:
    _elsewhere(tmp_path, kind, web.settings.dags_folder / "etl.py")
    with web.http(web.account("uma", "viewer")) as http:
        answer = http.get(f"{API}/dagSources/etl")

    assert (answer.status_code, SECRET in answer.text) == (404, False)


def test_the_source_of_a_dag_may_be_a_link_inside_the_folder(web: Web, world: World) -> None:
    file = web.settings.dags_folder / "etl.py"
    file.rename(web.settings.dags_folder / "real.py")
    file.symlink_to("real.py")
    with web.http(web.account("uma", "viewer")) as http:
        assert http.get(f"{API}/dagSources/etl").json()["content"] == "# the file of etl\n"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_log_is_no_link(web: Web, world: World, tmp_path: Path, kind: str) -> None:
    _elsewhere(tmp_path, kind, world.log("good", "extract", "a line\n"))
    with web.http(web.account("uma", "viewer")) as http:
        for end in ("", "/lines", "/search?text=a"):
            answer = http.get(LOG + end)
            assert (answer.status_code, SECRET in answer.text) == (404, False), end


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_copy_of_a_log_is_no_link(web: Web, world: World, tmp_path: Path, kind: str) -> None:
    logs = web.settings.logs.model_copy(update={"url": str(tmp_path / "copies")})
    settings = web.settings.model_copy(update={"logs": logs})
    log = world.log("good", "extract", "a line\n")
    log_copies.write(settings, log)
    copy = tmp_path / "copies" / log.relative_to(settings.logs_folder)
    log.unlink()
    assert log_copies.local(settings, log).read_text() == "a line\n"
    log_copies.local(settings, log).unlink()

    _elsewhere(tmp_path, kind, copy)

    assert not log_copies.local(settings, log).exists()


def test_a_log_is_not_written_through_a_link(web: Web, world: World, tmp_path: Path) -> None:
    logs = web.settings.logs.model_copy(update={"url": str(tmp_path / "copies")})
    settings = web.settings.model_copy(update={"logs": logs})
    log, other = world.log("good", "extract", "a line\n"), tmp_path / "other"
    other.write_text("as it was")
    copy = tmp_path / "copies" / log.relative_to(settings.logs_folder)
    copy.parent.mkdir(log_paths.FOLDER_MODE, parents=True)
    copy.symlink_to(other)

    log_copies.write(settings, log)

    assert (other.read_text(), copy.read_text()) == ("as it was", "a line\n")


def test_the_home_page_shows_no_hosts_to_a_viewer_of_one_tag(web: Web, world: World) -> None:
    with web.http(web.account("tim", tags={"nightly": "viewer"})) as http:
        processes = http.get(f"{API}/home").json()["processes"]

    assert processes and {name for one in processes for name in one} == {"kind", "state", "heartbeat_at"}


def test_the_recent_runs_of_all_dags_are_bounded(web: Web, world: World) -> None:
    world.scenario.sql(
        "insert into dag_run (dag_id, run_id, run_type, state, run_after, started_at, ended_at, version_id)"
        " select dag_id, 'n' || n, 'manual', 'success', run_after, started_at, ended_at, version_id"
        " from dag_run, generate_series(1, 150) n where run_id = 'good'"
    )
    with web.http(web.account("uma", "viewer")) as http:
        (few,) = http.get(f"{API}/recentRuns", params={"dag_ids": "~", "limit": 100}).json()["dags"].values()

    assert len(few) == 100


def test_an_unexpected_error_has_all_headers(web: Web) -> None:
    def fail() -> None:
        raise RuntimeError("a fault of ours")

    route = APIRoute("/fails", fail)
    web.app.router.routes.insert(0, route)
    try:
        answer = httpx.get(f"{web.url}/fails")
    finally:
        web.app.router.routes.remove(route)

    assert (answer.status_code, answer.headers.get("x-content-type-options")) == (500, "nosniff")
    assert "content-security-policy" in answer.headers
