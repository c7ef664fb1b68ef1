"""Tables and their versions, as the pages read them."""

from typing import Any

from support.scenario import Scenario

from scheduler.store.db.database import transact
from scheduler.store.tables import publish
from scheduler.store.tables.pointers import Change

from .conftest import Web


def published(scenario: Scenario, namespace: str, name: str, expected: str | None, location: str | None, **facts: Any) -> None:
    change = Change(namespace=namespace, name=name, expected=expected, location=location, facts=facts)
    number, moved = transact(scenario.engine, publish.publish, "lake", [change], by="cli:ada")
    assert number is not None and moved == []


def test_a_table_has_its_versions_with_rows_and_columns(web: Web, scenario: Scenario) -> None:
    published(scenario, "shop.eu", "orders", None, "m1", total_records=10, added_records=10, operation="append",
              snapshot_id=2**62 + 1, columns={"id": "long"})  # fmt: skip
    published(scenario, "shop.eu", "orders", "m1", "m2", total_records=7, deleted_records=3, operation="delete")
    published(scenario, "shop", "old", None, "m1")
    published(scenario, "shop", "old", "m1", None)
    with web.http(web.account("vera", "viewer")) as http:
        page = http.get("/api/v2/tables").raise_for_status().json()
        none = http.get("/api/v2/tables", params={"name_pattern": "nothing"}).raise_for_status().json()
        orders = http.get("/api/v2/tables/shop.eu.orders").raise_for_status().json()
        old = http.get("/api/v2/tables/shop.old").raise_for_status().json()
        missing = http.get("/api/v2/tables/shop.eu.nothing")

    assert [(one["name"], one["rows"], one["published_by"]) for one in page["tables"]] == [("shop.eu.orders", 7, "cli:ada")]
    assert (page["total_entries"], page["is_on"], none["tables"]) == (1, False, [])
    assert [(one["operation"], one["rows"], one["added_rows"], one["deleted_rows"]) for one in orders["versions"]] == [
        ("delete", 7, None, 3), ("append", 10, 10, None),
    ]  # fmt: skip
    assert orders["versions"][1]["snapshot_id"] == str(2**62 + 1)
    assert [one["columns"] for one in orders["versions"]] == [None, {"id": "long"}]
    assert [one["is_dropped"] for one in old["versions"]] == [True, False]
    assert (missing.status_code, missing.json()["detail"]) == (
        404, "The catalog 'lake' has no table 'shop.eu.nothing': `paceline tables list` shows all.",
    )  # fmt: skip
