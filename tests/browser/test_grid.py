"""The grid of a DAG: what it says about a cell, and what a click shows."""

import re

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: The sizes in pixels that web/src/grid/Grid.tsx draws with.
ROW, COLUMN, HEAD = 24, 18, 74
#: Where the canvas is, how far the grid has scrolled, and how wide and high its labels and all of it are.
PLACE = """
box => {
    const canvas = box.querySelector('canvas').getBoundingClientRect()
    return {left: canvas.left - box.scrollLeft, top: canvas.top - box.scrollTop,
            runs: box.lastElementChild.offsetWidth - box.querySelector('.grid-labels').offsetWidth - 8}
}
"""


def failed_run(installation: Installation, run_id: str) -> None:
    installation.cli_any("dags", "trigger", "journey", "--run-id", run_id, "--conf", '{"fail": true}', "--wait", "--timeout", "120")


def cell_of(page: Page, run_id: str, task_id: str) -> tuple[float, float]:
    """The middle of a cell, found by moving with the keys: what the grid then says names the run and the task."""
    grid = page.get_by_role("application")
    grid.focus()
    said = page.locator("[role=status].visually-hidden")
    row = 0
    page.keyboard.press("ArrowDown")
    while task_id not in said.inner_text():
        page.keyboard.press("ArrowDown")
        row += 1
        assert row < 50
    from_right = 0
    while run_id not in said.inner_text():
        page.keyboard.press("ArrowLeft")
        from_right += 1
        assert from_right < 100
    place = page.locator(".grid-box").evaluate(PLACE)
    column = place["runs"] // COLUMN - 1 - from_right
    return place["left"] + (column + 0.5) * COLUMN, place["top"] + HEAD + (row + 0.5) * ROW


@pytest.mark.parametrize("width", [1440, 390])
def test_the_tooltip_is_beside_the_mouse_with_duration_start_and_reason(page: Page, installation: Installation, width: int) -> None:
    run_id = f"tip-{width}"
    failed_run(installation, run_id)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto("/dags/journey")
    x, y = cell_of(page, run_id, "work")
    page.mouse.move(x, y)
    tip = page.locator(".tip")

    expect(tip).to_contain_text(re.compile(r"work\s+failed, \d+\.\d+ s"))
    expect(tip).to_contain_text("started 20")
    expect(tip).to_contain_text("The work failed as it was asked to")
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert box["y"] >= 0 and box["y"] + box["height"] <= 800
    assert box["y"] - y <= 16 and y - (box["y"] + box["height"]) <= 16
    assert box["x"] <= x + 13


def test_a_click_shows_the_task_beside_the_grid_and_arrows_lead_to_other_runs(page: Page, installation: Installation) -> None:
    for run_id in ("beside-1", "beside-2"):
        failed_run(installation, run_id)
    page.goto("/dags/journey")
    x, y = cell_of(page, "beside-2", "work")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "/api/v2/" in request.url else None)
    page.mouse.click(x, y)
    panel = page.get_by_role("region", name="Details of work")

    expect(panel.get_by_role("log")).to_contain_text("The work failed as it was asked to")
    assert len([url for url in requests if url.partition("?")[0].endswith("/view")]) == 1
    assert [url for url in requests if "/logs/" in url] == []
    expect(page).to_have_url(re.compile(r"[?&]run=beside-2&task=work$"))
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"[?&]run=beside-1&task=work$"))
    expect(panel.get_by_role("link", name="beside-1")).to_be_visible()
    panel.get_by_role("button", name="The run after").click()
    expect(panel.get_by_role("link", name="beside-2")).to_be_visible()
    panel.get_by_role("link", name="Why").click()
    expect(panel.get_by_text("How it got here")).to_be_visible()
    panel.get_by_role("button", name="The run before").focus()
    page.keyboard.press("ArrowLeft")
    expect(panel.get_by_role("link", name="beside-1")).to_be_visible()
    expect(panel.get_by_text("How it got here")).to_be_visible()

    # The address has all of it; Escape and the Back button close the panel.
    page.reload()
    expect(panel.get_by_text("How it got here")).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/dags/journey$"))
    page.mouse.click(*cell_of(page, "beside-1", "talk"))
    expect(page.get_by_role("region", name="Details of talk")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("region", name="Details of talk")).to_have_count(0)

    # A phone has no room beside the grid.
    page.set_viewport_size({"width": 390, "height": 800})
    page.mouse.click(*cell_of(page, "beside-1", "work"))
    expect(page).to_have_url(re.compile(r"/dags/journey/runs/beside-1/tasks/work$"))
