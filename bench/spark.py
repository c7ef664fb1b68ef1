"""Tasks on Spark: their start on a warm and on a cold worker, the time of 100 small jobs in a row, and the heap that a JVM keeps.

A start goes from the claim, by the database's clock on this machine, to the first line of the author's function. Warm, cold and
warm again, so that neither has the machine to itself. The small jobs stand beside the same job by spark-submit, some of them before
and some after.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import spark_demo
from bench.measure import calibrate
from bench.options import Options, Piece
from bench.report import row_line
from bench.stack import Stack

WARM, COLD, JOBS, SUBMITS, KEPT = 25, 5, 100, 4, (100, 1000)
SMALL_WARM, SMALL_COLD, SMALL_JOBS, SMALL_SUBMITS, SMALL_KEPT = 3, 1, 3, 1, (3, 6)
RUN_S = 1800.0
QUEUES = "default,spark"
#: No JVM is ended for its age while it is measured.
ENVIRONMENT = {"PACELINE_SPARK_MAX_TASKS_PER_JVM": "0", "PACELINE_SPARK_MAX_JVM_AGE": "86400"}
JOB = 'spark.range(1000).selectExpr("sum(id)").first()'
SCRIPT = f"from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n{JOB}\n"
#: A chain of tasks, each after the one before.
CHAIN = """\
import time

from paceline import DAG, task


@task.pyspark(do_xcom_push=True, warm={warm})
def job(spark):
    first_line = time.time()
    {body}
    return first_line


with DAG("{dag_id}", schedule=None, max_active_tasks=1):
    before = job()
    for _ in range({count} - 1):
        now = job()
        before >> now
        before = now
"""
#: The heap after two collections, by number of tasks.
KEEP = """\
from paceline import DAG, task


@task.pyspark
def job(spark, number):
    spark.conf.set("spark.sql.shuffle.partitions", 3 + number % 5)
    spark.range(1000).createOrReplaceTempView("mine")
    spark.sql("select id % 7 as k, count(*) from mine group by 1").collect()
    if number not in {asked}:
        return None
    memory = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    memory.gc()
    memory.gc()
    return memory.getHeapMemoryUsage().getUsed()


with DAG("keep", schedule=None, max_active_tasks=1):
    job.expand(number=list(range(1, {count} + 1)))
"""
STARTS = """
    select (x.value #>> '{}')::float8 - extract(epoch from t.started_at)::float8
      from task_instance t join xcom x on x.task_instance_id = t.id and x.key = 'return_value'
     where t.dag_run_id = %s order by t.started_at
"""
USED = """
    select t.map_index + 1, (x.value #>> '{}')::float8
      from task_instance t join xcom x on x.task_instance_id = t.id and x.key = 'return_value'
     where t.dag_run_id = %s order by 1
"""
MAKESPAN = "select extract(epoch from max(ended_at) - min(started_at))::float8 from task_instance where dag_run_id = %s"


def measure(options: Options) -> Piece:
    """The three figures of warm and cold starts and small jobs, their details in `spark`, and the figures of the flights demo."""
    small = options.small
    warm, cold, jobs = (SMALL_WARM, SMALL_COLD, SMALL_JOBS) if small else (WARM, COLD, JOBS)
    asked = SMALL_KEPT if small else KEPT
    files = {
        "warm.py": CHAIN.format(dag_id="warm", warm=True, body="pass", count=warm),
        "cold.py": CHAIN.format(dag_id="cold", warm=False, body="pass", count=cold),
        "jobs.py": CHAIN.format(dag_id="jobs", warm=True, body=JOB, count=jobs),
        "keep.py": KEEP.format(asked=asked, count=asked[-1]),
    }
    with Stack(files, concurrency=1, queues=QUEUES, environment=ENVIRONMENT) as stack:
        starts = _starts(stack, options)
        small_jobs = _small_jobs(stack, options, jobs, SMALL_SUBMITS if small else SUBMITS)
        kept = _kept(stack, options)
    found: Piece = {
        "warm_start_s_p50": starts["warm_s_p50"],
        "cold_start_s_p50": starts["cold_s_p50"],
        "small_jobs_speedup": small_jobs["speedup"],
        "spark": {"starts": starts, "small_jobs": small_jobs, "heap": kept},
    }
    return found | spark_demo.measure(options)


def _starts(stack: Stack, options: Options) -> dict[str, float]:
    _run(stack, "warm")  # starts the JVM, and is thrown away
    found: dict[str, list[float]] = {"warm": [], "cold": []}
    for dag_id in ("warm", "cold", "warm"):
        found[dag_id] += [seconds for (seconds,) in stack.rows(STARTS, (_run(stack, dag_id),))]
    figures = {
        "warm_s_p50": round(statistics.median(found["warm"]), 4),
        "warm_s_max": round(max(found["warm"]), 4),
        "cold_s_p50": round(statistics.median(found["cold"]), 3),
    }
    figures["cold_over_warm"] = round(figures["cold_s_p50"] / figures["warm_s_p50"], 1)
    options.say(f"starts: {row_line(figures, calibrate())}")
    return figures


def _small_jobs(stack: Stack, options: Options, count: int, submits: int) -> dict[str, float]:
    script = stack.folder / "job.py"
    script.write_text(SCRIPT)
    submitted = [_submit(script) for _ in range(-(-submits // 2))]
    (took_s,) = stack.rows(MAKESPAN, (_run(stack, "jobs"),))[0]
    submitted += [_submit(script) for _ in range(submits // 2)]
    figures = {
        "jobs": float(count),
        "job_s": round(took_s / count, 4),
        "submit_s": round(statistics.mean(submitted), 3),
        "speedup": round(statistics.mean(submitted) * count / took_s, 1),
    }
    options.say(f"small jobs: {row_line(figures, calibrate())}")
    return figures


def _submit(script: Path) -> float:
    """Seconds that one spark-submit of the job takes."""
    command = [*spark_demo.spark_submit(), str(script)]
    home = str(Path(command[0]).parents[1])
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": home}
    start = time.monotonic()
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=True)
    return time.monotonic() - start


def _kept(stack: Stack, options: Options) -> dict[str, float]:
    """Bytes of heap after a collection, by the number of tasks before it, in MB."""
    used: list[tuple[Any, ...]] = stack.rows(USED, (_run(stack, "keep"),))
    figures = {f"mb_after_{number}": round(size / 1e6, 2) for number, size in used}
    figures["last_over_first"] = round(used[-1][1] / used[0][1], 4)
    options.say(f"heap: {row_line(figures, calibrate())}")
    return figures


def _run(stack: Stack, dag_id: str) -> int:
    (run_id,) = stack.trigger([dag_id])
    stack.wait_closed([run_id], RUN_S)
    return run_id
