"""One plain Spark session: the program with which the part `tables` compares tasks. Python runs it with a job as JSON in a file."""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def run(spark: SparkSession, job: dict[str, Any]) -> list[list[Any]]:
    """Run statements, each with its parameters, then copy files into tables; the rows of each statement."""
    answers = [[list(row) for row in spark.sql(text, args=args).collect()] for text, args in job["statements"]]
    for name, path in job["load"].items():
        spark.read.parquet(path).writeTo(name).createOrReplace()
    return answers


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    spark = SparkSession.builder.config(map=job["conf"]).getOrCreate()
    Path(job["answers"]).write_text(json.dumps(run(spark, job), default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
