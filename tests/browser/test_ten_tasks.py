"""Ten tasks of a person on duty, from Home: by mouse with at most three clicks and one text field, and by keyboard alone."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Installation
from browser.test_operating import PAUSE
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
MOST_CLICKS, MOST_FIELDS = 3, 1
#: Steps of Tab in which a control must be reached.
MOST_TABS = 150
ERROR = "The work failed as it was asked to"


@dataclass
class Mouse:
    """Counts clicks, and text fields that are filled."""

    page: Page
    clicks: int = 0
    fields: int = 0

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.click()

    def fill(self, target: Locator, text: str) -> None:
        self.fields += 1
        target.fill(text)


@dataclass
class Keys:
    """Presses keys, and nothing else."""

    page: Page

    def go(self, key: str) -> None:
        self.press("g", key)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def reach(self, target: Locator) -> None:
        """Press Tab until the element has the focus."""
        expect(target).to_be_enabled()
        for _ in range(MOST_TABS):
            if target.evaluate("element => element === document.activeElement"):
                return
            self.press("Tab")
        pytest.fail(f"Tab does not reach {target} within {MOST_TABS} steps")

    def activate(self, target: Locator) -> None:
        self.reach(target)
        self.press("Enter")

    def open_row(self, text: str, of: Locator) -> None:
        """Filter a list, and open its first row."""
        self.press("/")
        self.page.keyboard.type(text)
        expect(of.filter(has_not_text=text)).to_have_count(0)
        expect(of.first).to_contain_text(text)
        self.press("Escape")
        self.page.evaluate("document.activeElement.blur()")
        self.press("j", "Enter")


@pytest.fixture
def home(page: Page, installation: Installation) -> Page:
    """Home after a run that has failed, later than one that has not."""
    run_of(installation, prefix="fine")
    page.goto("/")
    page.wait_for_selector(".tiles")
    return page


@pytest.fixture
def failed(installation: Installation, home: Page) -> str:
    """The ID of the run of `journey` that has just failed."""
    run_id = run_of(installation, "--conf", '{"fail": true}', prefix="ten")
    home.reload()
    expect(failures(home).first).to_contain_text(ERROR)
    return run_id


def card(page: Page, name: str) -> Locator:
    return page.locator(".card", has=page.get_by_role("heading", name=name))


def failures(page: Page) -> Locator:
    return card(page, "Recent failures").locator("li", has_text="journey").get_by_role("link")


def nav(page: Page, name: str) -> Locator:
    return page.get_by_role("navigation", name="Menu").get_by_role("link", name=name, exact=True)


def why_late(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(card(page, "Active runs").get_by_role("link", name="stranded"))
    mouse.click(page.locator(".gantt-row", has_text="render"))
    expect(page.get_by_text("No live worker listens to queue 'gpu_hosts'").first).to_be_visible()


def line_of_the_error(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(failures(page).first)
    mouse.click(page.get_by_role("button", name="Jump to the error"))
    expect(page.get_by_role("log").locator(".linked")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text(f"RuntimeError: {ERROR}")


def rerun_with_downstream(mouse: Mouse, page: Page, run_id: str) -> None:
    mouse.click(failures(page).first)
    mouse.click(page.get_by_role("button", name="Clear", exact=True))
    expect(page.get_by_role("checkbox", name="Downstream tasks")).to_be_checked()
    mouse.click(page.get_by_role("dialog").get_by_role("button", name="Clear (2)"))
    expect(page.get_by_role("status").get_by_text("2 task instances cleared")).to_be_visible()


def compare_with_the_last_success(mouse: Mouse, page: Page, run_id: str) -> None:
    mouse.click(failures(page).first)
    mouse.click(page.get_by_role("navigation", name="Where this page is").get_by_role("link").last)
    mouse.click(page.get_by_role("link", name="Compare"))
    expect(page.get_by_role("row", name="work")).to_contain_text("failed")
    expect(page.get_by_role("main")).to_contain_text("fine-")


def who_paused_it(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(nav(page, "Audit log"))
    mouse.fill(page.get_by_role("searchbox", name="DAG"), "archive")
    expect(page.get_by_role("table", name="Audit log").locator("tbody tr").first).to_contain_text(re.compile("ada.*paused a DAG"))


def approve_a_question(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(page.get_by_role("navigation", name="Menu").get_by_role("link", name="Required actions"))
    mouse.click(page.locator("tbody tr", has_text="price list").get_by_role("button", name="Approve"))
    mouse.click(page.get_by_role("dialog").get_by_role("button", name="Send"))
    expect(page.get_by_role("status").get_by_text("The answer is stored.")).to_be_visible()


def what_runs_next(mouse: Mouse, page: Page, _: str) -> None:
    expect(card(page, "Next scheduled runs").locator("li").first).to_contain_text("in ")


def which_code_ran(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(failures(page).first)
    # The version that the try executed, on the page of the task.
    mouse.click(page.locator(".dag-facts").get_by_role("link", name=re.compile(r"^version \d+$")))
    expect(page.get_by_role("region", name="Source")).to_contain_text('with DAG("journey"')


def add_a_connection(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(nav(page, "Connections"))
    mouse.click(page.get_by_role("button", name="Add connection").first)
    mouse.fill(page.get_by_role("dialog").get_by_label("Connection ID"), "ten=postgres://etl:s3cret@db.shop.internal/sales")
    mouse.click(page.get_by_role("dialog").get_by_role("button", name="Save"))
    expect(page.get_by_role("row", name="ten")).to_contain_text("db.shop.internal")


def backfill_a_week(mouse: Mouse, page: Page, _: str) -> None:
    mouse.click(nav(page, "Backfills"))
    mouse.click(page.get_by_role("button", name="New backfill").first)
    mouse.fill(page.get_by_role("dialog").get_by_label("DAG"), "ledger")
    mouse.click(page.get_by_role("button", name=re.compile(r"Start the backfill \([67]\)")))
    expect(page.get_by_role("status").get_by_text("The backfill has started")).to_be_visible()


def keys_why_late(keys: Keys, page: Page, _: str) -> None:
    keys.go("t")
    keys.open_row("stranded", page.locator("tbody tr"))
    expect(page.get_by_text("No live worker listens to queue 'gpu_hosts'").first).to_be_visible()


def keys_to_the_run(keys: Keys, page: Page, run_id: str) -> None:
    keys.press("Control+k")
    expect(page.get_by_role("combobox", name="Go to anything")).to_be_focused()
    page.keyboard.type(run_id)
    expect(page.get_by_role("option").first).to_contain_text(run_id)
    keys.press("Enter")
    expect(page.get_by_role("region", name="Why it failed")).to_be_visible()


def keys_line_of_the_error(keys: Keys, page: Page, run_id: str) -> None:
    keys_to_the_run(keys, page, run_id)
    keys.activate(page.get_by_role("link", name="Open log"))
    expect(page.get_by_role("log")).to_contain_text("Traceback")
    keys.press("e")
    expect(page.get_by_role("log").locator(".linked")).to_be_visible()


def keys_rerun_with_downstream(keys: Keys, page: Page, run_id: str) -> None:
    keys_to_the_run(keys, page, run_id)
    keys.activate(page.get_by_role("button", name="Clear failed"))
    expect(page.get_by_role("dialog").get_by_role("button", name="Clear failed (2)")).to_be_enabled()
    keys.activate(page.get_by_role("dialog").get_by_role("button", name="Clear failed (2)"))
    expect(page.get_by_role("status").get_by_text("2 task instances cleared")).to_be_visible()


def keys_compare_with_the_last_success(keys: Keys, page: Page, run_id: str) -> None:
    keys_to_the_run(keys, page, run_id)
    keys.activate(page.get_by_role("link", name="Compare"))
    expect(page.get_by_role("row", name="work")).to_contain_text("failed")


def keys_who_paused_it(keys: Keys, page: Page, _: str) -> None:
    keys.press("Control+k")
    page.keyboard.type("archive")
    wanted = page.get_by_role("option", name="Who changed archive")
    expect(wanted).to_be_visible()
    while wanted.get_attribute("aria-selected") != "true":
        keys.press("ArrowDown")
    keys.press("Enter")
    expect(page.get_by_role("table", name="Audit log").locator("tbody tr").first).to_contain_text(re.compile("ada.*paused a DAG"))


def keys_approve_a_question(keys: Keys, page: Page, _: str) -> None:
    keys.go("w")
    keys.activate(page.locator("tbody tr", has_text="price list").get_by_role("button", name="Approve"))
    expect(page.get_by_role("dialog", name="Send this answer?").get_by_role("button", name="Send")).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("status").get_by_text("The answer is stored.")).to_be_visible()


def keys_what_runs_next(keys: Keys, page: Page, _: str) -> None:
    keys.go("d")
    expect(page).to_have_url(re.compile("/dags$"))
    keys.go("h")
    expect(card(page, "Next scheduled runs").locator("li").first).to_contain_text("in ")


def keys_which_code_ran(keys: Keys, page: Page, run_id: str) -> None:
    keys_to_the_run(keys, page, run_id)
    keys.activate(page.locator(".dag-facts").get_by_role("link", name=re.compile(r"^version \d+$")))
    expect(page.get_by_role("region", name="Source")).to_contain_text('with DAG("journey"')


def keys_add_a_connection(keys: Keys, page: Page, _: str) -> None:
    keys.go("c")
    keys.activate(page.get_by_role("button", name="Add connection").first)
    expect(page.get_by_role("dialog").get_by_label("Connection ID")).to_be_focused()
    page.keyboard.insert_text("ten=postgres://etl:s3cret@db.shop.internal/sales")
    expect(page.get_by_role("dialog").get_by_label("Connection ID")).to_have_value("ten")
    keys.press("Enter")
    expect(page.get_by_role("row", name="ten")).to_contain_text("db.shop.internal")


def keys_backfill_a_week(keys: Keys, page: Page, _: str) -> None:
    keys.go("b")
    keys.activate(page.get_by_role("button", name="New backfill").first)
    expect(page.get_by_role("dialog").get_by_label("DAG")).to_be_focused()
    page.keyboard.type("exchange_rates")
    expect(page.get_by_role("button", name=re.compile(r"Start the backfill \([67]\)"))).to_be_enabled()
    keys.activate(page.get_by_role("button", name=re.compile(r"Start the backfill \([67]\)")))
    expect(page.get_by_role("status").get_by_text("The backfill has started")).to_be_visible()


#: The tasks that begin with the run that has failed.
OF_A_FAILURE = {"line_of_the_error", "rerun_with_downstream", "compare_with_the_last_success", "which_code_ran"}
TASKS = (
    why_late, line_of_the_error, rerun_with_downstream, compare_with_the_last_success, who_paused_it, approve_a_question,
    what_runs_next, which_code_ran, add_a_connection, backfill_a_week,
)  # fmt: skip
BY_KEYS = (
    keys_why_late, keys_line_of_the_error, keys_rerun_with_downstream, keys_compare_with_the_last_success, keys_who_paused_it,
    keys_approve_a_question, keys_what_runs_next, keys_which_code_ran, keys_add_a_connection, keys_backfill_a_week,
)  # fmt: skip


@pytest.fixture
def situation(request: pytest.FixtureRequest, installation: Installation, home: Page) -> Iterator[str]:
    """What a task needs; the ID of the failed run, if it is about one."""
    name = str(request.param).removeprefix("keys_")
    run_id = request.getfixturevalue("failed") if name in OF_A_FAILURE else f"ten-{abs(hash(request.node.name))}"
    if name == "why_late":
        installation.cli("dags", "trigger", "stranded", "--run-id", run_id)
    elif name == "approve_a_question":
        installation.cli("dags", "trigger", "review", "--run-id", run_id)
    elif name == "who_paused_it":
        assert home.evaluate(PAUSE, ["archive", False]) == 200
        assert home.evaluate(PAUSE, ["archive", True]) == 200
    home.goto("/")
    home.wait_for_selector(".tiles")
    yield run_id
    if name == "why_late":
        installation.cli("runs", "mark", "stranded", run_id, "failed")
    elif name == "approve_a_question":
        installation.cli("runs", "mark", "review", run_id, "failed")
    elif name == "add_a_connection":
        installation.cli("connections", "delete", "ten", "--yes")


@pytest.mark.parametrize(
    ("task", "situation"), [(task, task.__name__) for task in TASKS], indirect=["situation"], ids=[task.__name__ for task in TASKS]
)
def test_a_task_takes_three_clicks_and_a_text_field(task: Callable[[Mouse, Page, str], None], situation: str, home: Page) -> None:
    mouse = Mouse(home)
    task(mouse, home, situation)
    print(f"{task.__name__}: {mouse.clicks} clicks, {mouse.fields} text fields")
    assert mouse.clicks <= MOST_CLICKS and mouse.fields <= MOST_FIELDS, mouse


@pytest.mark.parametrize(
    ("task", "situation"),
    [(task, task.__name__) for task in BY_KEYS],
    indirect=["situation"],
    ids=[task.__name__ for task in BY_KEYS],
)
def test_a_task_is_done_by_keyboard_alone(task: Callable[[Keys, Page, str], None], situation: str, home: Page) -> None:
    task(Keys(home), home, situation)
