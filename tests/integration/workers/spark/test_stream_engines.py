"""Streaming queries outside of warm sessions: of an application that follows a table, and on a Spark Connect server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import spark_connect, streams, tables
from support.spark_connect import ConnectServer
from support.streams import Stream
from support.table_fixtures import settings
from support.tables import Lake

from workers.spark import iceberg

__all__ = ["settings"]

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def lake(bench: Any) -> Iterator[Lake]:
    """The catalog at an address that a server reaches, with an empty table that others write."""
    with tables.lake(bench.scenario) as served:
        person = served.person()
        person.create_namespace("sales")
        person.create_table("sales.source", tables.SCHEMA)
        yield served


@pytest.fixture
def start(bench: Any, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a query."""
    jars = streams.jars()
    monkeypatch.delenv(streams.JARS)  # for workers, it is no setting
    return lambda query, before="", **more: Stream(bench, tmp_path, jars, query, before, **more)


#: It begins before there are rows, which others add.
FOLLOWS = """
spark.readStream.table("sales.source").writeStream.option("checkpointLocation", {checkpoint!r}).toTable("sales.readings")
"""


def appended(lake: Lake, stream: Stream, *numbers: int) -> None:
    """Append to the table that the query reads, as a person."""
    lake.person().load_table("sales.source").append(tables.rows(*numbers))
    stream.numbers += numbers


def test_an_application_that_writes_elsewhere_follows_a_table(start: Any, lake: Lake, tmp_path: Path) -> None:
    """No epoch of it is published, after which it would read what is current."""
    folder = tmp_path / "written"
    query = FOLLOWS.strip().replace('toTable("sales.readings")', f"format('json').start({str(folder)!r})")
    stream = start(query, "print('it', 'begins', flush=True)", submits=True)
    stream.worker()
    stream.waits(lambda: "it begins" in stream.log())
    for number in (1, 2):
        appended(lake, stream, number)
        stream.waits(lambda: f'"id":{number}' in "".join(path.read_text() for path in folder.glob("*.json")))  # noqa: B023


WHY = spark_connect.missing()
on_connect = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.fixture(scope="module")
def server(session_folder: Path) -> Iterator[ConnectServer]:
    """A server with Iceberg."""
    found = ",".join(str(path) for path in Path(streams.jars()).glob("*.jar"))
    conf = {"spark.jars": found, iceberg.EXTENSIONS: iceberg.OURS}
    # The server puts its token into the URL of its own Python workers, as it is.
    with spark_connect.running_server(session_folder / "connect-tables", conf, "token-of-the-server") as made:
        yield made


def on_server(server: ConnectServer, lake: Lake) -> dict[str, str]:
    """The options of a task with a session there."""
    return {
        "options": ", conn_id='cluster'", "PACELINE_CONN_CLUSTER": server.connection(), "PACELINE_TABLES_URL": lake.uri,
        "PACELINE_SPARK_SUBMIT_TIMEOUT": "60",
    }  # fmt: skip


@on_connect
def test_a_query_on_a_server_publishes_each_epoch_once_though_its_worker_is_killed(
    start: Any, lake: Lake, server: ConnectServer
) -> None:
    stream = start(FOLLOWS.strip(), "spark.catalog.setCurrentCatalog('lake')", **on_server(server, lake))
    worker = stream.worker()
    for number in (1, 2):
        appended(lake, stream, number)
        stream.appears()

    # The server goes on, until the next try closes its session.
    stream.is_lost(worker)
    appended(lake, stream, 3)
    stream.worker()
    stream.appears()
    stream.waits(lambda: stream.bench.column("readings", "try_number") == 2 and "try 1" in stream.log())
    appended(lake, stream, 4)
    stream.appears()
    stream.ends()
    assert stream.bench.scenario.rows("select count(distinct try_number) from table_version where name = 'readings'") == [(2,)]


#: A batch of two tables, which waits between them while a file is there.
BATCHES = """source.writeStream.option("checkpointLocation", {checkpoint!r}).foreachBatch(published(write)).start()"""
WRITE = """
from paceline.tables import published

spark.catalog.setCurrentCatalog("lake")
for name in ("readings", "log"):
    spark.sql("create table if not exists sales." + name + " (id bigint) using iceberg")

def write(batch, number):
    import os, sys, time

    assert number > 0 or "paceline" not in sys.modules, "published() does not need it on the server"
    batch.writeTo("sales.log").append()
    if os.path.exists({hold!r}):
        open({hold!r} + ".reached", "w").close()
    while os.path.exists({hold!r}):
        time.sleep(0.05)
    from paceline.tables import merge

    merge("sales.readings", batch, key="id")
"""


@on_connect
def test_each_batch_on_a_server_is_published_once_with_all_its_tables(
    start: Any, lake: Lake, server: ConnectServer, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    stream = start(BATCHES, WRITE.format(hold=str(hold)), **on_server(server, lake))
    worker = stream.worker()
    for _ in range(2):
        stream.arrives()
        stream.appears()
        assert stream.seen("log") == stream.numbers

    # The worker is killed when one of two tables is written. The next try closes the session, and repeats the batch.
    hold.touch()
    stream.arrives()
    stream.waits(Path(f"{hold}.reached").exists)
    assert stream.seen("log") == stream.numbers[: -streams.ROWS]
    stream.is_lost(worker)
    stream.worker()
    stream.waits(lambda: "try 2" in stream.log() or stream.bench.column("readings", "try_number") == 2)
    hold.unlink()
    stream.appears()
    stream.arrives()
    stream.appears()
    stream.ends()
    assert stream.seen("log") == stream.numbers
    publications = stream.bench.scenario.rows(
        "select array_agg(name order by name) from table_version where name <> 'source' group by publication"
    )
    assert publications == [(["log", "readings"],)] * 4
