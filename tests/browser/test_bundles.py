"""The pages of bundles: what is live, what a version changed, and the way back; and the code that the runs of a DAG execute."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation, serious_violations

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
DAG_FILE = """
from paceline import DAG, task
import rates

with DAG("{dag_id}", schedule=None):
    @task
    def t():
        return rates.RATE
    t()
"""


def deploy(installation: Installation, folder: Path, files: dict[str, str], message: str, bundle: str = "sales") -> None:
    for path in folder.glob("*"):
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    installation.cli_any("deploy", str(folder), "--bundle", bundle, "--message", message)


def test_a_bundle_shows_its_versions_what_they_changed_and_the_way_back(
    page: Page, installation: Installation, tmp_path: Path
) -> None:
    # Another file of this name, which no run of the bundle executes.
    (Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "sales_orders.py").write_text("# in the DAGs folder\n")
    orders, rates = DAG_FILE.format(dag_id="sales_orders"), "RATE = 1\n"
    deploy(installation, tmp_path, {"sales_orders.py": orders, "rates.py": rates}, "first rates")
    deploy(
        installation,
        tmp_path,
        {"sales_orders.py": orders, "rates.py": "RATE = 2\n", "more.py": DAG_FILE.format(dag_id="more")},
        "new rates",
    )
    deploy(installation, tmp_path, {"sales_orders.py": orders + "\n1 / 0\n", "rates.py": rates}, "broken")

    page.goto("/bundles")
    row = page.get_by_role("row", name="sales")
    expect(row).to_contain_text("Version 2")
    expect(row).to_contain_text("Version 3 was refused")
    expect(row).to_contain_text("new rates")
    row.get_by_role("link", name="sales", exact=True).click()

    broken = page.get_by_role("region", name="Version 3")
    expect(broken).to_contain_text("sales_orders.py")
    expect(broken).to_contain_text("ZeroDivisionError")

    page.get_by_role("button", name="Version 2", exact=True).click()
    changes = page.get_by_role("region", name="Version 2")
    expect(changes.get_by_role("listitem").filter(has_text="more.py")).to_contain_text("added")
    expect(changes.get_by_role("link", name="more", exact=True)).to_be_visible()
    changes.get_by_role("button", name="rates.py").click()
    text = changes.get_by_role("region", name="rates.py")
    expect(text.locator(".removed")).to_contain_text("RATE = 1")
    expect(text.locator(".added")).to_contain_text("RATE = 2")

    assert serious_violations(page) == {}
    page.get_by_role("button", name="Roll back to version 1").click()
    asked = page.get_by_role("dialog")
    expect(asked.get_by_role("list", name="DAGs").get_by_role("listitem").filter(has_text="more.py")).to_contain_text("removed")
    expect(asked.get_by_role("list", name="DAGs")).to_contain_text("other code: t")
    assert asked.evaluate("dialog => dialog.closest('table')") is None, "it would be aligned like a cell"
    expect(asked.get_by_role("list", name="Files")).to_contain_text("rates.py")
    asked.get_by_role("button", name="Roll back", exact=True).click()
    first = page.get_by_role("row", name="Version 1")
    expect(first).to_contain_text("live")

    page.get_by_role("link", name="1 DAG of sales").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("sales_orders")
    installation.cli("dags", "trigger", "sales_orders", "--run-id", "sold", "--wait", "--timeout", "120")
    page.goto("/bundles/sales")
    page.get_by_role("link", name="1 run of version 1").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("sold")
    page.get_by_role("button", name="Delete: Bundle sales, version 1").click()
    expect(page).to_have_url(re.compile(r"/runs$"))

    page.goto("/dags/sales_orders/source")
    expect(page.get_by_role("region", name="Source")).to_contain_text('with DAG("sales_orders", schedule=None)')
    expect(page.get_by_text("version 1 of the bundle sales")).to_be_visible()


def test_a_stored_version_has_a_plan_before_it_is_live(page: Page, installation: Installation, tmp_path: Path) -> None:
    orders, rates = DAG_FILE.format(dag_id="risks"), "RATE = 1\n"
    old = orders.replace("schedule=None", "schedule='@daily', is_paused_upon_creation=False")
    deploy(installation, tmp_path, {"risks.py": old.replace("@task\n", "@task(pool='gold')\n"), "rates.py": rates}, "gold", "risk")
    deploy(installation, tmp_path, {"risks.py": orders, "rates.py": "RATE = 2\n"}, "without a schedule", "risk")
    deploy(
        installation,
        tmp_path,
        {"risks.py": orders, "rates.py": "RATE = 2\n", "b.py": "import paceline, no_DAG\n"},
        "broken",
        "risk",
    )

    page.goto("/bundles/risk")
    page.get_by_role("region", name="Version 3").get_by_role("link", name="Plan").click()
    expect(page.get_by_role("region", name="Plan of version 3")).to_be_visible()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "/api/v2/bundles" in request.url else None)
    page.reload()

    broken = page.get_by_role("region", name="Plan of version 3")
    expect(broken).to_contain_text("ModuleNotFoundError")
    expect(broken.get_by_role("list", name="DAGs")).to_contain_text("Nothing changes")
    expect(page.get_by_role("button", name="Roll back to version 3")).to_have_count(0)
    assert requests and [url for url in requests if "/plan" not in url] == [], "one request shows the plan"

    broken.get_by_label("Version", exact=True).select_option("1")
    plan = page.get_by_role("region", name="Plan of version 1")
    expect(plan).to_contain_text("What changes if version 1 becomes live")
    dags = plan.get_by_role("list", name="DAGs")
    expect(dags).to_contain_text("other code: t")
    expect(dags).to_contain_text("task t: pool: default_pool → gold")
    expect(dags).to_contain_text("runs created in the next 7 days: 7")
    expect(plan).to_contain_text("There is no pool gold")
    assert serious_violations(page) == {}
    plan.get_by_label("since", exact=True).select_option("3")
    expect(plan).to_contain_text("What changes from version 3 to 1")

    page.get_by_role("button", name="Roll back to version 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back", exact=True).click()
    expect(page.get_by_role("heading", name="What the live version 1")).to_be_visible()
