"""The dialog that leads to anything by a part of its name, and does what is done most."""

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.conftest import Installation, logged_in

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_ctrl_k_finds_everything_and_acts(page: Page, installation: Installation) -> None:
    installation.cli("connections", "add", "lighthouse", "--conn-type", "postgres", "--conn-host", "db")
    installation.cli_any(
        "dags", "trigger", "journey", "--run-id", "jumped", "--conf", '{"fail": true}', "--wait", "--timeout", "120"
    )
    page.goto("/")
    page.wait_for_selector(".tiles")
    options = page.get_by_role("dialog").get_by_role("option")

    def find(text: str) -> None:
        page.keyboard.press("Control+k")
        page.keyboard.type(text)

    for text, name, heading in (
        ("lighthouse", "lighthouseconnection", "Connections"),
        ("jumped", "journey / jumpedrun, failed", "jumped"),
        ("finish", "journey / finishtask", "finish"),
        ("shop/reports", "s3://shop/reportsasset", "s3://shop/reports"),
        ("parallelism", "parallelismsetting", "Settings"),
    ):
        find(text)
        options.filter(has_text=name).first.click()
        expect(page.get_by_role("heading", name=heading).first).to_be_visible()

    # What was shown last comes first, and actions work by keyboard alone.
    page.keyboard.press("Control+k")
    expect(options.filter(has_text="recent").first).to_contain_text("journey / ")
    page.keyboard.press("Escape")
    find("journey")
    expect(options.first).to_have_text("journeyDAG")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Trigger journey")).to_be_visible()
    page.keyboard.press("Escape")
    for action, is_paused in (("Pause journey", True), ("Unpause journey", False)):
        find("journey")
        options.filter(has_text=action).click()
        expect(page.get_by_role("status").get_by_text("1 DAG paused" if is_paused else "1 DAG unpaused").last).to_be_visible()
    page.goto("/dags/journey/runs/jumped")
    expect(page.locator(".dag-facts .state")).to_have_text("failed")
    page.keyboard.press("Control+k")
    expect(options.first).to_contain_text("Clear what failed in this run")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("2 instances, in 1 run")


def test_ctrl_k_hides_what_an_account_may_not_see(browser: Browser, installation: Installation) -> None:
    installation.cli("connections", "set", "hidden_store", "--conn-type", "postgres", "--conn-host", "db")
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "vera"))
    page = context.new_page()
    page.goto("/")
    page.wait_for_selector(".tiles")
    with page.expect_response(lambda response: "/jump?text=hidden_store" in response.url) as found:
        page.keyboard.press("Control+k")
        page.keyboard.type("hidden_store")
    assert found.value.json()["connections"] == []
    expect(page.get_by_text("No matches")).to_be_visible()
    context.close()
