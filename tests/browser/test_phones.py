"""A narrow screen that is touched."""

import json

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation, Names
from browser.test_accessibility import DIALOGS, PAGES
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: What a finger would miss, by its text. Lines of a log, words of a sentence and parts of a chart are no controls of their own.
SMALL = """
() => [...document.querySelectorAll('button, select, summary, a, input')]
    .filter(one => !one.closest('[role=log], .list th, .grid-box, .graph, .lineage, .calendar, .recent, .hours'))
    .filter(one => !one.closest('.skip, pre, .markdown, p:not(.dag-facts)') && one.checkVisibility({visibilityProperty: true}))
    .map(one => [one, (one.closest('label') ?? one).getBoundingClientRect()])
    .map(([one, box]) => [one, box, ...['::before', '::after'].map(part => parseFloat(getComputedStyle(one, part).height) || 0)])
    .filter(([, box, before, after]) => box.width > 1 && box.height > 1 && Math.max(box.height, before, after) < 39.5)
    .map(([one, box]) => `${one.outerHTML.slice(0, 120)} ${box.height}`)
"""


def too_small(phone: Page) -> list[str]:
    expect(phone.locator("[aria-busy]")).to_have_count(0)
    small = list(phone.evaluate(SMALL))
    return [*small, "too wide"] if phone.evaluate("document.documentElement.scrollWidth") > 390 else small


def test_what_is_touched_has_40_pixels_and_no_page_is_too_wide(phone: Page, names: Names) -> None:
    found = {}
    for path in PAGES:
        phone.goto(names.into(path))
        phone.wait_for_selector("main :is(.head + *, .empty)")
        if small := too_small(phone):
            found[path] = small
    assert found == {}, json.dumps(found, indent=1)


def test_what_is_touched_in_a_dialog_has_40_pixels(phone: Page, names: Names) -> None:
    found = {}
    for name, (path, buttons) in DIALOGS.items():
        if any(".side-end" in button for button in buttons):
            continue  # the navigation is folded
        phone.goto(names.into(path))
        for button in buttons:
            phone.locator(button).first.click()
        expect(phone.locator("dialog[open]")).to_be_visible()
        if small := too_small(phone):
            found[name] = small
    assert found == {}, json.dumps(found, indent=1)


def test_a_run_has_two_lines(phone: Page, installation: Installation) -> None:
    run_of(installation, "--conf", '{"fail": true}', prefix="two-lines")
    phone.goto("/runs?q=journey")
    rows = phone.locator("tbody tr", has_text="two-lines")
    expect(rows.first.get_by_role("link", name="work", exact=True)).to_be_visible()
    box = rows.first.bounding_box()
    assert box and box["height"] <= 88
    middles = rows.first.locator("td:visible").evaluate_all(
        """cells => new Set(cells.map(one => one.getBoundingClientRect())
            .map(box => Math.round((box.top + box.height / 2) / 20))).size"""
    )
    assert middles == 2
    # The part of a finger that misses the words of a link still opens it.
    link = rows.first.get_by_role("link", name="two-lines").bounding_box()
    assert link
    phone.touchscreen.tap(link["x"] + 20, link["y"] + 3)
    expect(phone.locator(".run-id")).to_contain_text("two-lines")


def test_the_timeline_names_the_group_of_a_task(phone: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "orders", "--run-id", "narrow", "--wait", "--timeout", "120")
    phone.goto("/dags/orders/runs/narrow")
    row = phone.locator(".gantt-row", has_text="customers")
    expect(row.locator(".gantt-group")).to_be_visible()
    expect(row.locator(".gantt-group")).to_have_text("extract.")
