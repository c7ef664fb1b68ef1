"""Delta Lake beside the catalog of tables, with the real jars: what works, and what is not tied to the success of a task."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark_tables import JARS, Task, lake, settings
from support.tables import Lake

from paceline.states import TaskState
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Tables as TablesSettings
from workers.spark import conf, iceberg
from workers.spark.sessions import session_pool
from workers.spark.sessions.session_pool import WarmJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jvm", "lake", "settings"]

#: A folder with the jars of Delta Lake for the installed Spark: delta-spark, and what spark-submit fetches with it.
DELTA = "PACELINE_TEST_DELTA_JARS"
#: Of docs/how-to/use-tables-with-spark.md.
CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
#: Delta computes its log in 50 partitions, which takes minutes on a busy machine.
FEW = {"spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1"}

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get(DELTA), reason=f"{DELTA} names no jars of Delta Lake"),
]


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    home = tmp_path_factory.mktemp("home")
    settings = Settings(paths=Paths(home=home), tables=TablesSettings(spark_jars=os.environ.get(JARS, "")))
    delta = ",".join(str(path) for path in sorted(Path(os.environ[DELTA]).glob("*.jar")))
    jvm_conf = conf.merged(settings, {**CONF, **FEW, "spark.jars": delta, "spark.sql.warehouse.dir": str(home / "hive")})
    try:
        jvm_conf |= iceberg.jvm_conf(settings, jvm_conf)
    except iceberg.JarsMissingError as missing:
        pytest.skip(f"{missing} Tests find them in the folder {JARS}.")
    warm = session_pool.start(jvm_conf, {}, settings.spark)
    yield warm
    session_pool.end(warm)


def rows(lake: Lake, name: str) -> list[int]:
    return sorted(lake.person().load_table(name).scan().to_arrow()["id"].to_pylist())


def test_a_task_reads_and_writes_delta_beside_its_tables(lake: Lake, jvm: WarmJvm, tmp_path: Path) -> None:
    place = str(tmp_path / "orders")

    def work(spark: "SparkSession") -> Any:
        spark.range(3).write.format("delta").save(place)
        spark.sql(f"merge into spark_catalog.delta.`{place}` t using (select 2 as id union all select 7) u on t.id = u.id"
                  " when matched then delete when not matched then insert *")  # fmt: skip
        spark.read.format("delta").load(place).write.saveAsTable("sales.orders")
        spark.sql("insert into sales.orders values (9)")
        spark.table("sales.orders").write.format("delta").save(f"{place}-copy")
        return sorted(row.id for row in spark.sql(f"select id from spark_catalog.delta.`{place}-copy`").collect())

    task = Task(lake, jvm, "d")
    assert task.run(work) == [0, 1, 7, 9]
    task.ends()
    assert rows(lake, "sales.orders") == [0, 1, 7, 9]


def test_delta_keeps_what_a_failed_task_wrote_and_an_append_with_a_transaction_is_not_doubled(
    lake: Lake, jvm: WarmJvm, tmp_path: Path
) -> None:
    place = str(tmp_path / "events")

    def work(spark: "SparkSession") -> Any:
        given = spark.range(5, 7)
        given.write.format("delta").mode("append").option("txnAppId", "d.t.run1").option("txnVersion", 1).save(place)
        given.write.saveAsTable("sales.copy")
        return spark.read.format("delta").load(place).count()

    first = Task(lake, jvm, "d")
    assert first.run(work) == 2
    first.ends(TaskState.FAILED)
    assert not lake.person().table_exists("sales.copy")
    second = Task(lake, jvm, "e")
    assert second.run(work) == 2, "Delta keeps the rows of the failed task, and skips the repeated transaction"
    second.ends()
    assert rows(lake, "sales.copy") == [5, 6]


def test_replace_where_repeats_an_interval(lake: Lake, jvm: WarmJvm, tmp_path: Path) -> None:
    place = str(tmp_path / "days")

    def write(day: int) -> Any:
        def work(spark: "SparkSession") -> Any:
            given = spark.range(2).selectExpr("id", f"{day} as day")
            given.write.format("delta").mode("overwrite").option("replaceWhere", f"day = {day}").save(place)
            return spark.read.format("delta").load(place).count()

        return work

    assert Task(lake, jvm, "one").run(write(1)) == 2
    assert Task(lake, jvm, "two").run(write(2)) == 4
    assert Task(lake, jvm, "again").run(write(1)) == 4
