"""Sixty small Spark tasks that each write a table, beside one plain Spark session that writes as many."""

from typing import Any

from bench.options import Options
from bench.tables import comparison

TASKS, SMALL_TASKS = 60, 3
WRITE = "create or replace table small.t{number:02} as select id, id % 7 as kind from range(1000)"
FILE = """\
from paceline import DAG, task


@task.pyspark
def write(spark, number):
    spark.sql({statement!r}.format(number=number))


with DAG("small", schedule=None):
    for number in range({count}):
        write.override(task_id=f"write_{{number:02}}")(number)
"""


def measure(options: Options) -> dict[str, Any]:
    """The `tasks`, and the seconds of their run over those of the session, cold: `over_session`, with its spread. MissingError."""
    count = SMALL_TASKS if options.small else TASKS
    statements: list[comparison.Statement] = [(WRITE.format(number=number), {}) for number in range(count)]
    files = {"small.py": FILE.format(statement=WRITE, count=count)}
    with comparison.prepared(files, "small", {}) as both:
        figures, _ = comparison.pairs(options, lambda: both.dag("small"), lambda: both.session(statements), f"{count} small tasks")
    return {"tasks": count, **figures}
