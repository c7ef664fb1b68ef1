"""axe-core finds no serious violation on any page and dialog, in both themes and on a narrow screen."""

import json
import re
from collections.abc import Iterable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from browser import screenshots
from browser.conftest import ROOT, Installation, Names, serious_violations

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]
expect.set_options(timeout=60_000)
PAGES = (
    "/",
    "/dags",
    "/dags?q=nothing",
    "/runs",
    "/runs?state=queued&q=nothing",
    "/tasks",
    "/tasks?state=failed",
    "/actions",
    "/actions?show=answered",
    "/assets",
    "/asset/{asset}",
    "/tables",
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
    "/dags/orders/docs",
    "/dags/documented/docs",
    "/dags/orders/details",
    "/dags/journey?run={run}&task=work",
    "/dags/journey/runs/{failed}",
    "/dags/journey/runs/{failed}/graph",
    "/dags/journey/runs/{failed}/compare",
    "/dags/journey/runs/{failed}/reproductions",
    "/dags/journey/runs/{run}/callbacks",
    "/dags/journey/runs/{run}",
    "/dags/journey/runs/{run}/tasks",
    "/dags/journey/runs/{run}/details",
    "/dags/journey/runs/{run}/tasks/talk",
    "/dags/noisy/runs/axe/tasks/shout/-/log?line=35",
    "/dags/journey/runs/{run}/tasks/talk/-/why",
    "/dags/journey/runs/{run}/tasks/finish/-/xcoms",
    "/dags/journey/runs/{run}/tasks/work/-/details",
    "/dags/journey/runs/{run}/tasks/work/-/events",
    "/dags/journey/runs/{run}/tasks/work/-/callbacks",
    "/nothing",
)
#: By name: a page, and the buttons that open a dialog on it, one after the other.
DIALOGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "trigger": ("/dags/orders", (".head .button.first",)),
    "trigger as JSON": ("/dags/orders", (".head .button.first", "dialog button:has-text('JSON')")),
    "delete a DAG": ("/dags/orders", (".head .menu > button", "[role=menuitem]:has-text('Delete')")),
    "clear a run": ("/dags/journey/runs/{failed}", (".head button:has-text('Clear')",)),
    "clear a task": ("/dags/journey/runs/{failed}/tasks/work", (".head button:has-text('Clear')",)),
    "mark a task": ("/dags/journey/runs/{failed}/tasks/work", (".head .menu > button", "[role=menuitem]:has-text('Mark success')")),
    "write a note": ("/dags/journey/runs/{run}/details", ("[aria-label='Write a note']",)),
    "clear many runs": ("/dags/journey/runs?state=failed", ("tbody [type=checkbox]", ".bulk button:has-text('Clear failed')")),
    "mark many runs": ("/dags/journey/runs?state=failed", ("tbody [type=checkbox]", ".bulk button:has-text('Mark failed')")),
    "delete many runs": ("/dags/journey/runs?state=failed", ("tbody [type=checkbox]", ".bulk button:has-text('Delete')")),
    "mark many tasks": ("/dags/journey/runs/{failed}/tasks", ("tbody [type=checkbox]", ".bulk button:has-text('Mark success')")),
    "answer": ("/actions", ("tbody button:has-text('Respond')",)),
    "sure to answer": ("/actions", ("tbody button:has-text('Approve')",)),
    "new backfill": ("/backfills", (".head .button.first",)),
    "backfill of a DAG": ("/backfills?new=orders", ()),
    "pool": ("/pools", (".head .button.first",)),
    "line of a pool": ("/pools", ("tbody .as-link",)),
    "delete a pool": ("/pools", ("[aria-label='Delete: axe']",)),
    "variable": ("/variables", (".head .button.first",)),
    "stored variable": ("/variables", ("[aria-label='Edit: axe_token']",)),
    "delete a variable": ("/variables", ("[aria-label='Delete: axe_token']",)),
    "connection": ("/connections", (".head .button.first",)),
    "stored connection": ("/connections", ("[aria-label='Edit: axe']",)),
    "delete a connection": ("/connections", ("[aria-label='Delete: axe']",)),
    "audit entry": ("/audit", ("tbody .as-link",)),
    "drain": ("/queues", ("button:has-text('Drain')",)),
    "jump": ("/", (".side-end .side-link:has-text('Go to anything')",)),
    "keys": ("/", (".side-end [aria-label=Keyboard]",)),
    "zone": ("/", (".side-end [title='The zone of all times']",)),
}
#: Addresses of routes.ts without a page of their own here: a path of the first part stands for the second.
SAME_PAGE = {"/dags/:dag/runs/:run/tasks/:task/:map": "/dags/:dag/runs/:run/tasks/:task"}


@pytest.fixture(params=[("light", 1440), ("dark", 1440), ("light", 390)], ids=["light", "dark", "narrow"])
def look(
    request: pytest.FixtureRequest, browser: Browser, cookies: dict[str, object], installation: Installation, names: Names
) -> Iterator[Page]:
    theme, width = request.param
    context = browser.new_context(
        base_url=installation.url, storage_state=cookies, color_scheme=theme, viewport={"width": width, "height": 900},
        reduced_motion="reduce",
    )  # fmt: skip
    yield context.new_page()
    context.close()


def test_no_page_has_a_serious_violation(look: Page, names: Names) -> None:
    found = {}
    for path in PAGES:
        look.goto(names.into(path))
        look.wait_for_selector("main :is(.head + *, .empty)")
        expect(look.locator("[aria-busy]")).to_have_count(0)
        if wrong := serious_violations(look):
            found[path] = wrong
    assert found == {}, json.dumps(found, indent=1)


def test_no_dialog_has_a_serious_violation(look: Page, names: Names) -> None:
    narrow = (look.viewport_size or {"width": 0})["width"] < 600
    found = {}
    for name, (path, buttons) in DIALOGS.items():
        if narrow and any(".side-end" in button for button in buttons):
            continue  # the navigation is folded
        look.goto(names.into(path))
        for button in buttons:
            look.locator(button).first.click()
        expect(look.locator("dialog[open]")).to_be_visible()
        expect(look.locator("[aria-busy]")).to_have_count(0)
        if wrong := serious_violations(look):
            found[name] = wrong
    assert found == {}, json.dumps(found, indent=1)


def test_every_address_of_the_pages_is_among_them() -> None:
    # A bundle, its plans and a table have pages in tests of their own, which look for violations.
    assert without_a_page(PAGES) == {"/bundles/:bundle", "/bundles/:bundle/plan", "/tables/:table"}


def test_every_address_of_the_pages_has_a_screenshot() -> None:
    # That of an asset is reached by a click.
    assert without_a_page([path for path, _ in screenshots.PAGES.values()]) == {"/asset/:asset"}


def without_a_page(paths: Iterable[str]) -> set[str]:
    """The patterns of routes.ts that none of these addresses fits."""
    routes = re.findall(
        r"^  \['(/[^']*)',", (ROOT / "web" / "src" / "shell" / "routes.ts").read_text(encoding="utf-8"), re.MULTILINE
    )
    patterns = {route: re.compile(re.sub(r":\w+", "[^/]+", SAME_PAGE.get(route, route)) + "$") for route in routes}
    assert len(routes) > 20
    known = [path.partition("?")[0] for path in paths]
    return {route for route, pattern in patterns.items() if not any(pattern.match(path) for path in known)}
