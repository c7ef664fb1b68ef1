"""Tables: the list beside that of assets, and the page of a table."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Connection, Engine

from browser.conftest import Installation, serious_violations
from browser.test_pages import run_of
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.tables import publish
from scheduler.store.tables.pointers import Change

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


@pytest.fixture
def engine(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name, value in installation.environment.items():
        monkeypatch.setenv(name, value)
    made = database.create(Settings.load())
    yield made
    made.dispose()


def published(engine: Engine, expected: str | None, location: str | None, run_id: str, **facts: Any) -> None:
    """Publish a version of the table shop.orders, as the success of a task does."""

    def work(connection: Connection) -> None:
        change = Change(namespace="shop", name="orders", expected=expected, location=location, facts=facts)
        number, moved = publish.publish(connection, "lake", [change], by="scheduler")
        assert moved == []
        connection.exec_driver_sql(
            "update table_version set dag_id = 'journey', run_id = %s, task_id = 'work', map_index = -1, try_number = 1"
            " where publication = %s",
            (run_id, number),
        )

    transact(engine, work)


def test_a_table_shows_who_published_its_rows_and_columns(page: Page, installation: Installation, engine: Engine) -> None:
    run_id = run_of(installation, prefix="table")
    columns = {"id": "long", "price": "double"}
    published(
        engine, None, "m1", run_id, total_records=1000, added_records=1000, operation="append", snapshot_id=1, columns=columns
    )
    published(
        engine, "m1", "m2", run_id, total_records=1200, added_records=200, operation="append",
        snapshot_id=6193847582934758291, columns=columns | {"region": "string"},
    )  # fmt: skip
    published(engine, "m2", "m3", run_id, total_records=1150, deleted_records=50, operation="delete", snapshot_id=3)
    try:
        page.goto("/assets")
        page.get_by_role("link", name="Tables").click()
        row = page.get_by_role("row", name="shop.orders")
        expect(row).to_contain_text("1,150")
        page.get_by_role("searchbox", name="Filter by name").fill("nothing like it")
        expect(page.get_by_text("No table matches this filter")).to_be_visible()
        page.get_by_role("searchbox", name="Filter by name").fill("ORDERS")
        row.get_by_role("link", name="shop.orders").click()

        expect(page.locator(".dag-facts")).to_contain_text("Updated")
        expect(page.locator(".dag-facts")).to_contain_text("1,150 rows")
        expect(page.get_by_role("region", name="Columns")).to_contain_text("+ region string")
        expect(page.locator(".u-wrap")).to_be_visible()
        rows = page.get_by_role("table", name="Versions").locator("tbody tr")
        expect(rows).to_have_count(3)
        expect(rows.nth(0)).to_contain_text("delete")
        expect(rows.nth(1)).to_contain_text("6193847582934758291")
        assert serious_violations(page) == {}
        page.emulate_media(color_scheme="dark")
        assert serious_violations(page) == {}
        rows.nth(0).get_by_role("link", name="journey work").click()
        expect(page.get_by_role("heading", name="work")).to_be_visible()
    finally:
        published(engine, "m3", None, run_id)
    page.goto("/tables/shop.orders")
    expect(page.locator(".dag-facts")).to_contain_text("dropped")
    page.goto("/tables")
    expect(page.get_by_text("This installation has no tables")).to_be_visible()
