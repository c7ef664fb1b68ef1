"""The pages under a path of another site."""

import pytest
from playwright.sync_api import Browser, expect

from browser.conftest import PASSWORD, Installation
from browser.proxy import PREFIX, below_a_prefix

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_pages_and_live_updates_work_below_a_prefix_behind_a_proxy(browser: Browser, installation: Installation) -> None:
    with below_a_prefix(installation.environment) as address:
        context = browser.new_context()
        context.set_default_timeout(60_000)
        page = context.new_page()
        problems: list[str] = []
        elsewhere: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: elsewhere.append(request.url) if not request.url.startswith(address) else None)

        page.goto(f"{address}/dags/journey")
        page.get_by_label("User name").fill("ada")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Trigger").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
        page.get_by_role("status").get_by_role("link", name="Open").click()

        # Without a reload: the event stream passes the proxy.
        expect(page.locator(".dag-facts .state")).to_have_text("success", timeout=60_000)
        page.locator(".gantt-row", has_text="talk").click()
        expect(page.get_by_role("log")).to_contain_text("line 4999")
        assert page.url.startswith(f"{address}/dags/journey/runs/")
        page.reload()
        expect(page.get_by_role("log")).to_contain_text("line 4999", timeout=60_000)
        assert {cookie["path"] for cookie in context.cookies()} == {PREFIX}
        assert (problems, [url for url in elsewhere if not url.startswith(("data:", "blob:"))]) == ([], [])
        context.close()
