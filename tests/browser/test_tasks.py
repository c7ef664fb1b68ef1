"""The list of task instances of all DAGs, to which the counts of other pages lead; and what empty lists offer."""

import re

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_counts_of_pools_and_queues_lead_to_what_they_count(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "stranded", "--run-id", "counted")
    try:
        page.goto("/queues")
        page.get_by_role("row", name="gpu_hosts").get_by_role(
            "link", name=re.compile(r"^\d+ tasks? (queued|waiting) in gpu_hosts")
        ).first.click()
        expect(page).to_have_url(re.compile(r"/tasks\?state=(queued|scheduled)&queue=gpu_hosts"))
        expect(page.locator("tbody tr", has_text="stranded / render").filter(has_text="counted")).to_be_visible()
        expect(page.locator("tbody tr", has_not_text="stranded / render")).to_have_count(0)
        page.get_by_role("button", name="Delete: Queue gpu_hosts").click()
        expect(page).to_have_url(re.compile(r"/tasks\?state=\w+$"))

        page.goto("/pools")
        page.get_by_role("row", name="default_pool").get_by_role(
            "link", name=re.compile("slots? of (queued|waiting) tasks")
        ).first.click()
        expect(page).to_have_url(re.compile(r"/tasks\?state=\w+&pool=default_pool"))
        expect(page.locator("tbody tr", has_text="render").first).to_be_visible()

        page.goto("/")
        page.locator(".tile", has_text="Queued tasks").click()
        expect(page.get_by_label("State")).to_have_value("queued")
        row = page.locator("tbody tr", has_text="render").filter(has_text="counted")
        expect(row).to_be_visible()
        row.get_by_role("link", name="Why it waits").click()
        expect(page).to_have_url(re.compile(r"/dags/stranded/runs/counted/tasks/render/-/why$"))
        expect(page.get_by_text("No live worker listens to queue 'gpu_hosts'").first).to_be_visible()
    finally:
        installation.cli("runs", "mark", "stranded", "counted", "failed")


def test_an_empty_list_of_backfills_starts_one(page: Page) -> None:
    empty = {"backfills": [], "total_entries": 0, "total_entries_limit": None, "next_cursor": None, "previous_cursor": None}
    page.route("**/api/v2/backfills?*", lambda route: route.fulfill(json=empty))
    page.goto("/backfills")
    page.locator(".empty").get_by_role("button", name="New backfill").click()
    dialog = page.get_by_role("dialog", name="New backfill")
    expect(dialog.get_by_role("button", name="Start the backfill")).to_be_disabled()
    dialog.get_by_label("DAG").fill("nothing like it")
    expect(dialog).to_contain_text("No DAG with this ID has a schedule")
    dialog.get_by_label("DAG").fill("ledger")
    expect(dialog).to_contain_text(re.compile("[67] runs will be created"))
    dialog.get_by_role("button", name="Yesterday").click()
    expect(dialog).to_contain_text("1 run will be created")
    dialog.get_by_role("button", name="Cancel").click()


def test_an_empty_list_of_dags_shows_an_example_and_the_broken_files(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.route("**/api/v2/dags?*", lambda route: route.fulfill(json={"dags": [], "total_entries": 0}))
    page.goto("/dags")
    page.get_by_role("button", name="Copy this example").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    compile(copied, "hello.py", "exec")
    assert "def hello():" in copied
    page.set_viewport_size({"width": 390, "height": 900})
    expect(page.get_by_role("button", name="Copied")).to_be_in_viewport(ratio=1)
    page.get_by_role("link", name=re.compile(r"Show \d+ DAG files? that cannot be read")).click()
    expect(page.get_by_role("heading", name=re.compile("broken.py, line"))).to_be_visible()
