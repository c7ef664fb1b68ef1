"""Pages of who operates an installation: rights, the audit log, import errors and the zone of times."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.conftest import PASSWORD, Installation, logged_in
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: Pauses or unpauses a DAG with the session of the page; the status of the answer.
PAUSE = """
([dag, isPaused]) => fetch(`/api/v2/dags/${dag}`, {
    method: 'PATCH', body: JSON.stringify({is_paused: isPaused}),
    headers: {'Content-Type': 'application/json', 'X-CSRF-Token': document.cookie.match(/paceline_csrf=([^;]+)/)[1]},
}).then(answer => answer.status)
"""


REPAIRED = """
from pathlib import Path
from paceline import DAG
from paceline.operators import EmptyOperator

if not Path("{share}").exists():
    raise RuntimeError("The share is away")
with DAG("repaired", schedule=None):
    EmptyOperator(task_id="a")
"""


@pytest.fixture
def limited(browser: Browser, installation: Installation) -> Iterator[Page]:
    """A page of an account that may look at DAGs with the tag `tests` only. A refusal on its console fails the test."""
    installation.cli("users", "create", "tim", "--tag", "tests=viewer", "--password", PASSWORD)
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "tim"))
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert problems == []


def test_a_limited_account_sees_what_it_may_do_and_meets_no_refusal(limited: Page, installation: Installation) -> None:
    limited.goto("/")
    limited.wait_for_selector(".tiles")
    menu = limited.get_by_role("navigation", name="Menu")
    expect(menu.get_by_role("link", name="Pools")).to_have_count(0)
    limited.goto("/pools")
    expect(limited.get_by_role("heading", name="Your account may not open this page")).to_be_visible()
    expect(limited.get_by_text("It needs the role viewer on the whole installation: ask an administrator.")).to_be_visible()
    expect(limited.get_by_text("Your account has: viewer on DAGs with the tag tests.")).to_be_visible()
    limited.goto("/dags/journey")
    expect(limited.get_by_text("view only")).to_be_visible()
    expect(limited.get_by_role("button", name="Trigger")).to_have_count(0)
    run_id = run_of(installation, prefix="limited")
    whole = {"/assets", "/tables", "/queues", "/pools", "/bundles", "/variables", "/connections", "/settings"}
    for path in (
        "/", "/dags", "/runs", "/tasks", "/actions", "/backfills", "/imports", "/audit", *sorted(whole),
        *(f"/dags/journey{tab}" for tab in ("/graph", "/runs", "/durations", "/calendar", "/source", "/docs", "/details")),
        *(f"/dags/journey/runs/{run_id}{tab}" for tab in ("", "/graph", "/tasks", "/compare", "/details")),
        *(f"/dags/journey/runs/{run_id}/tasks/work/-/{tab}" for tab in ("log", "why", "xcoms", "events", "details")),
    ):  # fmt: skip
        limited.goto(path)
        limited.wait_for_selector("main .head + *")
        expect(limited.locator("[aria-busy]")).to_have_count(0)
        expect(limited.get_by_role("alert")).to_have_count(0)
        if path in whole:
            expect(limited.get_by_text("ask an administrator")).to_be_visible()


def test_an_account_may_change_the_runs_of_some_dags(browser: Browser, installation: Installation) -> None:
    rights = ("--tag", "tests=viewer", "--tag", "sales=operator")
    installation.cli("users", "create", "mia", *rights, "--password", PASSWORD)
    run_id = run_of(installation, "--conf", '{"fail": true}', prefix="foreign")
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "mia"))
    page = context.new_page()
    page.goto("/dags/inventory/runs")
    expect(page.get_by_label("Select all rows of this page")).to_be_visible()
    page.goto("/dags/journey/runs")
    expect(page.locator("tbody tr").first).to_be_visible()
    expect(page.get_by_label("Select all rows of this page")).to_have_count(0)
    # In lists across DAGs, only the rows of its own DAGs can be chosen.
    installation.cli("dags", "trigger", "inventory", "--wait")
    page.goto("/runs")
    rows = page.locator("tbody tr")
    own = rows.filter(has=page.get_by_role("link", name="inventory", exact=True)).first.get_by_label("Select the row")
    foreign = rows.filter(has=page.get_by_role("link", name="journey", exact=True)).first.get_by_label("Select the row")
    expect(own).to_be_enabled()
    expect(foreign).to_be_disabled()
    page.get_by_label("Select all rows of this page").check()
    expect(own).to_be_checked()
    expect(foreign).not_to_be_checked()
    page.goto("/dags")
    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="journey", exact=True))
    expect(row.get_by_label("Select the row")).to_be_disabled()
    # Addresses that open a dialog, as "Go to anything" has them.
    for path in ("/dags/journey?do=trigger", f"/dags/journey/runs/{run_id}?do=clear-failed"):
        page.goto(path)
        expect(page.get_by_text("view only").first).to_be_visible()
        expect(page).not_to_have_url(re.compile("do="))
        expect(page.get_by_role("dialog")).to_have_count(0)
    context.close()


def test_an_account_without_a_dag_is_not_told_to_write_one(browser: Browser, installation: Installation) -> None:
    installation.cli("users", "create", "nora", "--tag", "unused=operator", "--password", PASSWORD)
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "nora"))
    page = context.new_page()
    page.goto("/dags")
    expect(page.get_by_role("heading", name="No DAG that you may see")).to_be_visible()
    expect(page.get_by_text("Your account has: operator on DAGs with the tag unused.")).to_be_visible()
    expect(page.get_by_text("DAGs folder")).to_have_count(0)
    page.goto("/")
    expect(page.get_by_role("heading", name="Waiting longest")).to_be_visible()
    expect(page.get_by_role("region", name="The first minute")).to_have_count(0)
    context.close()


def test_a_viewer_sees_on_every_page_which_right_is_missing(browser: Browser, installation: Installation) -> None:
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "vera"))
    page = context.new_page()
    refused: list[str] = []
    page.on("response", lambda response: refused.append(response.url) if response.status == 403 else None)
    whole, any_dag = "the role operator on the whole installation", "the role operator on a DAG"
    for path, missing in {
        "/dags": any_dag, "/runs": any_dag, "/actions": any_dag, "/backfills": any_dag, "/imports": any_dag,
        "/assets": whole, "/queues": whole, "/pools": whole,
        "/dags/journey": "the role operator on this DAG", "/dags/journey/runs": "the role operator on this DAG",
    }.items():  # fmt: skip
        page.goto(path)
        page.wait_for_selector("main .head + *")
        expect(page.locator("[aria-busy]")).to_have_count(0)
        expect(page.locator(".head").get_by_text("view only")).to_contain_text(f"needs {missing}: ask an administrator")
    for path, role in {"/variables": "operator", "/connections": "operator", "/settings": "admin"}.items():
        page.goto(path)
        expect(page.get_by_text(f"It needs the role {role} on the whole installation: ask an administrator.")).to_be_visible()
    context.close()
    assert refused == []


def test_the_audit_log_folds_equal_changes_into_one_sentence(page: Page, browser: Browser, installation: Installation) -> None:
    page.goto("/dags")
    for is_paused in (False, True):
        for dag_id in ("features", "ledger", "review"):
            assert page.evaluate(PAUSE, [dag_id, is_paused]) == 200
    for dag_id in ("features", "ledger", "review"):
        installation.cli("dags", "unpause", dag_id)
    page.goto("/audit?owner=ada")
    rows = page.get_by_role("table", name="Audit log").locator("tbody tr")
    expect(rows.first).to_contain_text("paused 3 DAGs")
    rows.first.get_by_role("button", name="paused 3 DAGs").click()
    for dag_id in ("features", "ledger", "review"):
        expect(page.get_by_role("dialog").get_by_role("link", name=dag_id)).to_be_visible()
    page.keyboard.press("Escape")
    installation.cli("users", "create", "una", "--role", "viewer", "--password", PASSWORD)
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "una"))
    other = context.new_page()
    other.goto("/dags")
    assert other.evaluate(PAUSE, ["features", True]) == 403
    context.close()
    page.goto("/audit?owner=una&event=patch")
    tried = rows.first.get_by_role("button", name="tried to pause a DAG, which was refused")
    expect(tried).to_have_class(re.compile("wrong"))
    expect(rows.first.locator(".tag.bad")).to_have_text("403")
    page.goto("/audit?owner=ada")
    today = page.evaluate("new Date().toISOString().slice(0, 10)")
    page.get_by_label("From").fill("2020-01-01")
    page.get_by_label("To", exact=True).fill("2020-01-02")
    expect(page.get_by_text("No entry matches these filters")).to_be_visible()
    page.get_by_label("To", exact=True).fill(today)
    expect(rows.first).to_contain_text("paused 3 DAGs")


def test_an_import_error_names_its_line_and_is_parsed_again(page: Page, installation: Installation, tmp_path: Path) -> None:
    page.goto("/imports")
    expect(page.get_by_role("img", name="1 DAG file cannot be read")).to_be_visible()
    expect(page.get_by_role("heading", name="broken.py, line 5")).to_be_visible()
    expect(page.locator("p.wrong")).to_have_text("RuntimeError: The variable WAREHOUSE_URL is not set")

    # Its cause is outside of the file, which therefore stays as it is.
    file, share = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "repaired.py", tmp_path / "share"
    file.write_text(REPAIRED.format(share=share))
    card = page.locator(".card", has=page.get_by_role("heading", name="repaired.py"))
    expect(card).to_contain_text("The share is away")
    expect(page.get_by_role("img", name="2 DAG files cannot be read")).to_be_visible()
    share.touch()
    card.get_by_role("button", name="Parse again").click()
    expect(page.get_by_role("status").get_by_text("The file will be parsed soon")).to_be_visible()
    # Sooner than an unchanged file is parsed by itself.
    expect(card).to_have_count(0, timeout=15_000)
    file.unlink()


def test_times_are_in_the_chosen_zone_and_cron_is_in_words(page: Page, installation: Installation) -> None:
    run_id = "zoned"
    installation.cli("dags", "trigger", "inventory", "--run-id", run_id, "--wait", "--timeout", "120")
    page.goto("/dags/inventory")
    expect(page.locator(".dag-facts")).to_contain_text("every hour")
    page.get_by_title("The zone of all times").click()
    page.get_by_label("Search a zone").fill("tokyo")
    page.keyboard.press("Enter")
    expect(page.get_by_title("The zone of all times")).to_have_text("Asia/Tokyo")
    utc = page.request.get(f"/api/v2/dags/inventory/dagRuns/{run_id}").json()["start_date"]
    page.goto(f"/dags/inventory/runs/{run_id}/details")
    local = page.evaluate("at => new Date(Date.parse(at) + 9 * 3600000).toISOString().slice(0, 16).replace('T', ' ')", utc)
    expect(page.locator("dl").first).to_contain_text(local)
    page.goto("/dags/inventory")
    page.get_by_role("button", name="UTC", exact=True).click()
    expect(page.get_by_title("The zone of all times")).to_have_text("UTC")
