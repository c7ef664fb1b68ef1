"""What two commits add to a table at the same time keeps its own number, and what they both add is there once."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table.metadata import TableMetadata
from support.tables import SCHEMA, Lake, rows

from paceline.exceptions import NotFoundError, PacelineError
from scheduler.catalog import repair as repairs
from scheduler.catalog.repair import Repaired

SNAPSHOT = {"sequence-number": 9, "timestamp-ms": 9_999_999_999_999, "summary": {"operation": "append"}}


def field(number: int, name: str) -> dict[str, Any]:
    return {"id": number, "name": name, "type": "long" if name == "id" else "string", "required": False}


def order(direction: str) -> dict[str, Any]:
    by_id = {"source-id": 1, "transform": "identity", "direction": direction, "null-order": "nulls-last"}
    return {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [by_id]}}


def spec(transform: str) -> dict[str, Any]:
    by_id = {"source-id": 1, "field-id": 1000, "transform": transform, "name": "by_id"}
    return {"action": "add-spec", "spec": {"spec-id": 1, "fields": [by_id]}}


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": list(fields)}}


Commit = Callable[..., tuple[int, str]]


@pytest.fixture
def commit(lake: Lake) -> Commit:
    """Commits updates to `sales.t`, without requirements, as a client does that replaces the table."""
    lake.person().create_table("sales.t", SCHEMA)

    def send(*updates: dict[str, Any]) -> tuple[int, str]:
        answer = requests.post(
            f"{lake.uri}/v1/namespaces/sales/tables/t", json={"requirements": [], "updates": list(updates)},
            headers={"Authorization": "Bearer person-ada"}, timeout=10,
        )  # fmt: skip
        return answer.status_code, answer.json().get("error", {}).get("message", "")

    return send


def table(catalog: RestCatalog) -> TableMetadata:
    found: TableMetadata = catalog.load_table("sales.t").metadata
    return found


def test_sort_orders_of_two_commits(lake: Lake, commit: Commit) -> None:
    chosen = {"action": "set-default-sort-order", "sort-order-id": -1}
    for direction, number in (("asc", 1), ("desc", 2), ("asc", 1)):
        assert commit(order(direction), chosen) == (200, "")
        found = table(lake.person())
        assert found.default_sort_order_id == number
        assert found.sort_order_by_id(number).fields[0].direction.value == direction  # type: ignore[union-attr]
    assert [one.order_id for one in table(lake.person()).sort_orders] == [0, 1, 2]


def test_schemas_of_two_commits(lake: Lake, commit: Commit) -> None:
    location = lake.person().load_table("sales.t").location()
    chosen = {"action": "set-current-schema", "schema-id": -1}
    for name, number, snapshot in (("id", 1, 11), ("who", 2, 12), ("id", 1, 13)):
        new = {**SNAPSHOT, "snapshot-id": snapshot, "schema-id": 1, "manifest-list": f"{location}/metadata/{snapshot}.avro",
               "sequence-number": snapshot}  # fmt: skip
        columns = schema(field(1 if name == "id" else 2, name))
        assert commit(columns, chosen, {"action": "add-snapshot", "snapshot": new}) == (200, "")
        found = table(lake.person())
        assert (found.current_schema_id, found.schema().column_names) == (number, [name])
        assert found.snapshot_by_id(snapshot).schema_id == number  # type: ignore[union-attr]
    assert [one.schema_id for one in table(lake.person()).schemas] == [0, 1, 2]


def test_partition_specs_of_two_commits(lake: Lake, commit: Commit) -> None:
    """Manifests have the number of their spec, so a number that is taken is refused."""
    chosen = {"action": "set-default-spec", "spec-id": -1}
    for _ in range(2):
        assert commit(spec("identity"), chosen) == (200, "")
    assert commit(spec("bucket[4]"), chosen) == (409, "Requirement failed: the table has another partition spec 1")
    found = table(lake.person())
    assert [one.spec_id for one in found.partition_specs] == [0, 1]
    assert found.spec().fields[0].transform.root == "identity"


def doubled(lake: Lake, key: str, *things: dict[str, Any]) -> None:
    """Write things with a number that another one has into `sales.t`, as two commits could before the catalog numbered them."""
    found = lake.tables.warehouse.metadata(lake.person().load_table("sales.t").metadata_location)
    text = json.loads(found.text)
    text[key] += things
    location = f"{found.location.removesuffix('.metadata.json')}-doubled.metadata.json"
    lake.tables.warehouse.write_copy(location, json.dumps(text))
    lake.scenario.sql("update iceberg_tables set metadata_location = %s", location)


def repair(lake: Lake) -> Repaired:
    return repairs.repair(lake.scenario.settings, lake.scenario.engine, "sales", "t", by="cli:ada")


def test_a_table_with_a_number_twice_is_repaired_once(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA).append(rows(1))
    new = schema(field(1, "id"), field(3, "newer"))["schema"] | {"schema-id": 0}
    doubled(lake, "schemas", new)
    doubled(lake, "sort-orders", *(order(direction)["sort-order"] for direction in ("asc", "desc")))
    assert repair(lake) == Repaired(schemas=1, sort_orders=1)
    found = table(lake.person())
    assert (found.schema().column_names, [one.schema_id for one in found.schemas]) == (["id", "newer"], [0])
    assert [(one.order_id, len(one.fields)) for one in found.sort_orders] == [(0, 0), (1, 1)]
    assert found.sort_orders[1].fields[0].direction.value == "desc"
    assert found.metadata_log[-1].metadata_file.endswith("-doubled-doubled.metadata.json")
    assert lake.person().load_table("sales.t").scan().to_arrow()["id"].to_pylist() == [1]
    before = lake.scenario.rows("select max(publication) from table_version")
    assert repair(lake) == Repaired(0, 0)
    assert lake.scenario.rows("select max(publication) from table_version") == before


def test_two_partitionings_with_one_number_are_not_repaired(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    doubled(lake, "partition-specs", spec("identity")["spec"], spec("bucket[4]")["spec"])
    with pytest.raises(PacelineError, match=r"sales\.t has two partitionings with the number 1"):
        repair(lake)
    with pytest.raises(NotFoundError):
        repairs.repair(lake.scenario.settings, lake.scenario.engine, "sales", "none", by="cli:ada")
