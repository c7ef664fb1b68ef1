"""The queue of a Spark task: large drivers and executors go to that of heavy tasks."""

from typing import Any

import pytest

from paceline.operators import SparkSubmitOperator
from paceline.operators.spark import PySparkOperator
from scheduler.serialized import authored
from scheduler.settings import Core

CORE = Core(heavy_spark_memory_mb=8192, heavy_spark_cores=8)


@pytest.mark.parametrize(
    ("given", "heavy"),
    [
        ({}, False),
        ({"heavy": True}, True),
        *(({"conf": {f"spark.{part}.memory": "8g"}}, True) for part in ("driver", "executor")),
        *(({"conf": {f"spark.{part}.memory": "8191m"}}, False) for part in ("driver", "executor")),
        *(({"conf": {f"spark.{part}.cores": 8}}, True) for part in ("driver", "executor")),
        ({"conf": {"spark.master": "local[8]"}}, True),
        ({"conf": {"spark.master": "local[16, 2]"}}, True),
        ({"conf": {"spark.master": "local[7]"}}, False),
        ({"conf": {"spark.master": "local[*]"}}, False),
    ],
)
def test_a_task_with_a_large_driver_or_large_executors_is_heavy(given: dict[str, Any], heavy: bool) -> None:
    queue = "spark-heavy" if heavy else "spark"

    assert authored.default_queue(PySparkOperator(task_id="t", python_callable=print, **given), CORE) == queue
    assert authored.default_queue(SparkSubmitOperator(task_id="t", application="/a.py", **given), CORE) == queue


@pytest.mark.parametrize(
    "given", [{"driver_memory": "9g"}, {"executor_memory": "9g"}, {"executor_cores": 8}, {"master": "local[8]"}]
)
def test_the_arguments_of_spark_submit_count_as_conf_does(given: dict[str, Any]) -> None:
    assert authored.default_queue(SparkSubmitOperator(task_id="t", application="/a.py", **given), CORE) == "spark-heavy"
