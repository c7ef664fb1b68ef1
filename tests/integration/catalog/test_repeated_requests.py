"""A client that got no answer sends its request again: it is answered as it was, and done once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.types import LongType
from support.tables import SCHEMA, Lake, rows

from scheduler.catalog.files import Warehouse

Sent = tuple[str, bytes, dict[str, str]]


def noted(catalog: RestCatalog) -> list[Sent]:
    """The requests that change something, from now on."""
    sent: list[Sent] = []

    def note(answer: requests.Response, **_: object) -> None:
        if answer.request.method == "POST":
            sent.append((str(answer.request.url), bytes(answer.request.body or b""), dict(answer.request.headers)))

    catalog._session.hooks["response"].append(note)
    return sent


def again(sent: Sent) -> tuple[int, Any]:
    url, body, headers = sent
    answer = requests.post(url, body, headers=headers, timeout=10)
    return answer.status_code, answer.json()


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
        url, body, headers = sent[-1]
        assert again((url, body, {**headers, "Idempotency-Key": "two"}))[0] == 409
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
    for url, body, headers in sent:
        answer = requests.post(url, body, headers={**headers, "Authorization": f"Bearer {bob.properties['token']}"}, timeout=10)
        assert answer.status_code == 409


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
