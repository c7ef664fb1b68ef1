"""A streaming query as a task: it writes each reading exactly once, even if the worker is killed.

One task runs a structured streaming query. The checkpoint records what is written, so a try after a killed or stopped one
continues from there. `paceline tasks mark stream RUN readings success` ends it. Read the result with Spark, which reads the
list of valid files from the log of the sink: `spark.read.parquet("$PACELINE_HOME/data/stream/readings")`.
"""

import os
from datetime import timedelta
from pathlib import Path

from paceline import Param, dag, task
from paceline.operators.spark import run_until_stopped


@task.pyspark(retries=1_000, retry_delay=timedelta(seconds=1))
def readings(spark, params):
    """Write the numbers of a rate source in batches."""
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
