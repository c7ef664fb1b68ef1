"""The page of a run that failed, and the list of runs."""

import json
import re
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_a_failed_run_leads_with_its_cause(page: Page, installation: Installation) -> None:
    run_id = run_of(installation, "--conf", '{"fail": true}', prefix="cause")
    page.goto(f"/dags/journey/runs/{run_id}")
    cause = page.get_by_role("region", name="Why it failed")
    expect(cause.get_by_role("heading")).to_contain_text("work failed first")
    expect(cause).to_contain_text("The work failed as it was asked to")
    expect(cause.locator("pre")).to_contain_text("raise RuntimeError")
    assert cause.bounding_box()["y"] < page.locator(".gantt").bounding_box()["y"]  # type: ignore[index]

    cause.get_by_role("link", name="Open log").click()
    expect(page.get_by_role("log")).to_contain_text("The work failed as it was asked to")
    page.go_back()
    cause.get_by_role("button", name="Clear failed").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 instances")
    dialog.get_by_role("button", name="Clear failed (2)").click()
    expect(page.locator(".dag-facts .state")).to_have_text("success")
    expect(cause).to_have_count(0)


def test_a_run_is_called_by_its_date_and_type_everywhere(page: Page, phone: Page) -> None:
    name = re.compile(r"^[A-Z][a-z]{2} \d+, 00:00 · scheduled$")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/runs?q=ledger&type=scheduled")
    page.locator("tbody").get_by_role("link", name=name).first.click()
    title = page.get_by_role("heading", level=1)
    expect(title).to_have_text(name)
    run_id = page.locator(".run-id").inner_text().strip()
    assert run_id.startswith("scheduled__20")
    page.locator(".run-id").get_by_role("button", name="Copy").click()
    expect(page.locator(".run-id").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == run_id

    page.locator(".gantt-row", has_text="close_books").click()
    crumb = page.get_by_role("navigation", name="Where this page is").get_by_role("link", name=name)
    expect(crumb).to_be_visible()
    phone.goto("/runs?q=ledger&type=scheduled")
    phone.locator("tbody").get_by_role("link", name=name).first.click()
    expect(phone.get_by_role("heading", level=1)).to_have_text(name)


def test_a_run_without_a_schedule_is_called_by_the_moment_of_its_trigger(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "documented", "--wait", "--timeout", "120")
    run_id = json.loads(installation.cli("runs", "list", "--dag", "documented", "--json"))[0]["run_id"]
    page.goto("/dags/documented/runs")
    link = page.locator("tbody").get_by_role("link", name="· manual").first
    link.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("· manual")
    expect(page.locator(".run-id")).to_contain_text(run_id)


def test_the_list_of_runs_shows_what_failed_and_marks_many(page: Page, installation: Installation) -> None:
    for _ in range(2):
        run_of(installation, "--conf", '{"fail": true}', prefix="listed")
    page.goto("/dags/journey/runs?q=listed-")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.get_by_role("link", name="work", exact=True)).to_have_class("wrong")
    expect(rows.first.locator(".took .meter i")).to_be_visible()
    expect(rows.first.locator("td[data-key=version]").get_by_role("link")).to_have_text(re.compile(r"\d+"))
    today = datetime.now(UTC).date().isoformat()
    page.get_by_label("To", exact=True).fill("2026-01-01")
    expect(page.get_by_text("No run matches these filters")).to_be_visible()
    page.get_by_label("To", exact=True).fill(today)
    page.get_by_label("From", exact=True).fill(today)
    expect(rows).to_have_count(2)

    page.get_by_label("Select all rows of this page").check()
    page.get_by_role("button", name="Mark success").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 runs will be marked success.")
    dialog.get_by_role("button", name="Mark success").click()
    expect(page.locator("tbody .state", has_text="failed")).to_have_count(0)


def test_the_note_of_a_run_is_written_and_listed(page: Page, installation: Installation) -> None:
    run_id = run_of(installation, prefix="noted")
    page.goto(f"/dags/journey/runs/{run_id}/details")
    page.get_by_role("main").get_by_role("button", name="Write a note").click()
    expect(page.get_by_role("dialog").get_by_role("textbox")).to_be_focused()
    page.get_by_role("dialog").get_by_role("textbox").fill("The store moved <b>by night</b>")
    page.keyboard.press("Enter")
    expect(page.locator(".dag-facts")).to_contain_text("The store moved <b>by night</b>")
    page.goto(f"/dags/journey/runs?q={run_id}")
    expect(page.locator("tbody tr")).to_contain_text("The store moved <b>by night</b>")

    page.goto(f"/dags/journey/runs/{run_id}")
    page.get_by_role("button", name="Menu", exact=True).click()
    page.get_by_role("menuitem", name="Write a note").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".dag-facts")).not_to_contain_text("The store moved")

    page.goto(f"/dags/journey/runs/{run_id}/tasks/work/-/log")
    page.get_by_role("button", name="Menu", exact=True).click()
    page.get_by_role("menuitem", name="Write a note").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("Slow disk")
    page.keyboard.press("Enter")
    expect(page.locator(".dag-facts")).to_contain_text("Slow disk")
