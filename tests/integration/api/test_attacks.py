"""Requests of hostile and careless clients: each table holds for every route of its kind."""

import contextlib
import json
import os
import resource
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import psycopg2
import pytest
from fastapi.routing import APIRoute
from support.scenario import Scenario

from scheduler.api import asgi, serve
from scheduler.api.call import Service
from scheduler.settings import Settings, log_paths
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher

from .conftest import Web, World

API = "/api/v2"
SECRET = "only the web process may read this"


#: Queries that select no DAGs by name, tag, owner or state.
EMPTY = (
    "", "tags_match_mode=any", "tags_match_mode=all", "exclude_stale=false", "bundle_name=dags-folder", "limit=1",
    "order_by=dag_id", "tags=",
    "is_favorite=false", "has_import_errors=0", "has_import_errors=false&is_favorite=no",
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
            lines = [("If-Match", '"x"'), ("If-Match", http.get(path).headers["etag"])]
            assert http.patch(path, json=second, headers=lines).status_code == 200, path
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
    monkeypatch.setattr(serve, "HEADERS_S", 0.3)
    monkeypatch.setattr(asgi, "PART_S", 0.3)
    port = int(web.url.rpartition(":")[2])
    begun = (b"", b"GET /alive HTTP/1.1\r\nX: ", b"POST /auth/token HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    for sent in begun:
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            client.sendall(sent)
            with contextlib.suppress(ConnectionResetError):
                answer = client.recv(200)
                assert answer == b"" or b" 408 " in answer, sent


@pytest.mark.parametrize("begun", [b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"GET / HTTP/1.1\r\nHost: x\r\nH: h\r\n"])
def test_headers_without_an_end_are_refused(web: Web, begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless address, an endless header, and endless headers."""
    monkeypatch.setattr(serve, "HEADERS_S", 60.0)
    more = b"H: h\r\n" * 1000 if begun.endswith(b"\n") else b"a" * 6000
    with socket.create_connection(("127.0.0.1", int(web.url.rpartition(":")[2])), 10) as client:
        client.sendall(begun)
        with contextlib.suppress(ConnectionError):  # the server has closed it
            for _ in range(2 * serve.MOST_HEADER_BYTES // len(more)):
                client.sendall(more)
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    with web.http(web.account("ada", "admin")) as http:
        assert http.get(f"{API}/dags", headers={"X-Long": "a" * 60_000}).status_code == 200
        assert http.post(f"{API}/variables", json={"key": "v", "value": "x" * 2_000_000}).status_code == 201


def test_idle_connections_keep_nobody_out(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "MOST_IDLE", 20)
    port = int(web.url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(60)]
        assert httpx.get(f"{web.url}/alive").status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert clients[0].recv(1) == b""


def test_a_thousand_idle_connections_keep_nobody_out(web: Web) -> None:
    """With the limits of production: both ends of each connection are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard != resource.RLIM_INFINITY else 4096, hard))
    port = int(web.url.rpartition(":")[2])
    with web.http(web.account("uma", "viewer")) as http, contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        assert httpx.get(f"{web.url}/alive").status_code == 200
        assert http.get(f"{API}/me").status_code == 200


def _while_blocked(web: Web, path: str, http: httpx.Client, ended: Callable[[], None]) -> list[int]:
    """The statuses of requests that together hold all threads of the web process, during which /alive must answer at once."""
    threads = web.settings.web.pool_size + 10
    with ThreadPoolExecutor(threads) as pool:
        blocked = [pool.submit(http.get, path) for _ in range(threads)]
        try:
            assert httpx.get(f"{web.url}/alive", timeout=5).status_code == 200
            assert not any(one.done() for one in blocked)
        finally:
            ended()
        return [one.result().status_code for one in blocked]


def test_alive_answers_while_postgresql_is_stopped(web: Web) -> None:
    with web.http(web.account("uma", "viewer")) as http, contextlib.closing(psycopg2.connect(web.settings.database_url)) as own:
        assert http.get(f"{API}/me").status_code == 200
        server = psutil.Process(own.info.backend_pid).parent()
        assert server is not None
        processes = [server, *server.children()]
        for process in processes:
            process.suspend()

        def go_on() -> None:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

        assert set(_while_blocked(web, f"{API}/me", http, go_on)) <= {200, 503}


def test_alive_answers_while_the_provider_is_silent(web: Web) -> None:
    before = web.app.state.service
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent, web.http() as http:
        named = {"issuer": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        oidc = web.settings.oidc.model_copy(update=named)
        web.app.state.service = Service.of(web.settings.model_copy(update={"oidc": oidc}))
        before.close()
        assert set(_while_blocked(web, "/auth/oidc/login", http, silent.close)) == {503}


def test_an_unexpected_error_is_counted_and_audited(make_web: Callable[..., Web], settings: Settings, scenario: Scenario) -> None:
    """A value of the database that nothing of Paceline stores: the change succeeds, but its response cannot be made."""
    web = make_web(settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"prometheus": True})}))
    scenario.sql("alter table pool alter include_deferred drop not null")
    with web.http(web.account("ada", "admin")) as http:
        assert http.post(f"{API}/pools", json={"name": "odd", "slots": 1}).status_code == 201
        scenario.sql("update pool set include_deferred = null where name = 'odd'")
        answer = http.patch(f"{API}/pools/odd", json={"slots": 2})
        counted = http.get("/metrics").text

    assert (answer.status_code, answer.headers.get("x-content-type-options")) == (500, "nosniff")
    assert "Unexpected error" in answer.json()["detail"]
    (line,) = [one for one in counted.splitlines() if one.startswith("paceline_web_requests") and 'status="500"' in one]
    assert 'method="PATCH"' in line and float(line.rpartition(" ")[2]) == 1
    assert scenario.rows("select status from audit order by id desc limit 1") == [(500,)]


def test_no_route_fails_for_a_deep_body(web: Web, world: World) -> None:
    """At any depth: the parser, the checks and the stored value must each hold it, or refuse it."""
    entries = f"{API}/dags/etl/dagRuns/good/taskInstances/extract/xcomEntries"
    runs = f"{API}/dags/hourly/dagRuns"
    with web.http(web.account("ada", "admin")) as http:
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            statuses: dict[int, set[int]] = {}
            for depth in (90, 600, 950, 10_000):
                value = opening * depth + "1" + closing * depth
                name = f"{depth}{len(opening)}"
                for path, body in (
                    (f"{API}/variables", f'{{"key": "k{name}", "value": {value}}}'),
                    (runs, f'{{"logical_date": null, "conf": {{"x": {value}}}}}'),
                    (entries, f'{{"key": "k{name}", "value": {value}}}'),
                    (f"{API}/connections", f'{{"connection_id": "c{name}", "conn_type": "x", "extra": {json.dumps(value)}}}'),
                    (f"{API}/pools", value),
                    ("/auth/token", value),
                ):
                    for key in ({}, {"Idempotency-Key": name}) if path == runs else ({},):
                        answer = http.post(path, content=body, headers={"Content-Type": "application/json", **key})
                        statuses.setdefault(depth, set()).add(answer.status_code)
                        assert answer.status_code < 500, (path, depth, answer.text[:200])
            assert {200, 201} <= statuses[90] and statuses[10_000] <= {400, 413, 422}
        for path in (f"{API}/variables", f"{API}/connections", runs, entries, f"{API}/eventLogs"):
            assert http.get(path).status_code == 200, path


def _elsewhere(folder: Path, kind: str, place: Path) -> None:
    """Replace a file by what must not be read."""
    secret = folder / "elsewhere" / place.name
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET)
    if kind == "folder":
        place.parent.rename(folder / "moved")
        place.parent.symlink_to(secret.parent)
        return
    place.unlink(missing_ok=True)
    {"link": lambda: place.symlink_to(secret), "pipe": lambda: os.mkfifo(place)}[kind]()


def test_the_source_of_a_dag_is_no_link_out_of_the_folder(web: Web, world: World, tmp_path: Path) -> None:
    file = web.settings.dags_folder / "etl.py"
    file.rename(web.settings.dags_folder / "real.py")
    file.symlink_to("real.py")
    with web.http(web.account("uma", "viewer")) as http:
        assert http.get(f"{API}/dagSources/etl").json()["content"] == "# the file of etl\n"
        for kind in ("link", "pipe"):
            _elsewhere(tmp_path / kind, kind, file)
            answer = http.get(f"{API}/dagSources/etl")
            assert (answer.status_code, SECRET in answer.text) == (404, False), kind


def test_a_log_is_no_link(web: Web, world: World, tmp_path: Path) -> None:
    with web.http(web.account("uma", "viewer")) as http:
        for kind, run_id in (("link", "good"), ("pipe", "bad"), ("folder", "now")):
            log = world.log(run_id, "extract", "a line\n")
            address = f"{API}/dags/etl/dagRuns/{run_id}/taskInstances/extract/logs/1"
            assert http.get(address).status_code == 200
            _elsewhere(tmp_path / kind, kind, log)
            for end in ("", "/lines", "/search?text=a"):
                answer = http.get(address + end)
                assert (answer.status_code, SECRET in answer.text) == (404, False), (kind, end)


def _log_with_copies(settings: Settings, tmp_path: Path, run_id: str) -> tuple[Settings, Path, Path]:
    """Settings with copies of logs, a log, and the place of its copy."""
    copying = settings.model_copy(update={"logs": settings.logs.model_copy(update={"url": str(tmp_path / "copies")})})
    names = {"dag_id": "etl", "run_id": run_id, "task_id": "extract", "map_index": -1, "try_number": 1}
    log = Path(log_paths.try_path(settings.logs_folder, **names))  # type: ignore[arg-type]
    log.parent.mkdir(parents=True)
    log.write_text("a line\n", encoding="utf-8")
    return copying, log, tmp_path / "copies" / log.relative_to(settings.logs_folder)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_copy_of_a_log_is_no_link(settings: Settings, tmp_path: Path, kind: str) -> None:
    copying, log, copy = _log_with_copies(settings, tmp_path, "good")
    log_paths.write(copying, log)
    log.unlink()
    assert log_paths.local(copying, log).read_text() == "a line\n"
    log_paths.local(copying, log).unlink()

    _elsewhere(tmp_path, kind, copy)

    assert not log_paths.local(copying, log).exists()


def test_a_log_is_not_written_through_a_link(settings: Settings, tmp_path: Path) -> None:
    copying, log, copy = _log_with_copies(settings, tmp_path, "good")
    other = tmp_path / "other"
    other.write_text("as it was")
    copy.parent.mkdir(log_paths.FOLDER_MODE, parents=True)
    copy.symlink_to(other)

    log_paths.write(copying, log)

    assert (other.read_text(), copy.read_text()) == ("as it was", "a line\n")


def test_the_home_page_shows_no_hosts_to_a_viewer_of_one_tag(web: Web, world: World) -> None:
    with web.http(web.account("tim", tags={"nightly": "viewer"})) as http:
        processes = http.get(f"{API}/home").json()["processes"]

    assert processes and {name for one in processes for name in one} == {"kind", "state", "heartbeat_at"}


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
