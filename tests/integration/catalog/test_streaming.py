"""What a streaming query writes is published with each epoch: its checkpoint counts it as written, so a killed try must keep it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, RESTError, UnauthorizedError
from pyiceberg.table import Table
from pyiceberg.types import LongType
from support.reproductions import original, work
from support.scenario import chain
from support.tables import SCHEMA, Lake, ids, rows

from paceline.authoring import execution, timetable
from paceline.authoring.asset import Asset
from paceline.exceptions import PacelineError
from paceline.operators.spark import run_until_stopped
from paceline.states import TaskState
from paceline.tables import published, streams
from scheduler.actions import runs as actions
from scheduler.actions.actor import Actor
from scheduler.catalog import gc
from scheduler.services.assets import Assets
from scheduler.store.dags.versions import Versions
from scheduler.store.worker import table_tries
from scheduler.store.worker.claims import Claim, Ending
from scheduler.store.worker.table_tries import BatchOpenError

QUERY, EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"


def commit(table: Table, epoch: int, *values: int, query: str = "q", tries: int = 3) -> bool:
    """Commit an epoch as Iceberg's sink for Spark does. False if the table has it."""
    for _ in range(tries - 1):
        try:
            return commit(table, epoch, *values, query=query, tries=1)
        except CommitFailedException:
            pass
    table.refresh()
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if summary.get(QUERY) == query:
            if epoch <= int(summary[EPOCH]):
                return False
            break
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    table.append(rows(*values), snapshot_properties={QUERY: query, EPOCH: str(epoch)})
    return True


def ends(lake: Lake, claim: Claim, state: TaskState = TaskState.SUCCESS) -> None:
    ending = Ending(state, tables="lake") if state is TaskState.SUCCESS else Ending(state, delay_s=0)
    assert lake.scenario.follower.report(claim, ending).is_stored


def retried(lake: Lake) -> tuple[Claim, RestCatalog]:
    """The next try, which is running, and its catalog."""
    lake.scenario.turn()
    (message,) = lake.scenario.messages()
    claim = lake.scenario.claim(message)
    assert claim is not None
    return claim, lake.catalog(table_tries.give_token(lake.scenario.hot.dicts, claim))


def seen(lake: Lake, name: str = "sales.t") -> list[int]:
    return ids(lake.person().load_table(name))


def test_others_see_each_epoch_while_the_try_runs_and_a_failure_keeps_them(lake: Lake) -> None:
    for name in ("t", "batch"):
        lake.person().create_table(f"sales.{name}", SCHEMA)
    claim, catalog = lake.attempt()
    catalog.load_table("sales.batch").append(rows(7))
    table = catalog.load_table("sales.t")

    for epoch in range(3):
        assert commit(table, epoch, epoch)
        assert seen(lake) == ids(table) == list(range(epoch + 1))
    assert (seen(lake, "sales.batch"), ids(catalog.load_table("sales.batch"))) == ([], [7])
    published = lake.scenario.rows(
        "select name, published_by, task_id, try_number, facts->>'added_records', facts->>'operation', facts->>'total_records'"
        " from table_version where task_instance_id = %s order by publication", claim.id
    )  # fmt: skip
    assert published == [("t", "d.t000", "t000", 1, "1", "append", str(total)) for total in (1, 2, 3)]

    ends(lake, claim, TaskState.UP_FOR_RETRY)
    gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0)
    assert (seen(lake), seen(lake, "sales.batch")) == ([0, 1, 2], [])
    again, catalog = retried(lake)
    assert again.try_number == 2
    table = catalog.load_table("sales.t")
    assert not commit(table, 2, 2), "the checkpoint of the killed try did not count it yet, but the table has it"
    assert commit(table, 3, 3)
    ends(lake, again)
    assert seen(lake) == [0, 1, 2, 3]
    assert lake.scenario.rows("select try_number from table_try") == [(1,)]


def test_the_first_epoch_publishes_what_the_try_has_done_to_the_table_before(lake: Lake) -> None:
    lake.person().create_table("sales.old", SCHEMA)
    claim, catalog = lake.attempt()
    new, old = catalog.create_table("sales.new", SCHEMA), catalog.load_table("sales.old")
    new.append(rows(10))
    with old.update_schema() as schema:
        schema.add_column("more", LongType())
    assert not lake.person().table_exists("sales.new")

    assert commit(new, 0, 11)
    assert seen(lake, "sales.new") == [10, 11]
    assert lake.person().load_table("sales.old").schema().column_names == ["id", "who"]
    old.refresh().append(
        pa.table({"id": [1], "who": ["w"], "more": [2]}, schema=old.schema().as_arrow()),
        snapshot_properties={QUERY: "q", EPOCH: "0"},
    )
    assert lake.person().load_table("sales.old").schema().column_names == ["id", "who", "more"]
    with new.update_schema() as schema:
        schema.add_column("later", LongType())
    assert lake.person().load_table("sales.new").schema().column_names == ["id", "who"]
    ends(lake, claim)
    assert lake.person().load_table("sales.new").schema().column_names == ["id", "who", "later"]
    added = lake.scenario.rows("select facts->>'added_records' from table_version where name = 'new' order by publication")
    assert added == [("2",), (None,)]


def test_each_epoch_updates_the_asset_of_its_table_while_the_task_runs(lake: Lake) -> None:
    scenario, tables = lake.scenario, [Asset.table(f"sales.{name}") for name in ("t", "other")]
    lake.person().create_table("sales.t", SCHEMA)
    scenario.add(chain("user", 1, schedule=timetable.WhenUpdated(tables[0]).to_spec(), max_active_runs=9))
    claim, catalog = lake.attempt(task={"outlets": tuple(one.uri for one in tables), "notify": ("asset",)})
    _, another = lake.attempt("without_outlets")
    table = catalog.load_table("sales.t")

    for epoch in range(2):
        assert commit(table, epoch, epoch)
        scenario.turn()
        runs = scenario.rows("select count(*) from dag_run where dag_id = 'user' and run_type = 'asset_triggered'")
        assert runs == [(epoch + 1,)]
    assert commit(another.load_table("sales.t"), 0, 5, query="another")
    scenario.turn()
    events = scenario.rows("select uri, dag_id, task_id, extra->'rows_added', extra->'rows' from asset_event order by id")
    assert events == [("table:sales.t", "d", "t000", 1, total) for total in (1, 2)]
    assert scenario.rows("select 1 from table_version where facts ? 'streams'") == []
    assert scenario.rows("select state from task_instance where id = %s", claim.id) == [("running",)]

    other = catalog.create_table("sales.other", SCHEMA)
    other.append(rows(7, 8))
    ends(lake, claim)
    scenario.turn()
    events = scenario.rows("select uri, extra->'rows_added' from asset_event order by id offset 2")
    assert sorted(events) == [("table:sales.other", 2), ("table:sales.t", None)], "an epoch is counted once"


def test_an_epoch_whose_update_cannot_be_stored_waits_and_is_stored_later(lake: Lake) -> None:
    scenario, asset = lake.scenario, Asset.table("sales.t")
    lake.person().create_table("sales.t", SCHEMA)
    claim, catalog = lake.attempt(task={"outlets": (asset.uri,), "notify": ("asset",)})
    table = catalog.load_table("sales.t")
    (stored,) = scenario.rows("select data::text from dag_version where dag_id = 'd'")
    scenario.sql("update dag_version set data = '{}' where dag_id = 'd'")

    assert commit(table, 0, 1)
    service = Assets(scenario.engine, scenario.settings, Versions())
    for minutes in (1, 2):
        (logged,) = service.run_once(datetime.now(UTC)).log
        assert "updates of assets by d.t000" in logged[1] and "wait" in logged[1]
        assert not service.run_once(datetime.now(UTC)).log, "it waits"
        ((waits,),) = scenario.rows(
            "select (facts #>> '{streams,until}')::timestamptz - clock_timestamp() from table_version where facts ? 'streams'"
        )
        assert timedelta(minutes=minutes - 0.5) < waits <= timedelta(minutes=minutes)
        scenario.sql(
            "update table_version set facts = jsonb_set(facts, '{streams,until}', to_jsonb(clock_timestamp()))"
            " where facts ? 'streams'"
        )

    scenario.sql("update dag_version set data = %s::jsonb where dag_id = 'd'", *stored)
    scenario.turn()
    assert scenario.rows("select dag_id, extra->'rows_added' from asset_event") == [("d", 1)]
    assert scenario.rows("select 1 from table_version where facts ? 'streams'") == []
    assert scenario.rows("select state from task_instance where id = %s", claim.id) == [("running",)]


def test_a_table_that_was_dropped_and_created_again_is_streamed_to(lake: Lake) -> None:
    """The try leaves files of the dropped one."""
    claim, catalog = lake.attempt()
    catalog.create_table("sales.t", SCHEMA).append(rows(1))
    catalog.drop_table("sales.t")
    table = catalog.create_table("sales.t", SCHEMA)
    for epoch in range(2):
        assert commit(table, epoch, epoch)
    assert seen(lake) == [0, 1]
    added = lake.scenario.rows("select facts->>'added_records', facts ? 'leaves' from table_version order by publication")
    assert added == [("1", False), ("1", False)]
    ends(lake, claim, TaskState.FAILED)
    assert gc.collect(lake.scenario.settings, lake.scenario.engine, older_s=0).files > 0
    assert seen(lake) == [0, 1]


def test_an_epoch_comes_upon_what_others_have_written_meanwhile(lake: Lake) -> None:
    person = lake.person()
    other = person.create_table("sales.other", SCHEMA)
    theirs = person.create_table("sales.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    claim, catalog = lake.attempt()
    table = catalog.load_table("sales.t")
    theirs.append(rows(100))
    other.append(rows(5))
    assert (ids(table.refresh()), ids(catalog.load_table("sales.other"))) == ([], [])

    with pytest.raises(CommitFailedException, match="ada wrote it"):
        commit(table, 0, 0, tries=1)
    assert commit(table, 0, 0)
    assert seen(lake) == ids(table) == [0, 100]
    assert ids(catalog.load_table("sales.other")) == [5], "it reads what is current"

    theirs.refresh().append(rows(101))
    with pytest.raises(CommitFailedException):  # without reading the table again
        table.append(rows(1), snapshot_properties={QUERY: "q", EPOCH: "1"})
    assert commit(table, 1, 1)
    ends(lake, claim)
    assert seen(lake) == [0, 1, 100, 101]
    folder = Path(table.location().removeprefix("file://"), "metadata")
    assert len(list(folder.glob("*.metadata.json"))) == 5, "those of the commits that were refused are deleted"


def test_a_change_of_the_try_that_others_were_faster_than_is_not_published_by_an_epoch(lake: Lake) -> None:
    theirs = lake.person().create_table("sales.t", SCHEMA)
    claim, catalog = lake.attempt()
    table = catalog.load_table("sales.t")
    table.append(rows(1))
    theirs.append(rows(100))
    with pytest.raises(CommitFailedException):
        commit(table, 0, 0)
    assert (seen(lake), ids(table.refresh())) == ([100], [1])
    ends(lake, claim, TaskState.UP_FOR_RETRY)
    _, catalog = retried(lake)
    assert commit(catalog.load_table("sales.t"), 0, 0)
    assert seen(lake) == [0, 100]


def test_with_one_state_for_a_run_an_epoch_conflicts_with_later_changes_of_others(lake: Lake) -> None:
    theirs = lake.person().create_table("sales.t", SCHEMA)
    lake.scenario.sql("update table_version set published_at = published_at - interval '1 minute'")
    _, catalog = lake.attempt(read_at="run_start")
    table = catalog.load_table("sales.t")
    assert [commit(table, epoch, epoch) for epoch in range(2)] == [True, True]
    assert seen(lake) == ids(table) == [0, 1]
    theirs.refresh().append(rows(100))
    with pytest.raises(CommitFailedException):
        commit(table, 2, 2)
    assert seen(lake) == [0, 1, 100]


def test_a_try_that_follows_tables_reads_what_is_current(lake: Lake) -> None:
    theirs = lake.person().create_table("sales.t", SCHEMA)
    claim, catalog = lake.attempt()
    mine = catalog.create_table("sales.mine", SCHEMA)
    theirs.append(rows(1))
    assert ids(catalog.load_table("sales.t")) == []
    table_tries.follow(lake.scenario.hot.dicts, claim)
    assert (ids(catalog.load_table("sales.t")), ids(mine)) == ([1], [])
    theirs.append(rows(2))
    assert ids(catalog.load_table("sales.t")) == [1, 2]
    ends(lake, claim)
    assert sorted(lake.person().list_tables("sales")) == [("sales", "mine"), ("sales", "t")]


def test_a_try_that_has_ended_publishes_no_epoch(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    _, catalog = lake.attempt()
    table = catalog.load_table("sales.t")
    caller = lake.tables.caller(str(catalog.properties["token"]))
    assert caller is not None
    assert commit(table, 0, 0)
    lake.scenario.sql("update task_instance set dispatch_id = gen_random_uuid()")
    with pytest.raises((UnauthorizedError, RESTError)):
        commit(table, 1, 1)
    assert seen(lake) == [0]
    assert lake.scenario.rows("select number from table_publication") == [(2,)]


def sent_epoch(table: Table, catalog: RestCatalog, *arguments: int) -> tuple[str, bytes]:
    """Commit an epoch, and return its request."""
    sent: list[tuple[str, bytes]] = []

    def note(answer: requests.Response, **_: object) -> None:
        if b"add-snapshot" in (answer.request.body or b""):
            sent.append((str(answer.request.url), bytes(answer.request.body or b"")))

    catalog._session.hooks["response"].append(note)
    assert commit(table, *arguments)
    return sent[-1]


@pytest.mark.parametrize("key", ["", "one"])
def test_an_epoch_whose_answer_was_lost_is_published_once(lake: Lake, key: str) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    _, catalog = lake.attempt()
    table = catalog.load_table("sales.t")
    if key:
        catalog._session.headers["Idempotency-Key"] = key
    url, body = sent_epoch(table, catalog, 0, 0)
    place = table.refresh().metadata_location
    headers: dict[str, Any] = {"Authorization": f"Bearer {catalog.properties['token']}", "Content-Type": "application/json"}
    answer = requests.post(url, body, headers=headers | ({"Idempotency-Key": key} if key else {}), timeout=10)
    assert (answer.status_code, answer.json()["metadata-location"]) == (200, place)
    catalog._session.headers.pop("Idempotency-Key", None)
    assert commit(table, 1, 1)
    lake.person().load_table("sales.t").append(rows(100))
    answer = requests.post(url, body, headers=headers, timeout=10)
    assert (answer.status_code, seen(lake)) == (200, [0, 1, 100])


def test_a_reproduction_publishes_its_epochs_beside_the_original(lake: Lake) -> None:
    def stream(catalog: RestCatalog, claim: Claim) -> None:
        table = catalog.load_table("sales.t")
        for epoch in range(2):
            commit(table, epoch, epoch)

    lake.person().create_table("sales.t", SCHEMA).append(rows(7))
    bodies: dict[str, Any] = {"load": stream}
    original(lake, bodies, {"load": []})
    assert seen(lake) == [0, 1, 7]
    scenario = lake.scenario
    actor = Actor(settings=scenario.settings, engine=scenario.engine, announce=lambda *_: None, name="cli:ada", made_by="cli")
    made = actions.reproduce(actor, "d", "one", keep=True, despite_effects=False)
    work(lake, bodies)
    assert (seen(lake), seen(lake, f"{made.scratch}.sales.t")) == ([0, 1, 7], [0, 1, 7])


class Batch:
    """What foreachBatch passes of a frame: the query is a property of Spark's thread."""

    def __init__(self, query: str | None) -> None:
        self.sparkSession = self.sparkContext = self
        self._query = query

    def getLocalProperty(self, key: str) -> str | None:
        return self._query if key == "sql.streaming.queryId" else None


def batches(catalog: RestCatalog, write: Any) -> Any:
    with execution.current({"ti": SimpleNamespace(catalog=catalog)}):
        return published(write)


def test_a_batch_publishes_all_its_tables_once(lake: Lake) -> None:
    for name in ("a", "b"):
        lake.person().create_table(f"sales.{name}", SCHEMA)
    written = []
    claim, catalog = lake.attempt()

    def write(frame: Batch, number: int) -> None:
        for name in ("a", "b"):
            assert seen(lake, f"sales.{name}") == written
            catalog.load_table(f"sales.{name}").append(rows(number))
        written.append(number)

    batch = batches(catalog, write)
    for number in (0, 1, 1):
        batch(Batch("q"), number)
        assert seen(lake, "sales.a") == seen(lake, "sales.b") == written
    assert written == [0, 1]
    publications = lake.scenario.rows(
        "select array_agg(name order by name) from table_version group by publication order by publication"
    )
    assert publications[2:] == [(["a", "b"],)] * 2

    # The next try does not repeat what is published, and writes what is not.
    catalog.load_table("sales.a").append(rows(99))
    ends(lake, claim, TaskState.UP_FOR_RETRY)
    claim, catalog = retried(lake)
    batch = batches(catalog, write)
    for number in (1, 2):
        batch(Batch("q"), number)
    batch(Batch("another"), 2)
    ends(lake, claim)
    assert seen(lake, "sales.a") == seen(lake, "sales.b") == [0, 1, 2, 2]


@pytest.mark.parametrize("others", [False, True])
def test_a_batch_that_fails_or_meets_changes_of_others_is_repeated_by_the_next_try(lake: Lake, others: bool) -> None:
    theirs = lake.person().create_table("sales.t", SCHEMA)
    claim, catalog = lake.attempt()

    def write(frame: Batch, number: int) -> None:
        catalog.load_table("sales.t").append(rows(number))
        if claim.try_number == 1 and number == 1:
            if not others:
                raise PacelineError("a check has found a null")
            theirs.refresh().append(rows(100))

    batch = batches(catalog, write)
    batch(Batch("q"), 0)
    with pytest.raises(PacelineError, match="has changed since it was read: ada wrote it" if others else "a check"):
        batch(Batch("q"), 1)
    with pytest.raises(PacelineError, match="let the task fail"):
        batch(Batch("q"), 1)
    assert seen(lake) == [0, 100][: 1 + others]
    ends(lake, claim, TaskState.UP_FOR_RETRY)
    claim, catalog = retried(lake)
    batches(catalog, write)(Batch("q"), 1)
    assert seen(lake) == [0, 1, 100][: 2 + others]


def test_a_try_that_succeeds_within_a_batch_publishes_no_half_of_it(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    claim, catalog = lake.attempt()

    def write(frame: Batch, number: int) -> None:
        catalog.load_table("sales.t").append(rows(number))
        if claim.try_number == 1 and number == 1:
            raise PacelineError("the task catches this")

    batch = batches(catalog, write)
    batch(Batch("q"), 0)
    with pytest.raises(PacelineError, match="the task catches this"):
        batch(Batch("q"), 1)
    with pytest.raises(BatchOpenError, match="the next try repeats the batch"):
        ends(lake, claim)
    assert seen(lake) == [0]
    ends(lake, claim, TaskState.UP_FOR_RETRY)

    claim, catalog = retried(lake)
    batches(catalog, write)(Batch("q"), 1)
    assert seen(lake) == [0, 1]
    # This batch has written nothing when the query is stopped, so there is nothing to keep back.
    bearer = {"Authorization": f"Bearer {catalog.properties['token']}"}
    assert requests.put(f"{lake.uri}/v1/batches/q/2", headers=bearer, timeout=30).ok
    ends(lake, claim)
    assert seen(lake) == [0, 1]


def test_batches_are_for_queries(lake: Lake) -> None:
    _, catalog = lake.attempt()
    with pytest.raises(PacelineError, match="use it as foreachBatch"):
        batches(catalog, lambda *_: None)(Batch(None), 0)


def test_only_the_running_try_has_batches(lake: Lake) -> None:
    lake.person().create_table("sales.t", SCHEMA)
    _, catalog = lake.attempt()
    batch = batches(catalog, lambda frame, number: catalog.load_table("sales.t").append(rows(number)))
    batch(Batch("q"), 0)
    lake.scenario.sql("update task_instance set dispatch_id = gen_random_uuid()")
    with pytest.raises(PacelineError, match="is not published"):
        batch(Batch("q"), 1)
    person = {"Authorization": f"Bearer {lake.person().properties['token']}"}
    for method, path in (("PUT", "batches/q/0"), ("POST", "batches/q/0"), ("POST", "follow")):
        assert requests.request(method, f"{lake.uri}/v1/{path}", headers=person, timeout=10).status_code == 403
    assert seen(lake) == [0]


@pytest.fixture
def application(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> RestCatalog:
    """The catalog of a try, whose application is this process."""
    lake.person().create_table("sales.t", SCHEMA)
    _, catalog = lake.attempt()
    monkeypatch.setenv("PACELINE_TABLES_URI", lake.uri)
    monkeypatch.setenv("PACELINE_TABLES_TOKEN", str(catalog.properties["token"]))
    return catalog


def test_an_application_publishes_its_batches(lake: Lake, application: RestCatalog) -> None:
    batch = published(lambda frame, number: application.load_table("sales.t").append(rows(number)))

    for number in (0, 1, 1):
        batch(Batch("q"), number)

    assert seen(lake) == [0, 1]


def test_an_application_follows_tables_while_its_query_runs(lake: Lake, application: RestCatalog) -> None:
    lake.person().load_table("sales.t").append(rows(1))
    assert ids(application.load_table("sales.t")) == []

    run_until_stopped(SimpleNamespace(awaitTermination=lambda: None))

    assert ids(application.load_table("sales.t")) == [1]


def test_an_application_whose_try_has_ended_follows_nothing(lake: Lake, application: RestCatalog) -> None:
    lake.scenario.sql("update task_instance set dispatch_id = gen_random_uuid()")

    with pytest.raises(PacelineError, match="cannot follow the tables: This token is not that of a running try"):
        run_until_stopped(SimpleNamespace(awaitTermination=lambda: None, stop=lambda: None))


def test_a_driver_that_is_started_again_publishes_no_half_of_a_batch(lake: Lake, application: RestCatalog) -> None:
    """Nothing in its process tells that another one has begun a batch."""

    def asked(method: str, query: str, number: int) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {application.properties['token']}"}
        answer = requests.request(method, f"{lake.uri}/v1/batches/{query}/{number}", headers=headers, timeout=10)
        return answer.status_code, answer.json().get("is_published")

    assert (asked("PUT", "q", 0), asked("POST", "q", 0), asked("PUT", "q", 0)) == ((200, False), (200, True), (200, True))
    assert asked("PUT", "q", 1) == (200, False)
    application.load_table("sales.t").append(rows(1))
    # The driver is killed. What another query of it publishes, and that it follows tables, change nothing.
    other = application.create_table("sales.other", SCHEMA)
    assert commit(other, 0, 5, query="another")
    streams.follow()

    assert [asked("PUT", query, number)[0] for query, number in (("q", 1), ("p", 0))] == [409, 409]
    assert (seen(lake), seen(lake, "sales.other")) == ([], [5])


class OnServer:
    """A frame on a Connect server, whose session has these queries."""

    def __init__(self, *queries: str) -> None:
        self.sparkSession = SimpleNamespace(streams=SimpleNamespace(active=[SimpleNamespace(id=one) for one in queries]))


def test_on_a_connect_server_the_only_query_of_a_session_has_batches(
    lake: Lake, application: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    batch = published(lambda frame, number: application.load_table("sales.t").append(rows(number)))

    for number in (0, 0, 1):
        batch(OnServer("q"), number)
    for queries in ((), ("q", "p"), ("p",)):
        with pytest.raises(RuntimeError, match="needs a session with one streaming query: give each query a task of its own"):
            batch(OnServer(*queries), 2)

    assert seen(lake) == [0, 1]
