"""The first minute: three cards on Home, and empty lists that offer the next step."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect
from support.waiting import eventually

from browser.conftest import ROOT, Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
NEVER = """
from paceline import DAG
from paceline.operators import EmptyOperator

with DAG("never", schedule=None):
    EmptyOperator(task_id="a")
"""


@pytest.fixture
def runs(page: Page) -> Iterator[dict[str, int]]:
    """How many runs the installation says that it has had today."""
    told = {"success": 0}

    def answer(route: Route) -> None:
        found = route.fetch()
        home = found.json()
        hours = [{"hour": home["now"], "success": told["success"], "failed": 0}]
        route.fulfill(response=found, body=json.dumps(home | {"hours": hours}))

    page.route("**/api/v2/home", answer)
    yield told
    page.unroute_all(behavior="ignoreErrors")


def test_the_tour_runs_a_dag_and_can_be_skipped(page: Page, runs: dict[str, int], installation: Installation) -> None:
    demo = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "hello.py"
    shutil.copy(ROOT / "dags" / "hello.py", demo)
    eventually(lambda: "hello" in installation.cli("dags", "list"), timeout=60)
    page.goto("/")
    tour = page.get_by_role("region", name="The first minute")
    expect(tour).to_contain_text("1 / 3")
    tour.get_by_role("button", name="Next").click()
    expect(tour.get_by_role("heading")).to_have_text("Find out why")
    tour.get_by_role("button", name="Next").click()
    expect(tour.locator("pre")).to_contain_text("from paceline import DAG")
    tour.get_by_role("button", name="Back").click()
    tour.get_by_role("button", name="Back").click()
    # An example that ends within seconds, of those that `paceline demo` has.
    tour.get_by_role("button", name="Trigger hello").click()
    expect(page.get_by_role("dialog", name="Trigger hello")).to_be_visible()
    page.keyboard.press("Escape")

    tour.get_by_role("button", name="Skip").click()
    expect(tour).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", name="Parts")).to_be_visible()
    expect(tour).to_have_count(0)
    demo.unlink()


def test_the_tour_does_not_come_where_many_runs_are(page: Page, runs: dict[str, int]) -> None:
    runs["success"] = 100
    page.goto("/")
    expect(page.get_by_role("heading", name="Parts")).to_be_visible()
    expect(page.get_by_role("region", name="The first minute")).to_have_count(0)


def test_empty_lists_offer_the_next_step(page: Page, installation: Installation) -> None:
    page.goto("/runs?q=no_such_dag")
    page.get_by_role("button", name="Remove the filters").click()
    expect(page.locator("tbody tr").first).to_be_visible()
    file = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "never.py"
    file.write_text(NEVER)
    eventually(lambda: "never" in installation.cli("dags", "list"), timeout=60)
    page.goto("/dags/never/runs")
    expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
    page.locator(".empty").get_by_role("button", name="Trigger").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    file.unlink()
