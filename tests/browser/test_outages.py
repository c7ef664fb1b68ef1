"""The pages while the server does not answer, and after an upgrade."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

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
