"""What the catalog refuses: paths outside of a namespace, forged files, formats that it cannot write, and broken requests."""

from typing import Any

import pytest
import requests
from support.tables import SCHEMA, Lake, rows

SCHEMA_JSON = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def post(lake: Lake, path: str, body: Any, token: str = "person-ada", method: str = "POST") -> tuple[int, str]:
    answer = requests.request(method, f"{lake.uri}/v1/{path}", json=body, headers={"Authorization": f"Bearer {token}"}, timeout=10)
    error = answer.json().get("error", {}) if answer.content else {}
    assert error.get("code", answer.status_code) == answer.status_code
    return answer.status_code, error.get("type", "")


@pytest.mark.parametrize(
    "location",
    ["/etc", "file:///etc/passwd", "{lake}/other/t", "{lake}/sales/../other/t", "{lake}/sales/%2e%2e/other", "s3://else/sales/t",
     "{lake}/sales", "{lake}/sales//x", "{lake}/sales/a\\..\\b", "{lake}/sales/x?y"],
)  # fmt: skip
def test_a_table_lies_in_the_folder_of_its_namespace(lake: Lake, location: str) -> None:
    body = {"name": "t", "schema": SCHEMA_JSON, "location": location.format(lake=lake.tables.warehouse.url)}
    assert post(lake, "namespaces/sales/tables", body) == (403, "ForbiddenException")
    for key in ("write.data.path", "write.metadata.path"):
        properties = {"name": "t", "schema": SCHEMA_JSON, "properties": {key: body["location"]}}
        assert post(lake, "namespaces/sales/tables", properties) == (403, "ForbiddenException")


def test_a_location_inside_of_the_namespace_is_taken(lake: Lake) -> None:
    body = {"name": "t", "schema": SCHEMA_JSON, "location": f"{lake.tables.warehouse.url}/sales/mine/"}
    assert post(lake, "namespaces/sales/tables", body) == (200, "")
    assert lake.person().load_table("sales.t").location() == f"{lake.tables.warehouse.url}/sales/mine"


def test_a_commit_points_to_files_of_its_table_only(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA).append(rows(1))
    snapshot = {"snapshot-id": 5, "sequence-number": 9, "timestamp-ms": 1, "manifest-list": "file:///etc/forged.avro",
                "summary": {"operation": "append"}, "schema-id": 0}  # fmt: skip
    for updates in (
        [{"action": "add-snapshot", "snapshot": snapshot}],
        [{"action": "set-location", "location": f"{lake.tables.warehouse.url}/other/t"}],
        [{"action": "set-properties", "updates": {"write.metadata.path": "file:///tmp"}}],
        [{"action": "set-statistics", "statistics": {"snapshot-id": 5, "statistics-path": "file:///etc/x", "file-size-in-bytes": 1,
                                                      "file-footer-size-in-bytes": 1, "blob-metadata": []}}],
    ):  # fmt: skip
        assert post(lake, "namespaces/sales/tables/t", {"requirements": [], "updates": updates})[0] == 403, updates


def test_only_an_administrator_registers_a_metadata_file(lake: Lake) -> None:
    table = lake.person().create_table("sales.t", SCHEMA)
    body = {"name": "copy", "metadata-location": table.metadata_location}
    assert post(lake, "namespaces/sales/register", body) == (403, "ForbiddenException")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("namespaces/sales/tables", {"name": "t", "schema": SCHEMA_JSON, "properties": {"format-version": "3"}}, 406),
        ("namespaces/sales/tables", {"name": "../t", "schema": SCHEMA_JSON}, 400),
        ("namespaces/sales/tables", {"name": "t"}, 400),
        ("namespaces/sales/tables", [], 400),
        ("namespaces/nowhere/tables", {"name": "t", "schema": SCHEMA_JSON}, 404),
        ("namespaces/sales/tables/none", {"requirements": [], "updates": []}, 404),
        ("namespaces", {"namespace": ["a.b"]}, 400),
        ("namespaces", {"namespace": [".."]}, 400),
        ("namespaces", {"namespace": ["sales"]}, 409),
        ("nowhere", {}, 404),
        ("tables/rename", {"source": {}, "destination": {}}, 400),
    ],
)
def test_a_refusal_is_an_error_of_iceberg(lake: Lake, path: str, body: Any, status: int) -> None:
    assert post(lake, path, body)[0] == status


def test_an_upgrade_of_the_format_is_refused_in_one_sentence(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    updates = [{"action": "upgrade-format-version", "format-version": 3}]
    answer = requests.post(
        f"{lake.uri}/v1/namespaces/sales/tables/t", json={"requirements": [], "updates": updates},
        headers={"Authorization": "Bearer person-ada"}, timeout=10,
    )  # fmt: skip
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        406, "Format version 3 of Iceberg is not supported: create the table with format-version 2."
    )  # fmt: skip
    assert post(lake, "namespaces/sales/tables/t", {"requirements": [], "updates": [{"action": "no-such"}]})[0] == 400
