"""A streaming query on a worker with tables, the files that it reads, and what others see of the tables that it writes."""

import os
import signal
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from paceline.states import TaskState
from scheduler.store.actions import mark
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks
from support.waiting import eventually

#: A folder with the jar of Iceberg for the installed Spark.
JARS = "PACELINE_TEST_ICEBERG_JARS"
STARTS_S = 240.0
#: The rows of a file, each of which is an epoch.
ROWS = 3
#: What runs until it is stopped.
BODY = """
from paceline.operators.spark import run_until_stopped

spark.sql("create namespace if not exists sales")
{before}
source = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json({source!r})
run_until_stopped({query})
"""
TASK = """
    @task.pyspark({options})
    def readings(spark):
{body}
    with DAG("d", schedule=None):
        readings()
"""
APPLICATION = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
{body}
"""
SUBMIT = """
    with DAG("d", schedule=None):
        SparkSubmitOperator(task_id="readings", master="local[1]", application={application!r}, retries=1_000, retry_delay=1)
"""


def jars() -> str:
    """The folder with the jar; without one, the test is skipped."""
    folder = os.environ.get(JARS)
    if folder is None:
        pytest.skip(f"No folder with the jar of Iceberg: name it in {JARS}, or run make test-tables.")
    return folder


class Stream:
    """A query of a function, or of an application that the task submits. `options` are those of the decorator."""

    def __init__(
        self,
        bench: Any,
        folder: Path,
        jars: str,
        query: str,
        before: str = "",
        *,
        options: str = "",
        submits: bool = False,
        **environment: str,
    ) -> None:
        self.bench = bench
        self.source, self.plan = folder / "source", folder / "faults" / "plan"
        self.warehouse = bench.settings.home / "lake"
        self.source.mkdir()
        self.plan.parent.mkdir()
        self.inject("")
        self.numbers: list[int] = []
        self.environment = {
            "PACELINE_TABLES_WAREHOUSE": str(self.warehouse), "PACELINE_TABLES_SPARK_JARS": jars,
            "PACELINE_FAULTS": f"@{self.plan}", "PACELINE_FAULTS_FOLDER": str(self.plan.parent), **environment,
        }  # fmt: skip
        query = query.format(checkpoint=str(folder / "checkpoint"))
        body = BODY.format(source=str(self.source), query=query, before=dedent(before).strip())
        if submits:
            application = folder / "application.py"
            application.write_text(APPLICATION.format(body=body))
            bench.dag(SUBMIT.format(application=str(application)))
        else:
            bench.dag(TASK.format(options=f"retries=1_000, retry_delay=1{options}", body=indent(body, " " * 8)))
        self.run = bench.scenario.trigger("d", run_id="r1")

    def inject(self, fault: str) -> None:
        self.plan.write_text(fault)

    def worker(self) -> Any:
        return self.bench.worker(queues="default,spark", **self.environment)

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
        self.waits(lambda: len(self.seen()) >= len(self.numbers))
        assert self.seen() == self.numbers
        assert self.bench.scenario.states(self.run) == {"readings": "running"}

    def waits(self, condition: Any) -> None:
        """Turn until it is met."""

        def there() -> bool:
            self.bench.scenario.turn()
            return bool(condition())

        eventually(there, timeout=STARTS_S, message=lambda: f"{self.seen()}\n{self.bench.output}\n{self.log()[-6000:]}")

    def log(self) -> str:
        """What all tries have logged."""
        return "\n".join(path.read_text() for path in sorted(self.bench.settings.logs_folder.rglob("*.log")))

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
