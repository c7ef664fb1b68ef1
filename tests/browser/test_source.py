"""The source of a DAG: the texts of versions, which of them a run executes, and the file that cannot be read."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.waiting import eventually

from browser.conftest import ROOT, Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
FIRST = """
from paceline import DAG, task

with DAG("edited", schedule=None) as edited:
    @task
    def one():
        print("first text")
    one()
"""


def test_the_source_is_what_the_next_run_executes_and_of_a_run_what_it_executed(page: Page, installation: Installation) -> None:
    file = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "edited.py"
    file.write_text(FIRST)
    page.goto("/dags/edited/source")
    expect(page.get_by_label("Versions")).to_have_value("")
    expect(page.locator(".source")).to_contain_text("first text")
    run = json.loads(installation.cli("dags", "trigger", "edited", "--wait", "--timeout", "120", "--json"))

    file.write_text(FIRST.replace("first text", "second text"))
    expect(page.locator(".source")).to_contain_text("second text")
    expect(page.get_by_text("What runs of version 2 execute")).to_be_visible()
    page.goto(f"/dags/edited/runs/{run['run_id']}/details")
    page.locator("dd a", has_text="1").click()
    expect(page.get_by_text("What runs of version 1 execute")).to_be_visible()
    expect(page.locator(".source")).to_contain_text("first text")
    # No choice for the file: it is the newest version.
    expect(page.get_by_label("Compare with").locator("option")).to_have_count(2)
    page.get_by_label("Compare with").select_option("2")
    expect(page.locator(".source .added")).to_contain_text("first text")
    expect(page.locator(".source .removed")).to_contain_text("second text")

    page.goto(f"/dags/edited/runs/{run['run_id']}/tasks/one")
    page.get_by_role("button", name="Clear").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("The run continues with version 2 of the DAG instead of 1.")).to_be_visible()
    newest = dialog.get_by_label("With the newest version of the DAG")
    expect(newest).to_be_checked()
    newest.uncheck()
    expect(dialog.get_by_text("The run continues")).to_have_count(0)
    newest.check()
    dialog.get_by_role("button", name="Clear (1)").click()
    eventually(lambda: installation.cli("tasks", "logs", "edited", run["run_id"], "one").count("second text") == 1, timeout=60)

    file.unlink()
    page.goto("/dags/edited/source")
    expect(page.locator(".source")).to_contain_text("second text")


def test_an_import_error_leads_to_its_line_in_the_source(page: Page, installation: Installation) -> None:
    file = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "torn.py"
    file.write_text(FIRST.replace("edited", "torn"))
    eventually(lambda: "torn" in installation.cli("dags", "list"), timeout=60)
    file.write_text(FIRST.replace("edited", "torn") + "\n" * 80 + "no_such_name\n")
    page.goto("/imports")
    card = page.locator(".card", has=page.get_by_role("heading", name="torn.py"))
    number = str(len(file.read_text().splitlines()))
    expect(card.get_by_role("heading")).to_contain_text(f"line {number}")
    card.get_by_role("link", name="torn", exact=True).click()
    wanted = page.locator(".source .wanted")
    expect(wanted).to_contain_text("no_such_name")
    expect(wanted).to_be_in_viewport()
    file.unlink()


def test_the_list_of_keys_is_complete(page: Page) -> None:
    sources = [file.read_text() for file in sorted((ROOT / "web" / "src").rglob("*.tsx"))]
    found = {key for text in sources for key in re.findall(r"event\.key === '(\w|\?|/)'", text)}
    for text in sources:
        for listed in re.findall(r"PLACES[^=]*= \{(.*?)\}|act = \{(.*?)\}\[event\.key\]", text):
            found |= set(re.findall(r"(?:^|, |\s)(\w): ", "".join(listed)))
    assert {"j", "x", "g", "h", "n", "N", "e", "w", "T", "?", "/"} <= found
    page.goto("/dags")
    page.wait_for_selector("tbody tr")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    named = set(dialog.locator("kbd").all_inner_texts())
    assert {key for key in found if key not in named and key.upper() not in named} == set()
    for text in ("Connections", "Variables", "Assets", "Backfills", "Settings", "Select the row", "Wrap the lines of a log"):
        expect(dialog).to_contain_text(text)
    expect(dialog).not_to_contain_text("undefined")
