"""Forms that say what is wrong at the field."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_an_error_of_the_trigger_form_is_at_its_field(away: Page) -> None:
    away.goto("/dags/long_form")
    away.get_by_role("button", name="Trigger").first.click()
    dialog = away.get_by_role("dialog")
    ticket, limit, last = dialog.get_by_label("Ticket"), dialog.get_by_label("Limit"), dialog.get_by_label("Option 13")
    expect(ticket).to_have_attribute("aria-required", "true")
    expect(dialog.get_by_text("Required.", exact=True)).to_have_count(0)

    # Found on the page, from the end of the form.
    limit.fill("0")
    last.focus()
    away.keyboard.press("Enter")
    expect(dialog.get_by_text("2 fields need another value.")).to_be_in_viewport()
    expect(ticket).to_be_focused()
    expect(ticket).to_be_in_viewport(ratio=1)
    expect(dialog.get_by_text("Required.", exact=True)).to_be_in_viewport()
    expect(dialog.get_by_text("Enter at least 1.")).to_be_visible()

    # Found by the server.
    limit.fill("1")
    ticket.fill("none")
    last.focus()
    away.keyboard.press("Enter")
    expect(dialog.locator(".field", has_text="Ticket").get_by_role("alert")).to_contain_text(
        "Param 'ticket' of DAG 'long_form' cannot be"
    )
    expect(ticket).to_be_focused()
    ticket.fill("OPS-12")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Trigger").click()
    expect(dialog).to_have_count(0)
    expect(away.get_by_role("status").get_by_role("link", name="Open")).to_be_visible()
