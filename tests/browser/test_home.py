"""Home: what waits, what failed, and the next runs."""

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_a_task_in_a_queue_without_a_worker_waits_in_red(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "stranded", "--run-id", "nobody")
    page.goto("/")
    waiting = page.locator(".card", has=page.get_by_role("heading", name="Waiting longest"))
    row = waiting.locator("li.wrong", has_text="No live worker listens to queue 'gpu_hosts'")
    expect(row).to_contain_text("1")
    queue = page.locator(".card", has=page.get_by_role("heading", name="Queues")).locator("li", has_text="gpu_hosts")
    expect(queue).to_have_class("wrong")
    expect(queue).to_contain_text("1 waiting")
    expect(queue).to_contain_text("no live worker")
    row.get_by_role("link").click()
    expect(page.get_by_role("row", name="gpu_hosts")).to_contain_text("no live worker")
    installation.cli("runs", "mark", "stranded", "nobody", "failed")


def test_unanswered_questions_are_among_what_waits(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "review", "--run-id", "home")
    page.goto("/")
    waiting = page.locator(".card", has=page.get_by_role("heading", name="Waiting longest"))
    expect(waiting.locator("li", has_text="wait for an answer")).to_contain_text("2")
    waiting.get_by_role("link", name="Questions wait for an answer.").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    installation.cli("runs", "mark", "review", "home", "failed")
