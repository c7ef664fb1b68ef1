"""A run beside the last success: what differs between them."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
CHANGED = """
import time
from paceline import DAG, task

with DAG("changed", schedule=None) as changed:
    @task
    def load():
        time.sleep({seconds})
    @task
    def {second}():
        pass
    load() >> {second}()
"""


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


def test_another_version_slower_tasks_and_other_tasks_are_seen(page: Page, installation: Installation) -> None:
    file = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "changed.py"
    for run_id, seconds, second in (("before", 0, "check"), ("after", 4, "publish")):
        file.write_text(CHANGED.format(seconds=seconds, second=second))
        installation.cli("dags", "reparse")
        conf = f'{{"region": "{second}"}}'
        installation.cli("dags", "trigger", "changed", "--run-id", run_id, "--conf", conf, "--wait", "--timeout", "120")
    page.goto("/dags/changed/runs/after/compare")
    tasks = page.get_by_role("table", name="Tasks")
    expect(tasks.get_by_role("row", name="load")).to_contain_text(re.compile(r"[34]\.\d\d s slower"))
    expect(tasks.get_by_role("row", name="check")).to_contain_text("success→none")
    expect(tasks.get_by_role("row", name="publish")).to_contain_text("none→success")
    facts = page.locator(".compare-facts")
    expect(facts.get_by_role("link", name="1", exact=True)).to_be_visible()
    expect(facts.locator("strong").get_by_role("link", name="2", exact=True)).to_be_visible()
    expect(facts).to_contain_text(re.compile(r"Code\s*Bundle dags-folder, version \d+\s*Bundle dags-folder, version \d+"))
    values = page.get_by_role("region", name="What differs").first
    expect(values).to_contain_text("region")
    expect(values.locator(".removed")).to_contain_text("check")
    expect(values.locator(".added")).to_contain_text("publish")
    code = page.get_by_role("region", name="Code", exact=True)
    expect(code.locator(".removed").first).to_contain_text("time.sleep(0)")
    expect(code.locator(".added").first).to_contain_text("time.sleep(4)")
    expect(code).to_contain_text("4 lines without a change")
    page.get_by_role("link", name="Show the whole file").click()
    expect(page.locator(".source .removed").first).to_contain_text("time.sleep(0)")
    expect(page.locator(".source .added").first).to_contain_text("time.sleep(4)")
