"""What a running try writes is seen by that try alone, and what others publish meanwhile it does not see."""

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError, TableAlreadyExistsError, UnauthorizedError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Ending


def auth(catalog: RestCatalog) -> dict[str, str]:
    return {"Authorization": f"Bearer {catalog.properties['token']}", "Content-Type": "application/json"}


def test_a_try_sees_what_it_wrote_and_nobody_else_does(lake: Lake) -> None:
    lake.person().create_table("sales.old", SCHEMA).append(rows(1))
    _, catalog = lake.attempt()
    catalog.create_table("sales.new", SCHEMA).append(rows(7, 8))
    catalog.load_table("sales.old").append(rows(2))
    assert [name for _, name in sorted(catalog.list_tables("sales"))] == ["new", "old"]
    assert (ids(catalog.load_table("sales.new")), ids(catalog.load_table("sales.old"))) == ([7, 8], [1, 2])
    for other in (lake.person(), lake.attempt("other")[1]):
        assert other.list_tables("sales") == [("sales", "old")]
        assert ids(other.load_table("sales.old")) == [1]
        with pytest.raises(NoSuchTableError):
            other.load_table("sales.new")


def test_a_try_reads_all_tables_as_of_its_start(lake: Lake) -> None:
    person = lake.person()
    kept, gone = person.create_table("sales.kept", SCHEMA), person.create_table("sales.gone", SCHEMA)
    kept.append(rows(1))
    gone.append(rows(1))
    _, catalog = lake.attempt()
    kept.append(rows(2))
    person.drop_table("sales.gone")
    person.create_table("sales.later", SCHEMA)
    assert [name for _, name in sorted(catalog.list_tables("sales"))] == ["gone", "kept"]
    assert (ids(catalog.load_table("sales.kept")), ids(catalog.load_table("sales.gone"))) == ([1], [1])
    assert not catalog.table_exists("sales.later")


def test_what_a_try_dropped_is_gone_for_it_alone_and_may_be_created_again(lake: Lake) -> None:
    first = lake.person().create_table("sales.t", SCHEMA)
    _, catalog = lake.attempt()
    catalog.drop_table("sales.t")
    assert not catalog.table_exists("sales.t")
    assert lake.person().table_exists("sales.t")
    again = catalog.create_table("sales.t", Schema(NestedField(1, "other", LongType())))
    assert again.metadata.table_uuid != first.metadata.table_uuid
    assert again.location() != first.location()
    catalog.rename_table("sales.t", "sales.renamed")
    assert catalog.list_tables("sales") == [("sales", "renamed")]


def test_the_token_of_a_try_ends_with_it(lake: Lake) -> None:
    claim, catalog = lake.attempt()
    table = catalog.create_table("sales.t", SCHEMA)
    assert lake.scenario.follower.report(claim, Ending(TaskState.UP_FOR_RETRY, delay_s=0)).is_stored
    with pytest.raises((UnauthorizedError, RESTError)):
        table.append(rows(1))
    answer = requests.get(f"{lake.uri}/v1/namespaces", headers={"Authorization": "Bearer nobody"}, timeout=10)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "NotAuthorizedException")
    assert requests.get(f"{lake.uri}/v1/namespaces", timeout=10).status_code == 401


def test_a_later_dispatch_of_the_try_keeps_what_it_wrote_and_the_next_try_does_not(lake: Lake) -> None:
    scenario = lake.scenario
    claim, catalog = lake.attempt()
    catalog.create_table("sales.t", SCHEMA)
    assert scenario.follower.report(claim, Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=0, resume={"pokes": 1})).is_stored
    with pytest.raises((UnauthorizedError, RESTError)):
        catalog.list_tables("sales")
    scenario.turn()
    (message,) = scenario.messages()
    again = scenario.claim(message)
    assert again is not None and again.try_number == claim.try_number
    assert table_tries.continues(scenario.hot.dicts, again)
    assert lake.catalog(table_tries.give_token(scenario.hot.dicts, again)).table_exists("sales.t")
    assert scenario.follower.report(again, Ending(TaskState.UP_FOR_RETRY, delay_s=0)).is_stored
    scenario.turn()
    (message,) = scenario.messages()
    next_try = scenario.claim(message)
    assert next_try is not None
    assert not table_tries.continues(scenario.hot.dicts, next_try)
    assert not lake.catalog(table_tries.give_token(scenario.hot.dicts, next_try)).table_exists("sales.t")


def test_only_the_hash_of_a_token_is_stored(lake: Lake) -> None:
    token = table_tries.give_token(lake.scenario.hot.dicts, lake.claim())
    ((text,),) = lake.scenario.rows("select t::text from table_try t")
    assert token not in text
    assert token not in repr(lake.access(token))


def test_commits_of_people_are_publications_and_stale_ones_are_refused(lake: Lake) -> None:
    person = lake.person()
    table = person.create_table("sales.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    late = lake.person("bob").load_table("sales.t")
    table.append(rows(1))
    with pytest.raises(CommitFailedException):
        late.append(rows(2))
    with pytest.raises(TableAlreadyExistsError):
        person.create_table("sales.t", SCHEMA)
    assert lake.scenario.rows("select publication, published_by from table_version order by 1") == [(1, "ada"), (2, "ada")]
    assert lake.scenario.rows("select facts->>'added_records' from table_version where publication = 2") == [("1",)]


def test_a_commit_whose_answer_was_lost_is_repeated(lake: Lake) -> None:
    for catalog in (lake.person(), lake.attempt()[1]):
        table = catalog.create_table(f"sales.t{id(catalog)}", SCHEMA)
        sent: list[tuple[str, bytes]] = []

        def note(answer: requests.Response, sent: list[tuple[str, bytes]] = sent, **_: object) -> None:
            if answer.request.method == "POST" and b"add-snapshot" in (answer.request.body or b""):
                sent.append((answer.request.url, answer.request.body))

        catalog._session.hooks["response"].append(note)
        table.append(rows(1))
        ((url, body),) = sent
        before = table.refresh().metadata_location
        answer = requests.post(url, body, headers=auth(catalog), timeout=10)
        assert answer.status_code == 200
        assert table.refresh().metadata_location == before
        assert ids(table) == [1]


def test_a_staged_table_and_a_transaction_over_several_tables(lake: Lake) -> None:
    _, catalog = lake.attempt()
    with catalog.create_table_transaction("sales.staged", SCHEMA) as transaction:
        assert not catalog.table_exists("sales.staged")
        transaction.append(rows(1))
    assert ids(catalog.load_table("sales.staged")) == [1]
    other = catalog.create_table("sales.other", SCHEMA)

    def change(name: str, uuid: str) -> dict[str, object]:
        return {
            "identifier": {"namespace": ["sales"], "name": name},
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
            "updates": [{"action": "set-properties", "updates": {"k": "v"}}],
        }

    staged = catalog.load_table("sales.staged")
    url, headers = f"{lake.uri}/v1/transactions/commit", auth(catalog)
    wrong = [change("staged", str(staged.metadata.table_uuid)), change("other", str(staged.metadata.table_uuid))]
    answer = requests.post(url, json={"table-changes": wrong}, headers=headers, timeout=10)
    assert answer.status_code == 409
    assert "k" not in staged.refresh().properties
    right = [change("staged", str(staged.metadata.table_uuid)), change("other", str(other.metadata.table_uuid))]
    assert requests.post(url, json={"table-changes": right}, headers=headers, timeout=10).status_code == 204
    assert (staged.refresh().properties["k"], other.refresh().properties["k"]) == ("v", "v")


def test_namespaces_have_properties_and_are_dropped_when_empty(lake: Lake) -> None:
    _, catalog = lake.attempt()
    catalog.create_namespace("a.b", {"team": "x"})
    assert catalog.load_namespace_properties("a.b") == {"team": "x"}
    catalog.update_namespace_properties("a.b", removals={"team"}, updates={"other": "y"})
    assert catalog.load_namespace_properties("a.b") == {"other": "y"}
    assert catalog.list_namespaces() == [("a",), ("sales",)]
    assert catalog.list_namespaces("a") == [("a", "b")]
    catalog.create_table("a.b.t", SCHEMA)
    for name in ("a.b", "a.b"):
        answer = requests.delete(f"{lake.uri}/v1/namespaces/{name.replace('.', '%1F')}", headers=auth(catalog), timeout=10)
        assert answer.status_code == 409
    catalog.drop_table("a.b.t")
    catalog.drop_namespace("a.b")
    assert not catalog.namespace_exists("a.b")


def test_schemas_specs_branches_and_properties_change_in_a_try(lake: Lake) -> None:
    _, catalog = lake.attempt()
    table = catalog.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    with table.update_schema() as schema:
        schema.add_column("more", LongType())
    with table.update_spec() as spec:
        spec.add_identity("who")
    with table.manage_snapshots() as snapshots:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        snapshots.create_branch(snapshot.snapshot_id, "audit")
        snapshots.create_tag(snapshot.snapshot_id, "first")
    table.append(pa.table({"id": [2], "who": ["x"], "more": [3]}))
    loaded = catalog.load_table("sales.t")
    assert loaded.schema().column_names == ["id", "who", "more"]
    assert set(loaded.refs()) == {"main", "audit", "first"}
    assert ids(loaded) == [1, 2]


def test_the_facts_of_a_try_are_those_of_all_its_commits(lake: Lake) -> None:
    scenario = lake.scenario
    lake.person().create_table("sales.old", SCHEMA).append(rows(1))
    claim, catalog = lake.attempt()
    table = catalog.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    old = catalog.load_table("sales.old")
    with old.update_schema() as schema:
        schema.add_column("more", LongType())
    old.append(pa.table({"id": [2], "who": ["x"], "more": [3]}))
    catalog.create_table("sales.first", SCHEMA).append(rows(1))
    catalog.rename_table("sales.first", "sales.second")
    assert scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake")).is_stored
    for name, columns in (("t", ["id", "who"]), ("old", ["id", "who", "more"]), ("second", ["id", "who"])):
        ((facts,),) = scenario.rows("select facts from table_version where name = %s order by publication desc limit 1", name)
        assert list(facts.get("columns", ())) == columns, name
