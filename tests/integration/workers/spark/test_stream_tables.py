"""Streaming queries that write tables: others see each epoch while the task runs, and a killed worker loses and doubles none."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.store.actions import mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

pytestmark = [pytest.mark.spark, pytest.mark.long]

#: A folder with the jar of Iceberg for the installed Spark.
JARS = "PACELINE_TEST_ICEBERG_JARS"
STARTS_S = 120.0
#: The rows of a file, each of which is an epoch.
ROWS = 3
DAG = """
    from paceline.operators.spark import run_until_stopped

    @task.pyspark(retries=1_000, retry_delay=1)
    def readings(spark):
        spark.sql("create namespace if not exists sales")
        {before}
        source = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json({source!r})
        run_until_stopped({query})

    with DAG("d", schedule=None):
        readings()
"""
#: An append of each epoch, which creates the table.
APPEND = """source.writeStream.format("iceberg").option("checkpointLocation", {checkpoint!r}).toTable("sales.readings")"""


class Stream:
    """A query on a worker with tables, the files that it reads, and the table that it writes."""

    def __init__(self, bench: Any, folder: Path, jars: str, query: str, before: str) -> None:
        self.bench, self.jars = bench, jars
        self.source, self.plan = folder / "source", folder / "faults" / "plan"
        self.warehouse = bench.settings.home / "lake"
        self.source.mkdir()
        self.plan.parent.mkdir()
        self.inject("")
        self.numbers: list[int] = []
        query = query.format(checkpoint=str(folder / "checkpoint"))
        bench.dag(DAG.format(source=str(self.source), query=query, before=before.strip()))
        self.run = bench.scenario.trigger("d", run_id="r1")

    def inject(self, fault: str) -> None:
        self.plan.write_text(fault)

    def worker(self) -> Any:
        return self.bench.worker(
            queues="default,spark", PACELINE_TABLES_WAREHOUSE=str(self.warehouse), PACELINE_TABLES_SPARK_JARS=self.jars,
            PACELINE_FAULTS=f"@{self.plan}", PACELINE_FAULTS_FOLDER=str(self.plan.parent),
        )  # fmt: skip

    def arrives(self) -> None:
        """A file, which is moved to its place whole."""
        first = len(self.numbers)
        new = range(first, first + ROWS)
        self.numbers += new
        written = self.source.parent / "file.json"
        written.write_text("".join(f'{{"id": {one}}}\n' for one in new))
        written.rename(self.source / f"{first:04}.json")

    def reached(self, point: str) -> int:
        """How often a fault point was reached."""
        return (self.plan.parent / f"{point}.count").stat().st_size

    def seen(self, name: str = "readings") -> list[int]:
        """The rows that others see."""
        found = self.bench.scenario.rows("select metadata_location from iceberg_tables where table_name = %s", name)
        return sorted(StaticTable.from_metadata(found[0][0]).scan().to_arrow()["id"].to_pylist()) if found else []

    def appears(self) -> None:
        """Wait until others see all that has arrived, each row once; the task runs on."""

        def there() -> bool:
            self.bench.scenario.turn()
            return len(self.seen()) >= len(self.numbers)

        eventually(there, timeout=STARTS_S, message=lambda: f"{self.seen()}\n{self.bench.output}")
        assert self.seen() == self.numbers
        assert self.bench.scenario.states(self.run) == {"readings": "running"}

    def is_lost(self, worker: Any) -> None:
        """Kill a worker, whose JVM ends with it, and start another one."""
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        self.bench.scenario.sql("update process set heartbeat_at = heartbeat_at - interval '1 minute' where kind = 'worker'"
                                " and name = %s", f"w{self.bench.workers.index(worker)}")  # fmt: skip

    def ends(self) -> None:
        """Mark the task as success."""
        of = Runs(dag_id="d", run_id="r1"), Tasks(task_ids=("readings",))
        transact(self.bench.scenario.engine, mark.mark, *of, TaskState.SUCCESS)
        self.bench.wait(self.run)
        assert self.seen() == self.numbers


@pytest.fixture
def start(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a query."""
    jars = os.environ.get(JARS)
    if jars is None:
        pytest.skip(f"No folder with the jar of Iceberg: name it in {JARS}, or run make test-tables.")
    monkeypatch.delenv(JARS)  # for workers, it is no setting
    return lambda query, before="": Stream(bench, tmp_path, jars, query, before)


def test_each_epoch_is_published_once_though_a_worker_is_killed_before_its_checkpoint(start: Any) -> None:
    stream = start(APPEND)
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


def test_each_batch_is_published_once_with_all_its_tables(start: Any) -> None:
    stream = start(BATCHES, WRITE)
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
