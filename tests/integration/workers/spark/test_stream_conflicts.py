"""A streaming query follows tables that others write: the one that it reads, and the one that it writes itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark_tables import Task, jvm, lake, settings
from support.tables import SCHEMA, Lake, ids, rows

from paceline.states import TaskState
from scheduler.store.worker import table_tries
from workers.spark.sessions.session_pool import WarmJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jvm", "lake", "settings"]

pytestmark = pytest.mark.spark


def copying(spark: "SparkSession", folder: Path) -> Any:
    """A query that appends the rows of one table to another."""
    rows_of_source = spark.readStream.table("sales.source")
    return rows_of_source.writeStream.option("checkpointLocation", str(folder / "checkpoint")).toTable("sales.copy")


def test_a_query_follows_the_table_that_it_reads_and_comes_upon_the_rows_of_others(
    lake: Lake, jvm: WarmJvm, tmp_path: Path
) -> None:
    person = lake.person()
    source, copy = (person.create_table(f"sales.{name}", SCHEMA) for name in ("source", "copy"))
    source.append(rows(1))
    task = Task(lake, jvm, "d")
    copy.append(rows(100))  # after the state that the try reads
    seen: list[list[int]] = []

    def work(spark: "SparkSession") -> Any:
        query = copying(spark, tmp_path)
        try:
            query.processAllAvailable()
            seen.append(ids(copy.refresh()))
            table_tries.follow(lake.scenario.hot.dicts, task.claim)
            for number in (2, 3):
                copy.append(rows(100 * number))
                source.append(rows(number))
                query.processAllAvailable()
                seen.append(ids(copy.refresh()))
        finally:
            query.stop()

    task.run(work)

    assert seen == [[1, 100], [1, 2, 100, 200], [1, 2, 3, 100, 200, 300]]
    task.ends(TaskState.FAILED)
    assert ids(copy.refresh()) == seen[-1]


def test_a_query_that_has_not_written_yet_sees_new_rows_of_its_source(lake: Lake, jvm: WarmJvm, tmp_path: Path) -> None:
    person = lake.person()
    source, copy = (person.create_table(f"sales.{name}", SCHEMA) for name in ("source", "copy"))
    task = Task(lake, jvm, "d")

    def work(spark: "SparkSession") -> Any:
        query = copying(spark, tmp_path)
        try:
            query.processAllAvailable()
            table_tries.follow(lake.scenario.hot.dicts, task.claim)
            source.append(rows(1))
            query.processAllAvailable()
        finally:
            query.stop()

    task.run(work)

    assert ids(copy.refresh()) == [1]
