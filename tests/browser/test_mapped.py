"""A mapped task: its states as one bar, equal errors together, and an error beside each instance."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
MAPPED = """
from paceline import DAG, task

with DAG("shards", schedule=None) as shards:
    @task(task_id="z_first")
    def first():
        return [1, 2, 3, 4, 5]

    @task(task_id="a_second")
    def second(number):
        if number in (2, 3):
            raise RuntimeError("no space left on the shard")
        if number == 4:
            raise RuntimeError("shard 4 is read-only")

    second.expand(number=first())
"""


def test_equal_errors_of_a_mapped_task_are_grouped(page: Page, installation: Installation) -> None:
    (Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "shards.py").write_text(MAPPED)
    installation.cli("dags", "reparse")
    installation.cli_any("dags", "trigger", "shards", "--run-id", "one", "--wait", "--timeout", "120")
    page.goto("/dags/shards/runs/one/tasks")
    names = page.get_by_role("table", name="Tasks").locator("tbody tr")
    expect(names.first).to_contain_text("z_first")
    page.goto("/dags/shards/runs/one/tasks/a_second")
    expect(page.get_by_role("img", name="5 instances: 3 failed, 2 success")).to_be_visible()
    errors = page.locator("section", has=page.get_by_role("heading", name="Errors")).locator("li")
    expect(errors).to_have_count(2)
    expect(errors.first).to_contain_text("2 \u00d7")
    expect(errors.first).to_contain_text("no space left on the shard")
    expect(page.get_by_role("row", name=re.compile("shard 4 is read-only"))).to_contain_text("a_second [3]")

    page.get_by_role("link", name="3 failed").click()
    expect(page.get_by_role("table", name="Tasks").locator("tbody tr")).to_have_count(3)
    errors.first.get_by_role("link").click()
    expect(page.get_by_role("log")).to_contain_text("no space left on the shard")
