"""The documentation of DAGs and tasks."""

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_doc_md_is_rendered_and_sanitized(page: Page) -> None:
    page.goto("/dags/documented")
    page.get_by_role("link", name="Docs", exact=True).click()
    text = page.locator(".markdown").first
    expect(text.get_by_role("heading", name="Price lists")).to_be_visible()
    expect(text.get_by_role("row", name="load ada")).to_be_visible()
    runbook = text.get_by_role("link", name="the runbook")
    expect(runbook).to_have_attribute("href", "https://wiki.shop.internal/prices")
    expect(runbook).to_have_attribute("rel", "noopener noreferrer")
    expect(text).to_contain_text("<script>window.taken = 1</script>")
    expect(page.locator(".card", has=page.get_by_role("heading", name="load"))).to_contain_text("one for each shop")

    assert (
        text.evaluate("element => element.querySelectorAll('script, img, iframe, [onclick], [style], [href^=javascript]').length")
        == 0
    )
    assert page.evaluate("window.taken") is None


def test_the_details_of_a_task_have_its_documentation(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "documented", "--run-id", "read", "--wait", "--timeout", "120")
    page.goto("/dags/documented/runs/read/tasks/load/-/details")
    expect(page.locator(".markdown code")).to_have_text("warehouse.prices")
    page.goto("/dags/journey/docs")
    expect(page.get_by_text("No documentation yet")).to_be_visible()
