"""Streaming queries that write tables: others see each epoch while the task runs, and a killed worker loses and doubles none."""

from pathlib import Path
from typing import Any

import pytest
from support import streams
from support.streams import Stream

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

#: An append of each epoch, which creates the table.
APPEND = """source.writeStream.format("iceberg").option("checkpointLocation", {checkpoint!r}).toTable("sales.readings")"""


@pytest.fixture
def start(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a query."""
    jars = streams.jars()
    monkeypatch.delenv(streams.JARS)  # for workers, it is no setting
    return lambda query, before="", **more: Stream(bench, tmp_path, jars, query, before, **more)


#: The query is that of a function in a warm session, or of an application of spark-submit.
in_both = pytest.mark.parametrize("submits", [False, True], ids=["function", "application"])


@in_both
def test_each_epoch_is_published_once_though_a_worker_is_killed_before_its_checkpoint(start: Any, submits: bool) -> None:
    stream = start(APPEND, submits=submits)
    worker = stream.worker()
    for _ in range(3):
        stream.arrives()
        stream.appears()

    # The query gets no answer before its worker is killed: the checkpoint does not count an epoch that is published.
    stream.inject("tables.stored=delay:60")
    stream.arrives()
    stream.appears()
    stream.is_lost(worker)
    stream.inject("")
    stream.arrives()
    stream.worker()
    stream.appears()

    # The catalog dies before the transaction ends: nothing is published, and the query fails.
    stream.inject("tables.published=kill@6")
    stream.arrives()
    stream.appears()
    stream.ends()
    published = stream.bench.scenario.rows("select publication, try_number from table_version order by 1")
    tries = [number for _, number in published]
    assert tries[:5] == [1, 1, 1, 1, 2] and len(tries) == 6 and tries[5] in (2, 3)


#: Batches that keep the number of rows in a second table, with rows that a repeated batch would double.
BATCHES = """source.writeStream.option("checkpointLocation", {checkpoint!r}).foreachBatch(published(write)).start()"""
WRITE = """
from paceline.tables import merge, published

def write(batch, number):
    merge("sales.readings", batch, key="id")
    batch.writeTo("sales.log").append()

spark.sql("create table if not exists sales.log (id bigint) using iceberg")
"""


@in_both
def test_each_batch_is_published_once_with_all_its_tables(start: Any, submits: bool) -> None:
    stream = start(BATCHES, WRITE, submits=submits)
    worker = stream.worker()
    for _ in range(2):
        stream.arrives()
        stream.appears()
        assert stream.seen("log") == stream.numbers

    # The batch is published, and its worker is killed before the checkpoint counts it.
    reached = stream.reached("tables.stored")
    stream.inject(f"tables.stored=delay:60@{reached + 3}")
    stream.arrives()
    stream.appears()
    stream.is_lost(worker)
    stream.inject("")
    stream.worker()
    stream.arrives()
    stream.appears()
    stream.ends()
    assert stream.seen("log") == stream.numbers
    publications = stream.bench.scenario.rows("select array_agg(name order by name) from table_version group by publication")
    assert publications == [(["log", "readings"],)] * 4


#: Its second batch fails once, after it has written, and the task catches the error of the query.
CAUGHT = """
from pathlib import Path

from paceline.tables import published
from pyspark.errors import StreamingQueryException

def write(batch, number):
    batch.writeTo("sales.readings").append()
    if number == 1 and not Path({checkpoint!r} + ".failed").exists():
        Path({checkpoint!r} + ".failed").touch()
        raise ValueError("half of a batch")

run = run_until_stopped

def run_until_stopped(query):
    try:
        run(query)
    except StreamingQueryException:
        print("caught")

spark.sql("create table if not exists sales.readings (id bigint) using iceberg")
"""


def test_a_task_that_catches_the_error_of_a_batch_fails_and_its_next_try_repeats_the_batch(start: Any, tmp_path: Path) -> None:
    stream = start(BATCHES, CAUGHT.format(checkpoint=str(tmp_path / "checkpoint")))
    stream.worker()
    stream.arrives()
    stream.appears()
    stream.arrives()
    stream.appears()
    stream.ends()
    assert stream.log().count("caught") == 1
    assert "A batch of a streaming query was not published: it failed" in stream.log()
    tries = stream.bench.scenario.rows("select try_number from table_version order by publication")
    assert tries == [(1,), (2,)]
