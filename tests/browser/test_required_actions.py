"""Answers to the questions of tasks, in the list itself."""

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_requests_are_answered_in_place_one_or_many(page: Page, installation: Installation) -> None:
    ids = ("one", "two", "three")
    for run_id in ids:
        installation.cli("dags", "trigger", "review", "--run-id", f"place-{run_id}")
    try:
        page.goto("/actions")
        rows = page.locator("tbody tr", has_text="price list")
        expect(rows).to_have_count(3)
        expect(rows.first.get_by_role("link", name="place-one", exact=True)).to_be_visible()
        expect(rows.first.get_by_role("button", name="Respond")).to_be_in_viewport(ratio=1)
        rows.first.get_by_role("button", name="Reject").click()
        sure = page.get_by_role("dialog", name="Send this answer?")
        # The whole request is read before it is answered in place.
        for text in (
            "Publish the price list of week 48?",
            "412 prices change",
            "s3://shop/reports/prices-48.html",
            "answer Reject",
        ):
            expect(sure).to_contain_text(text)
        sure.get_by_role("button", name="Send").click()
        expect(rows).to_have_count(2)

        page.get_by_label("Select all rows of this page").check()
        expect(page.get_by_text("no answer in common")).to_be_visible()
        for row in page.locator("tbody tr", has_text="campaign").all():
            row.get_by_role("checkbox").uncheck()
        page.get_by_role("button", name="Approve (2)").click()
        for text in ("review, place-two", "review, place-three", "2 tasks continue with the answer Approve"):
            expect(sure).to_contain_text(text)
        sure.get_by_role("button", name="Send").click()
        expect(page.get_by_role("status").get_by_text("2 answers stored")).to_be_visible()
        expect(rows).to_have_count(0)
        page.get_by_role("button", name="Answered").click()
        for run_id, answer in (("one", "Reject"), ("two", "Approve"), ("three", "Approve")):
            row = rows.filter(has=page.get_by_role("link", name=f"place-{run_id}", exact=True))
            expect(row.locator("strong")).to_have_text(answer)
    finally:
        for run_id in ids:
            installation.cli("runs", "mark", "review", f"place-{run_id}", "failed")


def test_a_question_shows_its_deadline_and_what_happens_then(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "late", "--run-id", "asked")
    page.goto("/actions")
    row = page.get_by_role("row", name="Send the invoices")
    expect(row.locator("td[data-key=deadline]")).to_contain_text("in 39 min")
    expect(row.locator("td[data-key=default]")).to_have_text("Reject")
    expect(row.get_by_role("link", name="asked", exact=True)).to_be_visible()
    row.get_by_role("button", name="Respond").click()
    expect(page.get_by_role("dialog")).to_contain_text("Without an answer in 39 min")
    expect(page.get_by_role("dialog")).to_contain_text("the answer is Reject")
    installation.cli("runs", "mark", "late", "asked", "failed")
