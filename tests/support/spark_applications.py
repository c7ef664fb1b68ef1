"""An application for a Spark cluster, a DAG that submits it, and queries for its stored rows, processes and logs."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil

from support.spark_cluster import JVM, SparkCluster
from support.waiting import eventually

#: Prints its configuration, waits for a file (its first argument) and ends.
APPLICATION = """
import os, signal, sys, time
from pathlib import Path
from pyspark.sql import SparkSession

go = Path(sys.argv[1])
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
spark = SparkSession.builder.getOrCreate()
# A job without generated code, and none at all where no executor is wanted: those are what takes time.
rows = spark.sparkContext._jsc.sc().range(0, 1000, 1, 1).count() if "count" in sys.argv else 0
print("counted", rows, "with", os.environ.get("GIVEN"), spark.conf.get("spark.my.token", "none"), flush=True)
deadline = time.monotonic() + 60
while not go.exists() and time.monotonic() < deadline:
    time.sleep(0.1)
spark.stop()
"""
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "1",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.extraJavaOptions": JVM,
}
#: A driver without executors.
ALONE = {
    **SMALL,
    "spark.dynamicAllocation.enabled": True,
    "spark.dynamicAllocation.shuffleTracking.enabled": True,
    "spark.dynamicAllocation.initialExecutors": 0,
}


def dag(file: Path, *arguments: str, **more: object) -> str:
    """A DAG `d` of one task `t` that submits the application."""
    given = [str(file.parent / "go"), *arguments]
    options = {"conf": ALONE, "application": str(file), "application_args": given, **more}
    return dedent(f"""
        import datetime
        with DAG("d", schedule=None):
            SparkSubmitOperator(task_id="t", **{options!r})
    """)


def jobs(bench: Any) -> list[dict[str, Any]]:
    """The stored applications, oldest first."""
    names = ("tag", "driver_id", "application_id", "state", "try_number", "ui_url", "ended_at")
    rows = bench.scenario.rows(f"select {', '.join(names)} from external_job order by id")
    return [dict(zip(names, row, strict=True)) for row in rows]


def processes(job: dict[str, Any]) -> list[psutil.Process]:
    """The processes whose command line contains the tag or the ID of this application: driver, its parent, executors."""
    names = [name for name in (job["tag"], job["application_id"]) if name is not None]
    found = psutil.process_iter(["cmdline", "name"])
    return [one for one in found if any(name in word for word in one.info["cmdline"] or () for name in names)]


def running_application(bench: Any, cluster: SparkCluster) -> dict[str, Any]:
    """The stored application, once the master lists it as active and its driver has counted."""
    seen: dict[str, Any] = {}

    def there() -> bool:
        bench.scenario.turn()
        found = jobs(bench)
        if not found or "counted" not in log(bench, found[-1]["try_number"]):
            return False
        seen.update(found[-1])
        # Its state is WAITING while it requests no executor.
        return (
            any(application["state"] in {"WAITING", "RUNNING"} for application in cluster.applications(seen["tag"]))
            and seen["application_id"] is not None
        )

    eventually(there, timeout=150, interval=0.5, message=lambda: f"{jobs(bench)}\n{logs(bench)}\n{bench.output}")
    return seen


def java(job: dict[str, Any]) -> list[psutil.Process]:
    """The JVMs among its processes."""
    return [process for process in processes(job) if "java" in process.info["name"]]


def turned(bench: Any) -> bool:
    """Run an iteration of the schedulers. Always true, for use in a condition."""
    bench.scenario.turn()
    return True


def log(bench: Any, number: int = 1) -> str:
    """The log of a try; empty if it has not started."""
    path = bench.log_path("t", number)
    return path.read_text() if path.exists() else ""


def logs(bench: Any) -> str:
    return "\n".join(path.read_text() for path in sorted(bench.settings.logs_folder.rglob("*.log")))
