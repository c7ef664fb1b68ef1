"""The pages are files of this installation, served with strict headers, under any path prefix."""

import asyncio
import gzip
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from scheduler.api import app as pages
from scheduler.api import asgi

INDEX = '<!doctype html><base href="/" /><script type="module" src="./assets/main-1.js"></script>'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Built pages."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "secret.txt").write_text("no")
    script = tmp_path / "assets" / "main-1.js"
    script.write_text("plain")
    script.with_name("main-1.js.gz").write_bytes(gzip.compress(b"packed"))
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    return tmp_path


def get(path: str, *, base_path: str = "", method: str = "GET", **headers: str) -> httpx.Response:
    """The response of an application with one route and the pages."""
    app = FastAPI(redirect_slashes=False)
    app.add_api_route(f"{base_path}/api/v2/thing" if base_path else "/api/v2/thing", lambda: {"a": 1}, methods=["GET"])
    pages.install(app)
    app.add_middleware(asgi.EntityTags)
    app.add_middleware(asgi.Prefix, base_path=base_path)
    sent = {"accept-encoding": "identity"} | {name.replace("_", "-"): value for name, value in headers.items()}

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
            return await client.request(method, path, headers=sent)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", ["/", "/dags/a%2Fb/runs/x", "/nowhere"])
def test_every_other_path_is_a_page_with_a_strict_policy(path: str) -> None:
    found = get(path)

    assert (found.status_code, found.text) == (200, INDEX)
    policies = found.headers.get_list("content-security-policy")
    assert policies == [pages.POLICY]
    assert "unsafe" not in pages.POLICY
    assert "http" not in pages.POLICY
    assert (found.headers["cache-control"], found.headers["x-frame-options"]) == ("no-cache", "DENY")


def test_a_cached_page_is_not_sent_again() -> None:
    tag = get("/").headers["etag"]

    again = get("/", if_none_match=tag)

    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/pace/dags", "/dags"])
def test_a_page_states_its_path_prefix(path: str) -> None:
    assert '<base href="/pace/" />' in get(path, base_path="/pace").text


def test_a_path_prefix_cannot_add_markup() -> None:
    assert '<base href="/&quot;&gt;/" />' in get("/x", base_path='/">').text


def test_assets_are_kept_forever_and_come_compressed() -> None:
    plain, packed = get("/assets/main-1.js"), get("/assets/main-1.js", accept_encoding="br, gzip")

    assert (plain.text, plain.headers["cache-control"]) == ("plain", pages.FOREVER)
    assert plain.headers["content-type"].startswith("text/javascript")
    assert (packed.text, packed.headers["content-encoding"], packed.headers["vary"]) == ("packed", "gzip", "Accept-Encoding")


@pytest.mark.parametrize("name", ["main-2.js", "..%2fsecret.txt", "%2e%2e/secret.txt", "", "..", "a%00b"])
def test_other_files_are_not_served(name: str) -> None:
    found = get(f"/assets/{name}")

    assert found.text in {"There is no such file.", INDEX}
    assert found.status_code == 404 or name in {"..", "%2e%2e/secret.txt"}


@pytest.mark.parametrize("path", ["/api/v2/other", "/auth/x", "/metrics", "/health"])
def test_paths_of_the_api_are_no_pages(path: str) -> None:
    found = get(path)

    assert (found.status_code, found.json()) == (404, {"detail": "Not Found"})


def test_routes_keep_their_answers() -> None:
    assert get("/api/v2/thing").json() == {"a": 1}
    assert get("/api/v2/thing", method="DELETE").status_code == 405
    assert get("/dags", method="POST").status_code == 404


def test_without_built_pages_the_response_names_the_command_that_builds_them(folder: Path) -> None:
    (folder / "index.html").unlink()

    found = get("/")

    assert (found.status_code, found.text) == (503, pages.NOT_BUILT)
