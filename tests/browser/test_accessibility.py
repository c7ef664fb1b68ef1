"""axe-core finds no serious violation on any page, in both themes and on a narrow screen."""

import json

import pytest
from playwright.sync_api import Browser, expect

from browser.conftest import Installation, serious_violations
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]
PAGES = (
    "/",
    "/dags",
    "/runs",
    "/actions",
    "/assets",
    "/backfills",
    "/queues",
    "/pools",
    "/bundles",
    "/imports",
    "/variables",
    "/connections",
    "/audit",
    "/settings",
    "/dags/orders",
    "/dags/orders/graph",
    "/dags/orders/runs",
    "/dags/orders/durations",
    "/dags/orders/calendar",
    "/dags/orders/source",
    "/dags/orders/details",
    "/dags/journey/runs/{run}",
    "/dags/journey/runs/{run}/tasks",
    "/dags/journey/runs/{run}/details",
    "/dags/journey/runs/{run}/tasks/talk",
    "/dags/noisy/runs/axe/tasks/shout/-/log?line=35",
    "/dags/journey/runs/{run}/tasks/talk/-/why",
    "/dags/journey/runs/{run}/tasks/finish/-/xcoms",
    "/dags/journey/runs/{run}/tasks/work/-/details",
    "/dags/journey/runs/{run}/tasks/work/-/events",
)


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 380)])
def test_no_page_has_a_serious_violation(
    browser: Browser, cookies: dict[str, object], installation: Installation, theme: str, width: int
) -> None:
    run_id = run_of(installation)
    if '"axe"' not in installation.cli("runs", "list", "--dag", "noisy", "--json"):
        installation.cli_any("dags", "trigger", "noisy", "--run-id", "axe", "--wait", "--timeout", "120")
    context = browser.new_context(
        base_url=installation.url, storage_state=cookies, color_scheme=theme, viewport={"width": width, "height": 900},
        reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    found = {}
    for path in PAGES:
        page.goto(path.replace("{run}", run_id))
        page.wait_for_selector("main .head + *")
        expect(page.locator("[aria-busy]")).to_have_count(0)
        if wrong := serious_violations(page):
            found[path] = wrong
    context.close()
    assert found == {}, json.dumps(found, indent=1)
