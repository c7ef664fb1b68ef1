"""The graph of a DAG with 60 tasks: what is folded, in which order, and how the way of a failure is found."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
SIXTY = """
from paceline import DAG, TaskGroup, task

with DAG("sixty", schedule=None) as sixty:
    @task
    def work(fails=False):
        if fails:
            raise RuntimeError("no such partition")

    start, end = work.override(task_id="start")(), work.override(task_id="end")()
    for name in ("zebra", "monkey", "apple"):
        with TaskGroup(name):
            for number in range(3):
                start >> work.override(task_id=f"step_{number}")(name == "monkey") >> end
    with TaskGroup("regions"):
        for number in range(49):
            start >> work.override(task_id=f"region_{number}")() >> end
"""


def test_a_graph_of_sixty_tasks_is_folded_in_order_and_shows_the_way_of_the_failure(page: Page, installation: Installation) -> None:
    (Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "sixty.py").write_text(SIXTY)
    installation.cli("dags", "reparse")
    installation.cli_any("dags", "trigger", "sixty", "--run-id", "one", "--wait", "--timeout", "120")
    page.goto("/dags/sixty/runs/one/graph")
    graph = page.locator(".graph")

    # The largest group is folded, the small ones are open.
    expect(graph.get_by_role("button", name="regions: success")).to_have_attribute("aria-expanded", "false")
    expect(graph.get_by_role("button", name="zebra")).to_have_attribute("aria-expanded", "true")
    expect(graph.locator(".graph-node")).to_have_count(12)
    tops = [graph.get_by_role("button", name=name, exact=True).bounding_box() for name in ("zebra", "monkey", "apple")]
    assert [top and top["y"] for top in tops] == sorted(top["y"] for top in tops if top)
    expect(graph.locator("path.failed[d]:not(.graph-arrow)")).to_have_count(3)
    expect(page.locator(".graph-map")).to_have_count(0)

    graph.get_by_role("button", name="regions: success").click()
    expect(graph.locator(".graph-node")).to_have_count(60)
    minimap = page.get_by_role("img", name="Overview of the graph")
    expect(minimap).to_be_visible()
    before = page.locator(".graph-plane").get_attribute("style")
    minimap.click(position={"x": 3, "y": 3})
    expect(page.locator(".graph-plane")).not_to_have_attribute("style", before or "")
    page.get_by_role("button", name="Fit").click()
    # Names grow as far as their boxes have room, and are at least nine pixels high.
    node = graph.get_by_role("link", name="region_7: success", exact=True)
    scale = page.locator(".graph-plane").evaluate("plane => new DOMMatrix(getComputedStyle(plane).transform).a")
    assert node.evaluate("node => parseFloat(getComputedStyle(node).fontSize)") * scale >= 9
    assert node.evaluate("node => node.querySelector('.clip').scrollWidth <= node.querySelector('.clip').clientWidth + 1")
