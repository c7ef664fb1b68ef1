"""From the first run of the flights pipeline to a broken task and its repair, without a terminal."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]
#: For a run of the pipeline on a busy machine.
RUN_MS = 300_000


def test_flights_is_run_broken_explained_and_repaired(page: Page) -> None:
    page.goto("/dags/flights")
    page.get_by_role("button", name="Trigger").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    page.get_by_role("status").get_by_role("link", name="Open").click()
    page.wait_for_url("**/dags/flights/runs/*")
    run = page.url

    # The graph follows the run.
    page.goto(f"{run}/graph")
    expect(page.locator(".graph-node.s-success", has_text="unpack")).to_be_visible(timeout=RUN_MS)
    page.locator(".graph-node.s-running", has_text="ingest").click(timeout=RUN_MS)
    expect(page.locator(".log-live").or_(page.get_by_text("end of log"))).to_be_visible()

    # A task breaks while it runs.
    page.get_by_role("button", name="Menu").last.click()
    page.get_by_role("menuitem", name="Mark failed").click()
    page.get_by_role("dialog").get_by_role("button", name="Mark failed (1)").click()
    expect(page.locator(".dag-facts .state")).to_have_text("failed", timeout=RUN_MS)
    page.goto(f"{run}/tasks/report/-/why")
    expect(page.locator(".card li.row")).to_contain_text("It has ended as upstream_failed", timeout=RUN_MS)

    page.goto(f"{run}/tasks/ingest/-/why")
    page.get_by_role("button", name="Clear", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Clear (").click()
    page.goto(run)
    expect(page.locator(".dag-facts .state")).to_have_text("success", timeout=RUN_MS)
    page.locator(".gantt-row", has_text="validate").click()
    expect(page.get_by_text("end of log")).to_be_visible()
    page.goto("/dags/flights")
    grid = page.get_by_role("application")
    grid.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".visually-hidden[role=status]")).to_contain_text("success")
