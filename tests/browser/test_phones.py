"""A narrow screen that is touched."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.conftest import Installation
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: Buttons, fields and tabs that a finger would miss, by their text. Lines of a log are rows of text, not controls.
SMALL = """
() => [...document.querySelectorAll('button, select, input:not([type=checkbox], [type=radio]), .tabs a, .side-link')]
    .filter(one => !one.closest('[role=log], .list th, .grid-box, .graph') && one.checkVisibility({visibilityProperty: true}))
    .map(one => [one, one.getBoundingClientRect(), parseFloat(getComputedStyle(one, '::after').height) || 0])
    .filter(([, box, around]) => box.width > 1 && box.height > 1 && Math.max(box.height, around) < 39.5)
    .map(([one, box]) => `${one.outerHTML.slice(0, 120)} ${box.height}`)
"""


@pytest.fixture
def phone(browser: Browser, cookies: dict[str, object], installation: Installation) -> Iterator[Page]:
    context = browser.new_context(
        base_url=installation.url, storage_state=cookies, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True,
        reduced_motion="reduce",
    )  # fmt: skip
    yield context.new_page()
    context.close()


def test_what_is_touched_has_40_pixels_and_no_page_is_too_wide(phone: Page, installation: Installation) -> None:
    run_id = run_of(installation, prefix="touch")
    found = {}
    for path in (
        "/",
        "/dags",
        "/runs",
        "/actions",
        "/connections",
        "/dags/journey",
        f"/dags/journey/runs/{run_id}",
        f"/dags/journey/runs/{run_id}/tasks/talk",
    ):
        phone.goto(path)
        phone.wait_for_selector("main .head + *")
        expect(phone.locator("[aria-busy]")).to_have_count(0)
        small = phone.evaluate(SMALL)
        if phone.evaluate("document.documentElement.scrollWidth") > 390:
            small.append("too wide")
        if small:
            found[path] = small
    assert found == {}


def test_a_run_has_two_lines(phone: Page, installation: Installation) -> None:
    run_of(installation, "--conf", '{"fail": true}', prefix="two-lines")
    phone.goto("/runs?q=journey")
    rows = phone.locator("tbody tr", has_text="two-lines")
    expect(rows.first.get_by_role("link", name="work", exact=True)).to_be_visible()
    box = rows.first.bounding_box()
    assert box and box["height"] < 80
    tops = rows.first.locator("td:visible").evaluate_all(
        "cells => new Set(cells.map(one => Math.round(one.getBoundingClientRect().top / 20))).size"
    )
    assert tops == 2


def test_the_timeline_names_the_group_of_a_task(phone: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "orders", "--run-id", "narrow", "--wait", "--timeout", "120")
    phone.goto("/dags/orders/runs/narrow")
    row = phone.locator(".gantt-row", has_text="customers")
    expect(row.locator(".gantt-group")).to_be_visible()
    expect(row.locator(".gantt-group")).to_have_text("extract.")
