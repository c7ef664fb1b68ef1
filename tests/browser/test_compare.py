"""A run beside the last success: what differs between them."""

import re

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_a_failed_run_is_compared_with_the_last_success(page: Page, installation: Installation) -> None:
    for run_id, conf in (("fine", "{}"), ("worse", '{"fail": true}')):
        installation.cli_any("dags", "trigger", "journey", "--run-id", run_id, "--conf", conf, "--wait", "--timeout", "120")
    page.goto("/dags/journey/runs/worse")
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.locator("main").get_by_role("link", name="fine")).to_be_visible()
    tasks = page.get_by_role("table", name="Tasks")
    expect(tasks.locator("tbody tr")).to_have_count(2)
    expect(tasks.get_by_role("row").nth(1)).to_contain_text("success→failed")
    expect(tasks).to_contain_text("success→upstream failed")
    page.get_by_role("checkbox", name="Only differences").uncheck()
    expect(tasks.locator("tbody tr")).to_have_count(3)
    values = page.get_by_role("region", name="What differs")
    expect(values.first).to_contain_text("fail")
    expect(values.first).to_contain_text("false")
    # The task that failed upstream returned nothing.
    expect(values.last).to_contain_text('{"answer":42}')

    page.get_by_role("checkbox", name="Only differences").check()
    page.get_by_label("Compare with").select_option(
        label=page.get_by_label("Compare with").locator("option", has_text="manual, success").first.inner_text()
    )
    expect(page).to_have_url(re.compile(r"compare\?with=fine$"))
    expect(tasks.locator("tbody tr")).to_have_count(2)
