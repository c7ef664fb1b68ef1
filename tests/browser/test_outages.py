"""The pages while the server does not answer, and after an upgrade."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, Route, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
BANNER = "The server does not respond. This page shows what it last received"


def test_a_server_that_hangs_is_named_and_the_page_stays(away: Page) -> None:
    away.goto("/dags")
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
    held: list[Route] = []
    answers: list[bool] = []
    away.route("**/api/v2/**", lambda route: route.continue_() if answers else held.append(route))
    away.get_by_role("link", name="Pools").click()
    expect(away.get_by_text(BANNER)).to_be_visible()
    away.go_back()
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()

    answers.append(True)
    for route in held:
        route.continue_()
    expect(away.get_by_text(BANNER)).to_have_count(0)


def test_a_database_that_is_away_leaves_the_page_as_it_was(away: Page) -> None:
    away.goto("/dags")
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
    away.route("**/api/v2/**", lambda route: route.fulfill(status=503, json={"detail": "PostgreSQL does not answer."}))
    away.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(away.get_by_text(BANNER)).to_be_visible()
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
    expect(away.get_by_role("alert")).to_have_count(0)


def test_a_frozen_database_is_named_after_three_seconds_and_comes_back(away: Page, installation: Installation) -> None:
    away.goto("/dags")
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
    with frozen_database(installation):
        since = time.monotonic()
        away.get_by_role("link", name="Pools").click()
        expect(away.get_by_text(BANNER)).to_be_visible()
        assert 2.5 < time.monotonic() - since < 8
        away.go_back()
        expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
        expect(away.get_by_role("alert")).to_have_count(0)
    expect(away.get_by_text(BANNER)).to_have_count(0)
    away.get_by_role("link", name="Pools").click()
    expect(away.get_by_role("row", name="default_pool")).to_be_visible()


@contextlib.contextmanager
def frozen_database(installation: Installation) -> Iterator[None]:
    """Stop all processes of PostgreSQL, as a machine that swaps does: connections stay open, and nothing answers."""
    (file,) = Path(installation.environment["PACELINE_HOME"]).rglob("postmaster.pid")
    server = psutil.Process(int(file.read_text().split()[0]))
    server.suspend()
    stopped = [server]
    try:
        for child in server.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.suspend()
                stopped.append(child)
        yield
    finally:
        for process in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def test_a_page_of_an_older_release_loads_again(away: Page) -> None:
    away.goto("/dags")
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
    upgraded: list[bool] = []
    away.route(re.compile("/assets/Pools-"), lambda route: route.continue_() if upgraded else route.fulfill(status=404))
    away.get_by_role("link", name="Pools").click()
    expect(away.get_by_text("A part of this page could not be loaded.")).to_be_visible()

    def index_of_other_release(route: Route) -> None:
        upgraded.append(True)
        route.fulfill(body="<script src=assets/index-other.js></script>")

    away.goto("/dags")
    expect(away.get_by_role("link", name="orders", exact=True)).to_be_visible()
    away.route(re.compile("://[^/]+/$"), index_of_other_release)
    away.get_by_role("link", name="Pools").click()
    expect(away.get_by_role("heading", name="Pools")).to_be_visible()
    assert len(upgraded) == 1
