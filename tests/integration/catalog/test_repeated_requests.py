"""A client that got no answer sends its request again: it is answered as it was, and done once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.types import LongType
from support.tables import SCHEMA, Lake, ids, rows

from scheduler.catalog.access import Caller
from scheduler.catalog.files import Warehouse
from scheduler.store.tables.pointers import Change

Sent = tuple[str, str, bytes, dict[str, str]]


def noted(catalog: RestCatalog) -> list[Sent]:
    """The requests that change something, from now on."""
    sent: list[Sent] = []

    def note(answer: requests.Response, **_: object) -> None:
        if answer.request.method in ("POST", "DELETE"):
            body = answer.request.body or b""
            content = body.encode() if isinstance(body, str) else bytes(body)
            sent.append((str(answer.request.method), str(answer.request.url), content, dict(answer.request.headers)))

    catalog._session.hooks["response"].append(note)
    return sent


def again(sent: Sent) -> tuple[int, Any]:
    method, url, body, headers = sent
    answer = requests.request(method, url, data=body, headers=headers, timeout=10)
    return answer.status_code, answer.json() if answer.content else None


def callers(lake: Lake) -> list[RestCatalog]:
    return [lake.person(), lake.attempt()[1]]


def test_a_second_create_is_an_error_unless_it_has_the_idempotency_key_of_the_first(lake: Lake) -> None:
    for number, catalog in enumerate(callers(lake)):
        catalog.create_table(f"sales.plain{number}", SCHEMA)
        with pytest.raises(TableAlreadyExistsError):
            catalog.create_table(f"sales.plain{number}", SCHEMA)
        catalog._session.headers["Idempotency-Key"] = "one"
        sent = noted(catalog)
        table = catalog.create_table(f"sales.t{number}", SCHEMA)
        status, answer = again(sent[-1])
        assert (status, answer["metadata-location"]) == (200, table.metadata_location)
        method, url, body, headers = sent[-1]
        assert again((method, url, body, {**headers, "Idempotency-Key": "two"}))[0] == 409
        del catalog._session.headers["Idempotency-Key"]
        table.append(rows(1))
        status, answer = again(sent[0])
        assert (status, answer["metadata-location"]) == (200, table.refresh().metadata_location)


def test_a_repeated_commit_without_a_snapshot_is_answered_with_the_table(lake: Lake) -> None:
    for number, catalog in enumerate(callers(lake)):
        table = catalog.create_table(f"sales.t{number}", SCHEMA)
        sent = noted(catalog)
        with table.update_schema() as schema:
            schema.add_column("more", LongType())
        status, answer = again(sent[-1])
        assert (status, answer["metadata-location"]) == (200, table.refresh().metadata_location)
        assert table.schema().column_names == ["id", "who", "more"]


def test_an_equal_request_of_another_person_is_no_repetition(lake: Lake) -> None:
    ada, bob = lake.person(), lake.person("bob")
    sent = noted(ada)
    table = ada.create_table("sales.t", SCHEMA)
    with table.update_schema() as schema:
        schema.add_column("more", LongType())
    for _, url, body, headers in sent:
        answer = requests.post(url, body, headers={**headers, "Authorization": f"Bearer {bob.properties['token']}"}, timeout=10)
        assert answer.status_code == 409


def test_each_change_with_an_idempotency_key_is_done_once(lake: Lake) -> None:
    """Also if something else has changed the same names meanwhile."""
    for number, catalog in enumerate(callers(lake)):
        change_once(lake, catalog, f"n{number}")


def change_once(lake: Lake, catalog: RestCatalog, namespace: str) -> None:
    keys = iter(range(100))
    sent = noted(catalog)

    def once(change: Callable[[], object]) -> None:
        catalog._session.headers["Idempotency-Key"] = str(next(keys))
        change()
        del catalog._session.headers["Idempotency-Key"]

    once(lambda: catalog.create_namespace(namespace))
    once(lambda: catalog.update_namespace_properties(namespace, updates={"k": "v"}))
    for name in ("dropped", "renamed"):
        catalog.create_table(f"{namespace}.{name}", SCHEMA)
    once(lambda: catalog.load_table(f"{namespace}.dropped").append(rows(1)))
    once(lambda: catalog.drop_table(f"{namespace}.dropped"))
    once(lambda: catalog.rename_table(f"{namespace}.renamed", f"{namespace}.other"))
    catalog.create_table(f"{namespace}.dropped", SCHEMA).append(rows(7))
    catalog.create_table(f"{namespace}.renamed", SCHEMA)
    catalog.update_namespace_properties(namespace, updates={"k": "w"})
    keyed = [one for one in sent if "Idempotency-Key" in one[3]]
    assert len(keyed) == 5
    assert [again(one)[0] for one in keyed] == [200, 200, 200, 204, 204]
    assert sorted(catalog.list_tables(namespace)) == [(namespace, name) for name in ("dropped", "other", "renamed")]
    assert ids(catalog.load_table(f"{namespace}.dropped")) == [7]
    assert catalog.load_namespace_properties(namespace) == {"k": "w"}
    for name in ("dropped", "other", "renamed"):
        catalog.drop_table(f"{namespace}.{name}")
    once(lambda: catalog.drop_namespace(namespace))
    assert again(sent[-1])[0] == 204
    method, url, body, headers = sent[-1]
    assert again((method, url, body, {**headers, "Idempotency-Key": "another"}))[0] == 404
    bob = {**headers, "Authorization": f"Bearer {lake.person('bob').properties['token']}"}
    assert again((method, url, body, bob))[0] == 404, "the key of another caller"


def test_what_postgresql_stored_before_its_answer_was_lost_is_stored(lake: Lake) -> None:
    """The catalog repeats the transaction, and meets what it has stored itself."""
    for number, catalog in enumerate(callers(lake)):
        token = str(catalog.properties["token"])
        caller = lake.tables.caller(token) or Caller("ada", may_write=True)
        places = {name: catalog.create_table(f"sales.{name}{number}", SCHEMA).metadata_location for name in ("a", "b")}

        def change(name: str, expected: str | None, location: str | None, number: int = number) -> Change:
            return Change(namespace="sales", name=f"{name}{number}", expected=expected, location=location, is_new=False)

        dropped = [change("a", places["a"], None)]
        renamed = [change("b", places["b"], None), change("c", None, places["b"])]
        for changes in (dropped, dropped, renamed, renamed):
            assert lake.tables.store(caller, changes)
        assert not catalog.table_exists(f"sales.a{number}")
        assert catalog.load_table(f"sales.c{number}").metadata_location == places["b"]


class Slow(Warehouse):
    """The storage takes long for the first file; meanwhile, the client sends the request again, and that one is faster."""

    def __init__(self, url: str, meanwhile: Callable[[], requests.Response]) -> None:
        super().__init__(url, {})
        self._meanwhile = meanwhile
        self.written: list[str] = []
        self.answers: list[requests.Response] = []

    def write(self, *arguments: Any) -> str:
        location = super().write(*arguments)
        self.written.append(location)
        if len(self.written) == 1:
            self.answers.append(self._meanwhile())
        return location


class Failing(Warehouse):
    """A storage that accepts no files."""

    def write(self, *_: Any) -> str:
        raise OSError("AWS Error SLOW_DOWN")


def post(lake: Lake, path: str, body: Any, catalog: RestCatalog) -> requests.Response:
    headers = {"Authorization": f"Bearer {catalog.properties['token']}"}
    return requests.post(f"{lake.uri}/v1/namespaces/{path}", json=body, headers=headers, timeout=10)


def test_a_request_that_is_repeated_while_the_first_is_in_work_is_done_once(lake: Lake) -> None:
    for number, catalog in enumerate(callers(lake)):
        table = catalog.create_table(f"sales.t{number}", SCHEMA)
        location = f"sales/tables/t{number}"
        body = {
            "requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}],
            "updates": [{"action": "set-properties", "updates": {"k": "v"}}],
        }
        slow = Slow(lake.tables.warehouse.url, lambda at=location, body=body, catalog=catalog: post(lake, at, body, catalog))
        plain, lake.tables.warehouse = lake.tables.warehouse, slow
        answers = [post(lake, location, body, catalog), *slow.answers]
        lake.tables.warehouse = plain
        assert [one.status_code for one in answers] == [200, 200]
        assert answers[0].json()["metadata-location"] == answers[1].json()["metadata-location"] == slow.written[1]
        assert table.refresh().properties["k"] == "v"
        folder = Path(table.location().removeprefix("file://"), "metadata")
        assert len(list(folder.iterdir())) == 2, "the file of the slower one is deleted"


def test_a_storage_that_fails_is_no_commit_of_unknown_state(lake: Lake) -> None:
    lake.tables.warehouse = Failing(lake.tables.warehouse.url, {})
    body = {"name": "t", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
    answer = post(lake, "sales/tables", body, lake.person())
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableException")
    assert "SLOW_DOWN" in answer.json()["error"]["message"]
