"""Views: seen by their try alone until its success, and they share names, rights, folders and upkeep with tables."""

from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.view.metadata import ViewVersion
from support.tables import SCHEMA, Lake, rows

from paceline.states import TaskState
from scheduler.catalog import gc
from scheduler.store.db.database import transact
from scheduler.store.tables import history
from scheduler.store.worker.claims import Claim, Ending, Refused
from scheduler.store.worker.table_tries import TablesChangedError

FIELDS = Schema(NestedField(1, "id", LongType()))
Answer = tuple[int, Any]


def version(sql: str, schema_id: int = 0, dialect: str = "spark") -> dict[str, Any]:
    return {"version-id": 1, "schema-id": schema_id, "timestamp-ms": 1, "summary": {}, "default-namespace": ["sales"],
            "representations": [{"type": "sql", "sql": sql, "dialect": dialect}]}  # fmt: skip


def create(catalog: RestCatalog, name: str, sql: str = "select 1 as id") -> Any:
    return catalog.create_view(name, FIELDS, ViewVersion.model_validate(version(sql)))


def ask(lake: Lake, catalog: RestCatalog, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    headers |= {"Authorization": f"Bearer {catalog.properties['token']}"}
    answer = requests.request(method, f"{lake.uri}/v1/{path}", json=body, headers=headers, timeout=10)
    return answer.status_code, answer.json() if answer.content else None


def sql(catalog: RestCatalog, name: str) -> str:
    view = catalog.load_view(name)
    (text,) = (
        one.representations[0].root.sql for one in view.metadata.versions if one.version_id == view.metadata.current_version_id
    )
    return text


def publish(lake: Lake, claim: Claim) -> Refused | Any:
    return lake.scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake"))


def replace(lake: Lake, catalog: RestCatalog, name: str, text: str) -> Answer:
    body = {"updates": [
        {"action": "add-schema", "schema": Schema(NestedField(1, "n", StringType())).model_dump(by_alias=True)},
        {"action": "add-view-version", "view-version": version(text, schema_id=-1)},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-properties", "updates": {"comment": text}},
    ]}  # fmt: skip
    return ask(lake, catalog, "POST", f"namespaces/sales/views/{name}", body)


def test_a_view_is_seen_by_its_try_until_the_success(lake: Lake) -> None:
    person = lake.person()
    claim, catalog = lake.attempt()
    catalog.create_table("sales.t", SCHEMA)
    create(catalog, "sales.v", "select id from t")
    assert (catalog.list_views("sales"), catalog.list_tables("sales")) == ([("sales", "v")], [("sales", "t")])
    assert not person.view_exists("sales.v") and person.list_views("sales") == []
    assert publish(lake, claim).is_stored
    assert sql(person, "sales.v") == "select id from t"
    assert person.list_tables("sales") == [("sales", "t")]
    assert lake.scenario.rows("select table_name, iceberg_type from iceberg_tables order by 1") == [("t", "TABLE"), ("v", "VIEW")]
    assert [row["table"] for row in transact(lake.scenario.engine, history.tables, "lake", None, 10)] == ["sales.t"]


def test_a_failure_publishes_no_view_and_its_files_go(lake: Lake) -> None:
    claim, catalog = lake.attempt()
    create(catalog, "sales.v")
    assert replace(lake, catalog, "v", "select 2 as id")[0] == 200
    lake.scenario.follower.report(claim, Ending(TaskState.FAILED))
    assert not lake.person().view_exists("sales.v")
    assert gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0).files == 2
    assert lake.scenario.rows("select count(*) from table_folder") == [(0,)]


def test_views_are_replaced_renamed_and_dropped_as_of_the_start_of_a_try(lake: Lake) -> None:
    person = lake.person()
    create(person, "sales.a", "one")
    create(person, "sales.b", "b")
    claim, catalog = lake.attempt()
    _, reader = lake.attempt("reader")
    status, answer = replace(lake, catalog, "a", "two")
    assert (status, answer["metadata"]["current-version-id"], len(answer["metadata"]["schemas"])) == (200, 2, 2)
    catalog.drop_view("sales.b")
    body = {"source": {"namespace": ["sales"], "name": "a"}, "destination": {"namespace": ["sales"], "name": "c"}}
    assert ask(lake, catalog, "POST", "views/rename", body, **{"Idempotency-Key": "k"})[0] == 204
    assert ask(lake, catalog, "POST", "views/rename", body, **{"Idempotency-Key": "k"})[0] == 204
    assert ask(lake, catalog, "POST", "views/rename", body)[0] == 404
    assert (catalog.list_views("sales"), sql(catalog, "sales.c")) == ([("sales", "c")], "two")
    assert publish(lake, claim).is_stored
    assert (person.list_views("sales"), sql(person, "sales.c")) == ([("sales", "c")], "two")
    assert (reader.list_views("sales"), sql(reader, "sales.a")) == ([("sales", "a"), ("sales", "b")], "one")
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    assert (sql(reader, "sales.a"), sql(person, "sales.c")) == ("one", "two")


def test_two_tries_that_replace_a_view_conflict(lake: Lake) -> None:
    create(lake.person(), "sales.v", "old")
    (one, first), (two, second) = lake.attempt("d1"), lake.attempt("d2")
    assert [replace(lake, catalog, "v", name)[0] for catalog, name in ((first, "one"), (second, "two"))] == [200, 200]
    assert publish(lake, one).is_stored
    with pytest.raises(TablesChangedError, match="d1"):
        publish(lake, two)
    assert sql(lake.person(), "sales.v") == "one"


def test_a_view_is_no_table_and_a_table_no_view(lake: Lake) -> None:
    for number, catalog in enumerate((lake.person(), lake.attempt()[1])):
        table, view = f"t{number}", f"v{number}"
        catalog.create_table(f"sales.{table}", SCHEMA).append(rows(1))
        create(catalog, f"sales.{view}")
        with pytest.raises(NoSuchTableError):
            catalog.load_table(f"sales.{view}")
        fields = FIELDS.model_dump(by_alias=True)
        new_view = {"name": table, "schema": fields, "view-version": version("x"), "properties": {}}
        commit = {"requirements": [], "updates": []}
        rename = {"source": {"namespace": ["sales"], "name": view}, "destination": {"namespace": ["sales"], "name": "other"}}
        onto = {"source": {"namespace": ["sales"], "name": view}, "destination": {"namespace": ["sales"], "name": table}}
        for wanted, method, path, body in (
            (409, "POST", "namespaces/sales/tables", {"name": view, "schema": fields}),
            (409, "POST", "namespaces/sales/views", new_view),
            (409, "POST", f"namespaces/sales/tables/{view}", commit),
            (404, "POST", f"namespaces/sales/views/{table}", commit),
            (404, "DELETE", f"namespaces/sales/tables/{view}", None),
            (404, "DELETE", f"namespaces/sales/views/{table}", None),
            (404, "GET", f"namespaces/sales/views/{table}", None),
            (404, "HEAD", f"namespaces/sales/tables/{view}", None),
            (404, "POST", "tables/rename", rename),
            (409, "POST", "views/rename", onto),
        ):
            assert ask(lake, catalog, method, path, body)[0] == wanted, (method, path)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "../v"}, 400),
        ({"location": "file:///etc"}, 403),
        ({"properties": {"write.metadata.path": "file:///etc"}}, 406),
        ({"properties": {"version.history.num-entries": "0"}}, 400),
        ({"view-version": {**version("x"), "representations": []}}, 400),
        ({"view-version": None}, 400),
    ],
)
def test_a_view_that_is_refused(lake: Lake, change: dict[str, Any], status: int) -> None:
    body = {"name": "v", "schema": FIELDS.model_dump(by_alias=True), "view-version": version("x"), "properties": {}, **change}
    assert ask(lake, lake.person(), "POST", "namespaces/sales/views", body)[0] == status


def test_a_commit_that_is_refused(lake: Lake) -> None:
    person = lake.person()
    create(person, "sales.v", "old")
    for status, body in (
        (409, {"requirements": [{"type": "assert-view-uuid", "uuid": "other"}], "updates": []}),
        (400, {"updates": [{"action": "set-current-view-version", "view-version-id": 9}]}),
        (400, {"updates": [{"action": "add-view-version", "view-version": version("x", schema_id=7)}]}),
        (400, {"updates": [{"action": "upgrade-format-version", "format-version": 2}]}),
        (400, {"updates": ["add-view-version"]}),
        (403, {"updates": [{"action": "set-location", "location": "file:///etc"}]}),
    ):
        assert ask(lake, person, "POST", "namespaces/sales/views/v", body)[0] == status, body
    for number in range(12):
        assert replace(lake, person, "v", str(number))[0] == 200
    metadata = person.load_view("sales.v").metadata
    assert (len(metadata.versions), len(metadata.schemas), sql(person, "sales.v")) == (10, 2, "11")


def test_a_try_uses_views_only_where_it_may(lake: Lake) -> None:
    create(lake.person(), "sales.v")
    _, catalog = lake.attempt("other")
    lake.scenario.sql(
        "insert into iceberg_namespace_properties values ('lake', 'sales', 'paceline.writers', 'dag:d'),"
        " ('lake', 'sales', 'paceline.readers', 'dag:d')"
    )
    for method, path, body in (
        ("GET", "namespaces/sales/views", None), ("GET", "namespaces/sales/views/v", None),
        ("DELETE", "namespaces/sales/views/v", None),
        ("POST", "namespaces/sales/views/v", {"updates": []}),
        ("POST", "namespaces/sales/views", {"name": "w", "schema": FIELDS.model_dump(by_alias=True), "view-version": version("x")}),
    ):  # fmt: skip
        assert ask(lake, catalog, method, path, body)[0] == 403, (method, path)
