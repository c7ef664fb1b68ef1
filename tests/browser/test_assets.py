"""The page of an asset: its lineage across DAGs, how fresh it is, and its updates with their runs."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
CHAIN = """
from paceline import DAG, Asset, task

raw, clean = Asset("s3://lake/raw"), Asset("s3://lake/clean")

with DAG("load_raw", schedule=None):
    @task(outlets=[raw])
    def load():
        pass
    load()

with DAG("clean_up", schedule=[raw]):
    @task(outlets=[clean])
    def tidy():
        pass
    tidy()

with DAG("report_on", schedule=[clean]):
    @task
    def report():
        pass
    report()
"""


def test_an_asset_has_a_page_with_lineage_and_updates(page: Page, installation: Installation) -> None:
    (Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "chain.py").write_text(CHAIN)
    installation.cli("dags", "reparse")
    installation.cli("dags", "trigger", "load_raw", "--run-id", "one", "--wait", "--timeout", "120")
    page.goto("/assets")
    page.get_by_role("link", name="s3://lake/raw").click()
    lineage = page.get_by_role("region", name="Lineage")

    expect(lineage.locator("a")).to_have_count(5)
    expect(lineage.locator(".graph-plane > svg > path")).to_have_count(4)
    updates = page.get_by_role("table", name="Updates")
    expect(updates.get_by_role("link", name="load_raw load")).to_be_visible()
    expect(updates.get_by_role("link", name="clean_up")).to_contain_text("success")
    page.get_by_role("button", name="Record an update").click()
    expect(updates.locator("tbody tr")).to_have_count(2)
    expect(updates).to_contain_text("recorded by hand")
    facts = page.locator(".dag-facts")
    expect(facts).to_contain_text(re.compile(r"Updated (just now|\d+ s ago)"))
    expect(facts).not_to_contain_text("usually")
    page.get_by_role("button", name="Record an update").click()
    expect(facts).to_contain_text(re.compile(r"usually every [\d.]+ (ms|s)"))

    page.reload()
    lineage.get_by_role("link", name="s3://lake/clean").click()
    expect(page.get_by_role("heading", name="s3://lake/clean")).to_be_visible()
    lineage.get_by_role("link", name="report_on").click()
    expect(page.get_by_role("heading", name="report_on")).to_be_visible()
