"""Connections and variables: fields by type, and secrets that a page never receives."""

import json
import re
import urllib.parse

import pytest
from playwright.sync_api import Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def exported(installation: Installation, conn_id: str) -> dict[str, object]:
    found = json.loads(installation.cli("connections", "export", "-"))
    return dict(found[conn_id])


def test_a_connection_has_the_fields_of_its_type(page: Page, installation: Installation) -> None:
    page.goto("/connections")
    page.get_by_role("button", name="Add connection").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Connection ID").fill("lake")
    expect(dialog.get_by_label("Port")).to_have_attribute("placeholder", "5432")
    dialog.get_by_label("Type").select_option(label="Amazon Web Services")
    expect(dialog.get_by_label("Host")).to_have_count(0)
    dialog.get_by_label("Access key ID").fill("AKIA")
    dialog.get_by_role("textbox", name="Secret access key").fill("first secret")
    dialog.get_by_role("textbox", name="region_name").fill("eu-central-1")
    dialog.get_by_role("button", name="Add a field").click()
    dialog.get_by_label("Name of the field").fill("retries")
    dialog.get_by_label("Value", exact=True).fill("5")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="lake")).to_contain_text("Amazon Web Services")
    stored = exported(installation, "lake")
    assert (stored["conn_type"], stored["login"], stored["password"]) == ("aws", "AKIA", "first secret")
    assert stored["extra"] == {"region_name": "eu-central-1", "retries": 5}


def test_secrets_are_kept_replaced_or_removed(page: Page, installation: Installation) -> None:
    extra = '{"token": "old token", "account": "ab12345", "gone": "x"}'
    installation.cli(
        "connections", "set", "kept", "--conn-type", "http", "--conn-host", "api", "--conn-password", "old", "--conn-extra", extra
    )
    page.goto("/connections")
    page.get_by_role("button", name="Edit: kept").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).not_to_contain_text("***")
    dialog.get_by_label("Host").fill("api.shop.internal")
    token = dialog.get_by_role("group", name="token")
    token.get_by_role("button", name="Replace").click()
    token.get_by_role("textbox").fill("new token")
    dialog.get_by_role("button", name="Delete: gone").click()
    expect(dialog.get_by_role("group", name="gone")).to_contain_text("Will be removed")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    stored = exported(installation, "kept")
    assert (stored["host"], stored["password"]) == ("api.shop.internal", "old")
    assert stored["extra"] == {"token": "new token", "account": "ab12345"}

    page.get_by_role("button", name="Edit: kept").click()
    password = dialog.get_by_role("group", name="Password")
    password.get_by_role("button", name="Replace").click()
    password.get_by_role("textbox").fill("new")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert exported(installation, "kept")["password"] == "new"


def test_a_worker_tests_a_stored_connection(page: Page, installation: Installation) -> None:
    installation.cli("connections", "set", "closed", "--conn-type", "ftp", "--conn-host", "127.0.0.1", "--conn-port", "1")
    page.goto("/connections")
    page.get_by_role("button", name="Test: closed").click()
    failed = re.compile(r"Connection closed fails at 127\.0\.0\.1:1: .+ \(.+@.+\)")
    expect(page.get_by_role("status").locator(".toast.bad span")).to_contain_text(failed)

    page.get_by_role("button", name="Edit: closed").click()
    test = page.get_by_role("dialog").get_by_role("group", name="Test")
    expect(test).to_contain_text("A worker logs in")
    port = urllib.parse.urlsplit(installation.url).port
    page.get_by_role("dialog").get_by_label("Port").fill(str(port))
    expect(test).to_contain_text("save the changes first")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()

    page.get_by_role("button", name="Edit: closed").click()
    test.get_by_label("Queue").select_option("spark")
    test.get_by_role("button", name="Test").click()
    expect(test.get_by_role("status")).to_contain_text(f"127.0.0.1:{port} of connection closed can be reached.")
    expect(test.get_by_role("status")).to_be_in_viewport(ratio=1)
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    installation.cli("connections", "delete", "closed", "--yes")


def test_a_connection_is_pasted_as_one_line(page: Page, installation: Installation) -> None:
    page.goto("/connections")
    page.get_by_role("button", name="Add connection").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Connection ID").fill(
        "pasted=postgresql://etl:p%40ss@db.shop.internal:5433/sales?sslmode=require&options=a%20b"
    )
    expect(dialog.get_by_label("Host")).to_have_value("db.shop.internal")
    expect(dialog.get_by_role("textbox", name="sslmode")).to_have_value("require")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="pasted")).to_contain_text("PostgreSQL")
    stored = exported(installation, "pasted")
    assert [stored[name] for name in ("conn_type", "host", "port", "schema", "login", "password")] == [
        "postgres", "db.shop.internal", 5433, "sales", "etl", "p@ss",
    ]  # fmt: skip
    assert stored["extra"] == {"sslmode": "require", "options": "a b"}
    installation.cli("connections", "delete", "pasted", "--yes")


def test_a_change_of_another_person_is_not_overwritten(page: Page, away: Page, installation: Installation) -> None:
    installation.cli("connections", "set", "shared", "--conn-type", "ssh", "--conn-host", "first")
    away.goto("/connections")
    away.get_by_role("button", name="Edit: shared").click()
    dialog = away.get_by_role("dialog")
    dialog.get_by_label("Host").fill("mine")
    installation.cli("connections", "set", "shared", "--conn-type", "ssh", "--conn-host", "theirs")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("Another person changed this meanwhile")
    assert exported(installation, "shared")["host"] == "theirs"


def test_a_masked_variable_keeps_its_value(page: Page, installation: Installation) -> None:
    installation.cli("variables", "set", "api_token", "old")
    page.goto("/variables")
    page.get_by_role("button", name="Edit: api_token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Description").fill("Of the shop")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_role("row", name="api_token")).to_contain_text("Of the shop")
    assert json.loads(installation.cli("variables", "export", "-"))["api_token"]["value"] == "old"
    page.get_by_role("button", name="Edit: api_token").click()
    dialog.get_by_role("button", name="Replace").click()
    dialog.get_by_role("textbox", name="Value").fill("new")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert json.loads(installation.cli("variables", "export", "-"))["api_token"]["value"] == "new"
