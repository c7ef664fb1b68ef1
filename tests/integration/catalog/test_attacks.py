"""What the catalog refuses: paths outside of a namespace, forged files, formats that it cannot write, and broken requests."""

from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.exceptions import RESTError, UnauthorizedError
from support.tables import SCHEMA, Lake, rows

from paceline.states import TaskState
from scheduler.catalog.files import Warehouse
from scheduler.store.worker.claims import Ending

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
        ("namespaces/sales%00/tables", {"name": "t", "schema": SCHEMA_JSON}, 400),
        ("nowhere", {}, 404),
        ("tables/rename", {"source": {}, "destination": {}}, 400),
    ],
)
def test_a_refusal_is_an_error_of_iceberg(lake: Lake, path: str, body: Any, status: int) -> None:
    assert post(lake, path, body)[0] == status


def test_names_that_are_missing_or_taken_have_the_words_of_iceberg(lake: Lake) -> None:
    """As its clients compare them."""
    person = lake.person()
    person.create_table("sales.t", SCHEMA)
    version = {"version-id": 1, "schema-id": 0, "timestamp-ms": 1, "summary": {}, "default-namespace": ["sales"],
               "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}]}  # fmt: skip
    view = {"schema": SCHEMA_JSON, "view-version": version, "properties": {}}
    assert post(lake, "namespaces/sales/views", {"name": "v", **view})[0] == 200
    create = {"requirements": [{"type": "assert-create"}], "updates": []}
    other = {"requirements": [{"type": "assert-current-schema-id", "current-schema-id": 7}], "updates": []}

    def message(path: str, body: Any) -> str:
        answer = requests.post(f"{lake.uri}/v1/{path}", json=body, headers={"Authorization": "Bearer person-ada"}, timeout=10)
        return str(answer.json()["error"]["message"])

    def renamed(kind: str, source: str, target: str) -> str:
        names = {"source": {"namespace": ["sales"], "name": source}, "destination": {"namespace": ["sales"], "name": target}}
        return message(f"{kind}/rename", names)

    assert message("namespaces/none/tables", {"name": "t", "schema": SCHEMA_JSON}) == "Namespace does not exist: none"
    assert message("namespaces", {"namespace": ["sales"]}) == "Namespace already exists: sales"
    assert message("namespaces/sales/tables", {"name": "t", "schema": SCHEMA_JSON}) == "Table already exists: sales.t"
    assert message("namespaces/sales/tables", {"name": "v", "schema": SCHEMA_JSON}) == (
        "View with same name already exists: sales.v"
    )
    assert message("namespaces/sales/views", {"name": "t", **view}) == "Table with same name already exists: sales.t"
    assert message("namespaces/sales/views", {"name": "v", **view}) == "View already exists: sales.v"
    assert renamed("tables", "none", "new") == "Table does not exist: sales.none"
    assert renamed("views", "none", "new") == "View does not exist: sales.none"
    assert renamed("tables", "t", "v") == "Cannot rename sales.t to sales.v. View already exists"
    assert renamed("views", "v", "t") == "Cannot rename sales.v to sales.t. Table already exists"
    assert message("namespaces/sales/tables/none", {"requirements": [], "updates": []}) == "Table does not exist: sales.none"
    assert message("namespaces/sales/tables/v", create) == "View with same name already exists: sales.v"
    assert message("namespaces/sales/tables/t", create) == "Requirement failed: table already exists"
    assert message("namespaces/sales/tables/t", other) == "Requirement failed: current schema changed: expected 7, found 0"


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


def test_a_try_writes_with_its_own_token_only_for_itself(lake: Lake) -> None:
    first, of_first = lake.attempt("first")
    second, of_second = lake.attempt("second")
    of_first.create_table("sales.of_first", SCHEMA).append(rows(1))
    stolen = lake.catalog(str(of_second.properties["token"]))
    stolen.create_table("sales.of_second", SCHEMA).append(rows(2))
    report = lake.scenario.follower.report
    assert report(first, Ending(TaskState.SUCCESS, tables="lake")).is_stored
    assert lake.person().list_tables("sales") == [("sales", "of_first")]
    with pytest.raises((UnauthorizedError, RESTError)):
        of_first.load_table("sales.of_first")
    assert report(second, Ending(TaskState.FAILED)).is_stored
    with pytest.raises((UnauthorizedError, RESTError)):
        stolen.create_table("sales.late", SCHEMA)
    assert lake.person().list_tables("sales") == [("sales", "of_first")]


def test_a_late_commit_of_an_ended_try_stores_nothing_and_leaves_no_metadata(lake: Lake) -> None:
    """The try ends between the check of its token and the storing of the pointer."""
    claim, catalog = lake.attempt()
    table = catalog.create_table("sales.t", SCHEMA)
    folder = Path(table.location().removeprefix("file://"), "metadata")
    before = set(folder.iterdir())

    class Slow(Warehouse):
        def write(self, *arguments: Any) -> str:
            location = super().write(*arguments)
            assert lake.scenario.follower.report(claim, Ending(TaskState.UP_FOR_RETRY, delay_s=0)).is_stored
            return location

    lake.tables.warehouse = Slow(lake.tables.warehouse.url, {})
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    token = str(catalog.properties["token"])
    assert post(lake, "namespaces/sales/tables/t", body, token) == (401, "NotAuthorizedException")
    assert set(folder.iterdir()) == before
    assert len(lake.scenario.rows("select unnest(written) from table_pending")) == 1


def test_a_client_says_nowhere_where_the_metadata_is(lake: Lake) -> None:
    victim = lake.person().create_table("sales.victim", SCHEMA)
    _, catalog = lake.attempt()
    token = str(catalog.properties["token"])
    assert post(lake, "namespaces/sales/register", {"name": "t", "metadata-location": victim.metadata_location}, token)[0] == 403
    forged = {"name": "t", "schema": SCHEMA_JSON, "metadata-location": victim.metadata_location}
    assert post(lake, "namespaces/sales/tables", forged, token) == (200, "")
    table = catalog.load_table("sales.t")
    assert table.metadata_location != victim.metadata_location
    assert table.metadata.table_uuid != victim.metadata.table_uuid
    body = {"requirements": [], "updates": [], "metadata-location": victim.metadata_location}
    assert post(lake, "namespaces/sales/tables/t", body, token) == (200, "")
    assert catalog.load_table("sales.t").metadata.table_uuid == table.metadata.table_uuid


@pytest.mark.parametrize("token", ["", "x" * 5000, "person", "\u00e9", "%00", "null", "' or true --"])
def test_a_token_that_nobody_has_is_refused(lake: Lake, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}".encode()}
    for path in ("namespaces", "namespaces/sales/tables", "config"):
        answer = requests.get(f"{lake.uri}/v1/{path}", headers=headers, timeout=10)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "NotAuthorizedException")


def test_a_team_neither_reads_nor_writes_the_namespace_of_another(lake: Lake) -> None:
    person = lake.person()
    person.create_namespace("team_a")
    table = person.create_table("team_a.t", SCHEMA)
    table.append(rows(1))
    lake.scenario.sql(
        "insert into iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)"
        " values ('lake', 'team_a', 'paceline.writers', 'dag:a'), ('lake', 'team_a', 'paceline.readers', 'dag:a')"
    )
    _, own = lake.attempt("a")
    assert own.load_table("team_a.t").metadata_location == table.metadata_location
    _, catalog = lake.attempt("b")
    mine = catalog.create_table("sales.t", SCHEMA)
    token, other = str(catalog.properties["token"]), {"namespace": ["team_a"], "name": "t"}
    name = {"namespace": ["sales"], "name": "t"}
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    theirs = {
        "requirements": [],
        "updates": [{"action": "add-snapshot", "snapshot": snapshot.model_dump(mode="json", by_alias=True)}],
    }
    attempts: list[tuple[str, str, Any]] = [
        ("GET", "namespaces/team_a", None), ("GET", "namespaces/team_a/tables", None), ("GET", "namespaces/team_a/tables/t", None),
        ("POST", "namespaces/team_a/tables/t", change), ("DELETE", "namespaces/team_a/tables/t", None),
        ("POST", "namespaces/team_a/tables", {"name": "u", "schema": SCHEMA_JSON}), ("DELETE", "namespaces/team_a", None),
        ("POST", "namespaces/team_a/properties", {"removals": ["paceline.writers"]}),
        ("POST", "namespaces", {"namespace": ["team_a", "below"]}),
        ("POST", "tables/rename", {"source": other, "destination": {"namespace": ["sales"], "name": "u"}}),
        ("POST", "tables/rename", {"source": name, "destination": {"namespace": ["team_a"], "name": "u"}}),
        ("POST", "transactions/commit", {"table-changes": [{"identifier": name, **change}, {"identifier": other, **change}]}),
        ("POST", "namespaces/sales/tables/t", theirs),
        ("POST", "namespaces/sales/tables", {"name": "v", "schema": SCHEMA_JSON, "location": table.location()}),
    ]  # fmt: skip
    for method, path, body in attempts:
        assert post(lake, path, body, token, method)[0] == 403, (method, path)
    assert "k" not in mine.refresh().properties
    assert person.load_table("team_a.t").metadata_location == table.metadata_location
