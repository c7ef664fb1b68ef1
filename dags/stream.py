"""A stream without end: readings as they come, written exactly once, whatever happens to the worker.

One task runs a structured streaming query. Its checkpoint says what is written: a try that was killed or stopped is followed by
one that goes on from there. `paceline tasks mark stream RUN readings success` ends it. Read the result with Spark, which knows
from the sink's own log which files count: `spark.read.parquet("$PACELINE_HOME/data/stream/readings")`.
"""

import os
from datetime import timedelta
from pathlib import Path

from scheduler import Param, dag, task
from scheduler.streaming import run_until_stopped


@task.pyspark(retries=1_000, retry_delay=timedelta(seconds=1))
def readings(spark, params):
    """Write what a source that counts gives, a batch at a time."""
    folder = Path(os.environ["PACELINE_HOME"]) / "data" / "stream"
    source = spark.readStream.format("rate").option("rowsPerSecond", params["rows_per_second"]).option("numPartitions", 1)
    query = (
        source.load()
        .selectExpr("value AS id", "timestamp AS at")
        .writeStream.format("parquet")
        .option("path", f"file://{folder}/readings")
        .option("checkpointLocation", f"file://{folder}/checkpoint")
        .trigger(processingTime="1 second")
        .start()
    )
    run_until_stopped(query)


@dag(
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={"rows_per_second": Param(10, type="integer", minimum=1)},
    tags=["example", "spark"],
    doc_md=__doc__,
)
def stream():
    readings()


stream()
