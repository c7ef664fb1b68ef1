"""Users at work in a real browser, on a real stack."""

import json
import re

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser.conftest import PASSWORD, Installation, logged_in

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: Sets the visibility that a page reads from the browser.
VISIBLE = """
visible => {
    Object.defineProperty(document, 'hidden', {value: !visible, configurable: true})
    document.dispatchEvent(new Event('visibilitychange'))
}
"""


def run_of(installation: Installation, *options: str, prefix: str = "run") -> str:
    """The ID of a run of the DAG journey that has ended."""
    run_id = f"{prefix}-{abs(hash((options, installation.cli('runs', 'list', '--dag', 'journey'))))}"
    installation.cli_any("dags", "trigger", "journey", "--run-id", run_id, "--wait", "--timeout", "120", *options)
    return run_id


def task(run_id: str, task_id: str) -> str:
    return f"/dags/journey/runs/{run_id}/tasks/{task_id}"


def test_a_person_logs_in_triggers_a_dag_and_watches_it_turn_green(browser: Browser, installation: Installation) -> None:
    page = browser.new_context(base_url=installation.url).new_page()
    page.goto("/dags")
    page.get_by_label("User name").fill("ada")
    page.get_by_label("Password").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("The user name or the password is wrong.")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="journey", exact=True).click()
    page.get_by_role("button", name="Trigger").first.click()
    expect(page.get_by_label("Fail at first")).not_to_be_checked()
    page.get_by_role("dialog").get_by_role("button", name="Trigger").click()
    page.get_by_role("status").get_by_role("link", name="Open").click()

    # Without a reload: the event stream updates the page.
    expect(page.locator(".dag-facts .state")).to_have_text("success")
    expect(page.locator(".gantt-row", has_text="finish")).to_be_visible()
    page.get_by_role("link", name="Callbacks").click()
    expect(page.get_by_text("No callback has printed anything")).to_be_visible()
    page.get_by_role("link", name="Details").click()
    expect(page.locator(".history")).to_contain_text("success")
    page.context.close()


def test_a_failed_task_is_explained_cleared_with_its_downstream_and_finishes(page: Page, installation: Installation) -> None:
    run_id = run_of(installation, "--conf", '{"fail": true}')
    page.goto(f"/dags/journey/runs/{run_id}")
    page.locator(".gantt-row", has_text="work").click()
    expect(page.get_by_role("log")).to_contain_text("The work failed as it was asked to")
    page.get_by_role("link", name="Why").click()
    expect(page.get_by_text("How it got here")).to_be_visible()
    expect(page.locator(".history")).to_contain_text("The work failed as it was asked to")

    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("2 task instances will be cleared")
    page.get_by_role("checkbox", name="Downstream tasks").uncheck()
    expect(page.get_by_role("dialog")).to_contain_text("1 task instance will be cleared")
    page.get_by_role("checkbox", name="Downstream tasks").check()
    page.get_by_role("dialog").get_by_role("button", name="Clear (2)").click()

    expect(page.get_by_role("status").get_by_text("2 task instances cleared")).to_be_visible()
    expect(page.locator(".dag-facts .state")).to_have_text("success")
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.get_by_role("group", name="Try")).to_be_visible()
    page.get_by_role("link", name="Events", exact=True).click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("ada")
    expect(page.get_by_role("row", name="cleared tasks")).to_have_count(1)
    page.goto(f"/dags/journey/runs/{run_id}")
    expect(page.locator(".dag-facts .state")).to_have_text("success")


@pytest.mark.parametrize(
    ("conf", "task_id"),
    [("{}", "talk"), ("{}", "finish"), ('{"fail": true}', "work"), ('{"fail": true}', "finish")],
    ids=["it succeeded", "it waited for another task", "it failed", "its upstream task failed"],
)
def test_the_page_explains_a_task_as_the_api_does(page: Page, installation: Installation, conf: str, task_id: str) -> None:
    run_id = run_of(installation, "--conf", conf)
    _is_explained(page, installation, "journey", run_id, task_id)


def test_the_page_explains_waiting_tasks_as_the_api_does(page: Page, installation: Installation) -> None:
    installation.cli("dags", "pause", "journey")
    installation.cli("dags", "trigger", "journey", "--run-id", "paused")
    try:
        _is_explained(page, installation, "journey", "paused", "talk")
        _is_explained(page, installation, "journey", "paused", "finish")
        expect(page.get_by_text("DAG 'journey' is paused")).to_be_visible()
    finally:
        installation.cli("dags", "unpause", "journey")
        installation.cli("runs", "mark", "journey", "paused", "failed")


def with_moments(text: str) -> str:
    """A sentence of the server as pages show it in UTC."""
    return re.sub(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?\+00:00", r"\1 \2 UTC", text)


def _is_explained(page: Page, installation: Installation, dag_id: str, run_id: str, task_id: str) -> None:
    path = f"{installation.url}/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/why"
    page.goto(f"/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/-/why")
    found = page.request.get(path).json()
    command = json.loads(installation.cli("tasks", "why", dag_id, run_id, task_id, "--json"))

    assert command["waiting_for"] == found["waiting_for"] and found["waiting_for"]
    expect(page.locator(".card li.row")).to_have_text([with_moments(text) for text in found["waiting_for"]])
    assert [step["text"] for step in command["history"]] == [step["text"] for step in found["history"]]
    if found["history"]:
        expect(page.locator(".history li .grow")).to_contain_text([with_moments(step["text"]) for step in found["history"]])


def test_the_server_searches_the_whole_log(page: Page, installation: Installation) -> None:
    page.goto(task(run_of(installation), "talk"))
    log = page.get_by_role("log")
    expect(log).to_contain_text("line 4999")
    page.get_by_placeholder("Search the whole log").fill("NEEDLE")
    expect(page.get_by_text("1 / 1 match")).to_be_visible()
    expect(log.locator("mark")).to_have_text("needle")
    expect(log.locator(".current")).to_contain_text("line 4321")

    page.get_by_placeholder("Search the whole log").fill("line 1")
    expect(page.get_by_text("1 / 1,111 matches")).to_be_visible()
    log.click()
    page.keyboard.press("n")
    expect(page.get_by_text("2 / 1,111 matches")).to_be_visible()


def test_a_log_grows_while_its_task_runs(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "long_import", "--run-id", "tail")
    page.goto("/dags/long_import/runs/tail/tasks/stream/-/log")
    expect(page.locator(".log-live")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("chunk 3:")
    expect(page.get_by_role("log")).to_contain_text("chunk 5:")
    installation.cli("runs", "mark", "long_import", "tail", "failed")
    expect(page.get_by_text("end of log")).to_be_visible()


def test_failed_tasks_of_all_runs_that_fit_are_cleared_after_a_preview(page: Page, installation: Installation) -> None:
    for _ in range(2):
        run_of(installation, "--conf", '{"fail": true}', prefix="broken")
    page.goto("/dags/journey/runs?q=broken-")
    page.get_by_label("Select all rows of this page").check()
    page.get_by_role("button", name="Clear failed").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("4 instances, in 2 runs")
    dialog.get_by_role("button", name="Clear failed (4)").click()
    expect(page.get_by_role("status").get_by_text("4 task instances cleared")).to_be_visible()
    expect(page.locator("tbody .state", has_text="failed")).to_have_count(0)


def test_a_backfill_shows_its_runs_before_it_makes_them(page: Page, installation: Installation) -> None:
    page.goto("/dags/inventory")
    page.get_by_role("button", name="Backfill").click()
    page.get_by_label("From (UTC)").fill("2026-02-01T00:00")
    page.get_by_label("To (UTC)").fill("2026-02-01T02:00")
    expect(page.get_by_text("3 runs will be created")).to_be_visible()
    page.get_by_role("button", name="Start the backfill (3)").click()
    expect(page.get_by_role("cell", name="3 / 3")).to_be_visible()


def test_a_person_answers_the_questions_of_tasks(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "review", "--run-id", "asked")
    page.goto("/dags/review/runs/asked/tasks/approve/-/details")
    page.locator(".note").get_by_role("button", name="Respond").click()
    dialog = page.get_by_role("dialog", name="Publish the price list of week 48?")
    expect(dialog).to_contain_text("412 prices change")
    dialog.get_by_role("button", name="Cancel").click()

    page.goto("/actions")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("img", name="2 tasks waiting for an answer")).to_be_visible()
    page.locator("tbody tr", has_text="price list").get_by_role("button", name="Respond").click()
    dialog.get_by_role("button", name="Respond").click()
    expect(dialog).to_contain_text("Choose an answer.")
    dialog.get_by_label("Approve").check()
    dialog.get_by_role("button", name="Respond").click()
    sure = page.get_by_role("dialog", name="Send this answer?")
    sure.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Respond").click()
    expect(sure).to_contain_text("Approve")
    sure.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").get_by_text("The answer is stored.")).to_be_visible()

    page.locator("tbody tr", has_text="campaign").get_by_role("button", name="Respond").click()
    dialog = page.get_by_role("dialog", name="Where is the campaign shown?")
    dialog.get_by_label("Shop").check()
    dialog.get_by_label("Newsletter").check()
    dialog.get_by_label("Budget").fill("800")
    dialog.get_by_role("button", name="Respond").click()
    sure.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Nothing waits for an answer")).to_be_visible()
    expect(page.get_by_role("img", name="waiting for an answer")).to_have_count(0)
    page.get_by_role("button", name="Answered").click()
    expect(page.locator("tbody tr", has_text="campaign")).to_contain_text("Shop, Newsletter")
    page.goto("/dags/review/runs/asked")
    expect(page.locator(".dag-facts .state")).to_have_text("success")
    page.goto("/dags/review/runs/asked/tasks/channels/-/xcoms")
    expect(page.get_by_text('"budget": 800')).to_be_visible()


def test_the_theme_is_remembered(page: Page) -> None:
    page.goto("/")
    page.wait_for_selector(".tiles")
    page.keyboard.press("Shift+T")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.wait_for_selector(".tiles")

    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark == "rgb(15, 17, 21)"


def test_a_person_gets_to_a_log_without_a_mouse(page: Page, installation: Installation) -> None:
    run_of(installation)
    page.goto("/")
    page.wait_for_selector(".tiles")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="DAGs")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("journey")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    grid = page.get_by_role("application")
    expect(grid).to_be_visible()
    grid.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".visually-hidden[role=status]")).to_contain_text("talk")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log")).to_contain_text("line 4999")
    page.keyboard.press("Control+k")
    page.keyboard.type("Pools")
    expect(page.get_by_role("dialog").get_by_role("option").first).to_have_text("Poolspage")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Pools")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_hidden_page_sends_no_requests_and_catches_up(page: Page, installation: Installation) -> None:
    requests: list[str] = []
    page.goto("/runs")
    expect(page.locator("tbody tr").or_(page.get_by_text("No run fits"))).not_to_have_count(0)
    page.clock.install()
    page.on("request", lambda request: requests.append(request.url))
    with page.expect_event("requestfailed", lambda request: "/api/v2/events" in request.url):
        page.evaluate(VISIBLE, False)
    requests.clear()

    # All timers fire at once.
    page.clock.run_for(120_000)
    run_id = run_of(installation)
    assert requests == []
    page.evaluate(VISIBLE, True)
    expect(page.get_by_role("link", name=run_id)).to_be_visible()


def test_a_person_does_all_by_keyboard(browser: Browser, installation: Installation) -> None:
    context = browser.new_context(base_url=installation.url, viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    log_in_by_keyboard(page)
    trigger_and_search_by_keyboard(page)
    clear_by_keyboard(page, installation)
    backfill_by_keyboard(page)
    drain_by_keyboard(page)
    page.keyboard.press("Shift+T")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    context.close()


def log_in_by_keyboard(page: Page) -> None:
    page.goto("/")
    page.get_by_label("User name").wait_for()
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_selector(".tiles")


def trigger_and_search_by_keyboard(page: Page) -> None:
    """Trigger from the form, watch the run fail, and search the log of a task."""
    dialog = page.get_by_role("dialog")
    page.keyboard.press("Control+k")
    page.keyboard.type("journey")
    expect(page.get_by_role("option").first).to_have_text("journeyDAG")
    page.keyboard.press("Enter")
    pressed(page.get_by_role("button", name="Trigger").first)
    pressed(dialog.get_by_label("Fail at first"), "Space")
    pressed(dialog.get_by_role("button", name="Trigger"))
    pressed(page.get_by_role("status").get_by_role("link", name="Open"))
    expect(page.locator(".dag-facts .state")).to_have_text("failed")

    # Search the log of a task.
    pressed(page.locator("a.gantt-row", has_text="talk"))
    expect(page.get_by_text("end of log")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("needle")
    expect(page.get_by_text("1 / 1 match")).to_be_visible()


def clear_by_keyboard(page: Page, installation: Installation) -> None:
    """Clear with a preview until the run succeeds; then clear the failed tasks of all runs that a filter selects."""
    dialog = page.get_by_role("dialog")
    page.go_back()
    pressed(page.get_by_role("button", name="Clear", exact=True))
    expect(dialog).to_contain_text("2 instances")
    pressed(dialog.get_by_role("button", name="Clear"))
    expect(page.locator(".dag-facts .state")).to_have_text("success")

    run_id = run_of(installation, "--conf", '{"fail": true}')
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Filter by name")).to_be_focused()
    page.keyboard.type("journey")
    expect(page).to_have_url(re.compile("q=journey"))
    # All rows are selected next: those of other DAGs must have left.
    expect(page.locator("tbody tr", has_not_text="journey")).to_have_count(0)
    expect(page.get_by_role("link", name=run_id)).to_be_visible()
    pressed(page.get_by_label("Select all rows of this page"), "Space")
    pressed(page.get_by_role("button", name="Clear failed"))
    pressed(dialog.get_by_role("button", name="Clear failed"))
    expect(page.get_by_role("status").get_by_text("cleared")).to_be_visible()


def backfill_by_keyboard(page: Page) -> None:
    """Start a backfill, with its times typed part by part."""
    dialog = page.get_by_role("dialog")
    page.keyboard.press("Control+k")
    page.keyboard.type("inventory")
    expect(dialog.get_by_role("option").first).to_have_text("inventoryDAG")
    page.keyboard.press("Enter")
    pressed(page.get_by_role("button", name="Backfill"))
    for label, hour in (("From (UTC)", "12"), ("To (UTC)", "01")):
        page.get_by_label(label).focus()
        page.keyboard.type("03012026")
        page.keyboard.press("ArrowRight")
        page.keyboard.type(f"{hour}00AM")
    expect(page.get_by_text("2 runs will be created")).to_be_visible()
    pressed(page.get_by_role("button", name="Start the backfill (2)"))
    expect(page.get_by_role("cell", name="2 / 2")).to_be_visible()


def drain_by_keyboard(page: Page) -> None:
    dialog = page.get_by_role("dialog")
    page.keyboard.press("g")
    page.keyboard.press("q")
    worker = page.locator(".workers .card", has_text=re.compile("spark"))
    pressed(worker.get_by_role("button", name="Drain"))
    expect(dialog).to_contain_text("finishes its running tasks")
    pressed(dialog.get_by_role("button", name="Drain"))
    expect(worker.get_by_text("draining").or_(worker.get_by_text("started just now"))).to_be_visible()


def pressed(target: Locator, key: str = "Enter") -> None:
    """Press a key on an element that Tab reaches."""
    expect(target).to_be_enabled()
    assert target.evaluate("element => element.tabIndex") >= 0
    target.press(key)


def test_the_login_address_of_airflow_is_the_first_page(page: Page) -> None:
    page.goto("/login")

    expect(page).to_have_url(re.compile(r"://[^/]+/$"))
    expect(page.get_by_role("heading", name="Home")).to_be_visible()


def test_a_phone_shows_the_tab_that_is_open(page: Page) -> None:
    page.set_viewport_size({"width": 380, "height": 900})
    page.goto("/dags/orders/details")

    expect(page.get_by_role("navigation", name="orders").get_by_role("link", name="Details")).to_be_in_viewport(ratio=0.9)


def test_variables_are_added_changed_and_deleted(page: Page) -> None:
    page.goto("/variables")
    page.get_by_role("button", name="Add variable").first.click()
    page.get_by_label("Key").last.fill("color")
    page.get_by_label("Value").fill("<script>alert(1)</script>")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("cell", name="<script>alert(1)</script>")).to_be_visible()
    # A value that turns its direction around leaves the text beside it alone.
    assert page.locator("td span").first.evaluate("element => getComputedStyle(element).unicodeBidi") == "isolate"
    page.goto("/audit")
    expect(page.get_by_role("row", name="added a variable").get_by_text("color")).to_be_visible()
    page.goto("/variables")
    page.get_by_role("button", name="Edit: color").click()
    page.get_by_label("Value").fill("blue")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("cell", name="blue")).to_be_visible()
    page.get_by_role("button", name="Delete: color").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Delete: color")).to_have_count(0)


def test_a_change_of_another_person_is_not_overwritten(page: Page, installation: Installation) -> None:
    installation.cli("variables", "set", "shade", "red")
    page.goto("/variables")
    page.get_by_role("button", name="Edit: shade").click()
    installation.cli("variables", "set", "shade", "green")
    page.get_by_label("Value").fill("blue")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Another person changed this meanwhile")).to_be_visible()
    assert "green" in installation.cli("variables", "get", "shade")


def test_the_login_form_names_a_used_link(browser: Browser, installation: Installation) -> None:
    page = browser.new_page(base_url=installation.url)
    page.goto("/auth/link?key=used")
    expect(page.get_by_text("This login link was used already")).to_be_visible()
    page.close()


def test_a_viewer_sees_runs_and_cannot_change_them(browser: Browser, installation: Installation) -> None:
    context = browser.new_context(base_url=installation.url, storage_state=logged_in(browser, installation, "vera"))
    page = context.new_page()
    page.goto("/dags/journey")
    expect(page.get_by_role("heading", name="journey")).to_be_visible()
    expect(page.get_by_role("button", name="Trigger")).to_have_count(0)
    expect(page.get_by_role("link", name="Variables")).to_have_count(0)
    expect(page.get_by_role("switch").first).to_be_disabled()
    context.close()


def test_the_page_of_a_missing_thing_reports_it(page: Page) -> None:
    page.goto("/nowhere/at/all")
    expect(page.get_by_role("heading", name="There is no such page")).to_be_visible()


def test_a_worker_is_drained(page: Page) -> None:
    page.goto("/queues")
    worker = page.locator(".workers .card", has_text=re.compile("spark"))
    worker.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(worker.get_by_text("draining").or_(worker.get_by_text("started just now"))).to_be_visible()
