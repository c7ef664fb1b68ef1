"""Reproductions: started on the page of a run, and compared with it there."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Connection, Engine

from browser.conftest import Installation, serious_violations
from browser.test_pages import run_of
from browser.test_tables import engine
from scheduler.store.db.database import transact

__all__ = ["engine"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: What a run has that wrote a table: the tries that read a state, and a publication.
USED = (
    "insert into table_pin (dag_run_id, task_instance_id, publication)"
    " select i.dag_run_id, i.id, 0 from task_instance i join dag_run r on r.id = i.dag_run_id where r.run_id = %(run)s",
    "insert into table_version (catalog, namespace, name, publication, metadata_location, published_by, task_instance_id)"
    " select 'lake', 'reproduced', 'orders', 1000000 + i.id, 'one', 'ada', i.id from task_instance i"
    "   join dag_run r on r.id = i.dag_run_id where r.run_id = %(run)s and i.task_id = 'work'",
)
VERDICT = """
update reproduction p set verdict = %(verdict)s, compared_end = r.ended_at from dag_run r
 where r.id = p.dag_run_id and r.run_id = %(run)s returning 1
"""


def row(table: str, **values: Any) -> dict[str, Any]:
    equal = {
        "is_equal": True,
        "schema_equal": True,
        "rows_equal": True,
        "checksum_equal": True,
        "columns_that_differ": [],
        "note": "",
    }
    rows = {"original_rows": 1200, "reproduced_rows": 1200, "original_checksum": "a1", "reproduced_checksum": "a1"}
    return {"table": table, **equal, **rows, **values}


def execute(engine: Engine, statements: tuple[str, ...], **values: Any) -> None:
    def work(connection: Connection) -> None:
        for statement in statements:
            assert connection.exec_driver_sql(statement, values).rowcount > 0

    transact(engine, work)


def test_a_run_is_reproduced_and_both_pages_show_what_differs(page: Page, installation: Installation, engine: Engine) -> None:
    run_id = run_of(installation, prefix="again")
    execute(engine, USED, run=run_id)
    try:
        page.goto(f"/dags/journey/runs/{run_id}")
        page.get_by_role("link", name="Reproductions").click()
        expect(page.get_by_text("This run has no reproductions")).to_be_visible()
        page.locator(".head .menu > button").click()
        page.get_by_role("menuitem", name="Reproduce").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Runs the run again with version")
        assert serious_violations(page) == {}
        dialog.get_by_label("Columns that do not count").fill("loaded_at, run_id")
        dialog.get_by_role("button", name="Run it again").click()
        expect(dialog).to_be_hidden()

        made = page.get_by_role("region", name=f"reproduce__{run_id}__1")
        expect(made).to_contain_text("Without the columns loaded_at, run_id.")
        # Without a reload: its run ends, and this installation cannot read tables.
        expect(made).to_contain_text("This web process has no tables: set tables.warehouse.")
        tables = [
            row("shop.totals"),
            row("shop.orders", is_equal=False, checksum_equal=False, reproduced_checksum="b2", columns_that_differ=["price"]),
        ]
        verdict = {"is_equal": False, "original_state": "success", "reproduced_state": "success", "tables": tables, "inputs": []}
        execute(engine, (VERDICT,), run=f"reproduce__{run_id}__1", verdict=json.dumps(verdict))
        page.reload()
        table = made.get_by_role("table", name="Compared tables")
        expect(table.get_by_role("row", name="shop.totals")).to_contain_text("equal")
        expect(table.get_by_role("row", name="shop.orders")).to_contain_text("price")
        assert serious_violations(page) == {}
        page.emulate_media(color_scheme="dark")
        assert serious_violations(page) == {}

        made.get_by_role("link", name="reproduction 1").click()
        expect(page.locator(".dag-facts")).to_contain_text(f"Reproduction of {run_id}")
        page.get_by_role("link", name="Reproductions").click()
        expect(page.get_by_role("table", name="Compared tables").locator("tbody tr")).to_have_count(2)
        page.goto("/dags/journey/runs?type=reproduction")
        page.get_by_role("link", name="reproduction", exact=True).click()
        expect(page).to_have_url(f"{installation.url}/dags/journey/runs/{run_id}")
    finally:
        execute(engine, ("delete from table_version where namespace = 'reproduced'",))
