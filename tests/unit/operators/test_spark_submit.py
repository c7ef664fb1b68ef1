"""The arguments of the Spark operators, and the queue and pool of their tasks."""

from typing import Any

import pytest

from paceline import DAG, task
from paceline.exceptions import DagError, PacelineError
from paceline.operators import SparkSqlOperator, SparkSubmitOperator
from paceline.operators.spark import PySparkOperator
from scheduler.serialized.authored import default_queue, from_dag, megabytes
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import Core, Scheduler


def serialized(core: Core | None = None, **given: Any) -> SerializedTask:
    with DAG("d", schedule=None) as dag:
        SparkSubmitOperator(task_id="t", application="/app.py", **given)
    return from_dag(dag, file="d.py", core=core or Core(), scheduler=Scheduler()).tasks[0]


@pytest.mark.parametrize(
    ("conf", "queue"),
    [
        ({}, "spark"),
        *(({f"spark.{part}.memory": size}, queue) for part in ("driver", "executor")
          for size, queue in (("8191m", "spark"), ("8g", "spark-heavy"), ("1t", "spark-heavy"))),
        *(({f"spark.{part}.cores": count}, queue) for part in ("driver", "executor")
          for count, queue in (("4", "spark"), (8, "spark-heavy"))),
        ({"spark.master": "local[8]"}, "spark-heavy"),
        ({"spark.master": "local[16, 2]"}, "spark-heavy"),
        ({"spark.master": "local[7]"}, "spark"),
        ({"spark.master": "local[*]"}, "spark"),
    ],
)  # fmt: skip
def test_a_task_with_a_large_driver_or_large_executors_goes_to_the_heavy_queue(conf: dict[str, Any], queue: str) -> None:
    assert serialized(conf=conf).queue == queue
    assert default_queue(PySparkOperator(task_id="t", python_callable=print, conf=conf), Core()) == queue


@pytest.mark.parametrize(
    ("given", "queue"),
    [
        ({"heavy": True}, "spark-heavy"),
        ({"heavy": True, "queue": "mine"}, "mine"),
        ({"driver_memory": "9g"}, "spark-heavy"),
        ({"executor_memory": "8g"}, "spark-heavy"),
        ({"executor_memory": "8191m"}, "spark"),
        ({"executor_memory": "{{ params.memory }}"}, "spark"),
        ({"executor_cores": 8}, "spark-heavy"),
        ({"master": "local[8]"}, "spark-heavy"),
    ],
)
def test_the_arguments_of_spark_submit_count_as_conf_does(given: dict[str, Any], queue: str) -> None:
    assert serialized(**given).queue == queue


def test_the_rule_is_a_setting_and_may_be_off() -> None:
    core = Core(heavy_spark_queue="big", heavy_spark_memory_mb=0, heavy_spark_cores=2)

    assert serialized(core, executor_memory="100g").queue == "spark"
    assert serialized(core, executor_cores=2).queue == "big"


@pytest.mark.parametrize(
    ("given", "cluster"), [({}, "spark_default"), ({"conn_id": "prod"}, "prod"), ({"conn_id": "prod", "pool": "mine"}, None)]
)
def test_the_connection_names_the_pool_of_a_task_that_names_none(given: dict[str, Any], cluster: str | None) -> None:
    assert serialized(**given).cluster == cluster


def test_a_function_on_a_connect_server_has_the_pool_of_its_connection_too() -> None:
    with DAG("d", schedule=None) as dag:

        @task.pyspark(conn_id="prod")
        def there(spark: Any) -> None: ...

        @task.pyspark
        def here(spark: Any) -> None: ...

        there()
        here()

    tasks = from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).tasks

    assert {one.task_id: one.cluster for one in tasks} == {"there": "prod", "here": None}


def test_mapped_and_warm_tasks_follow_the_rule_too() -> None:
    with DAG("d", schedule=None) as dag:
        SparkSubmitOperator.partial(task_id="mapped", heavy=True).expand(application=["/a.py", "/b.py"])

        @task.pyspark(conf={"spark.executor.memory": "9g"})
        def warm(spark: Any) -> None: ...

        @task.pyspark(heavy=True)
        def said(spark: Any, number: int) -> None: ...

        warm()
        said.expand(number=[1, 2])

    tasks = from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).tasks

    assert {one.task_id: one.queue for one in tasks} == dict.fromkeys(("mapped", "warm", "said"), "spark-heavy")


@pytest.mark.parametrize(
    ("text", "size"), [("512m", 512), ("2g", 2048), ("2GB", 2048), ("1024", 1024), ("1t", 2**20), ("x", 0), (None, 0)]
)
def test_sizes_are_read_as_spark_reads_them(text: str | None, size: float) -> None:
    assert megabytes(text) == size


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"application": ""}, "application must be a non-empty str"),
        ({"application_args": "--date"}, "application_args must be a list"),
        ({"conf": ["spark.a=b"]}, "conf must be a dict"),
        ({"deploy_mode": "clutser"}, "deploy_mode cannot be 'clutser'; did you mean 'cluster'?"),
        ({"executor_cores": 0}, "executor_cores must be an int of at least 1"),
        ({"executor_memory": 4}, "executor_memory must be a non-empty str"),
        ({"aplication": "x"}, "did you mean 'application'?"),
    ],
)
def test_bad_arguments_are_refused_where_they_stand(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DagError) as refused, DAG("d", schedule=None):
        SparkSubmitOperator(**{"task_id": "t", "application": "/app.py", **given})

    assert sentence in str(refused.value)


def test_outside_of_a_worker_the_error_names_the_worker() -> None:
    with pytest.raises(PacelineError, match="runs only in a worker"):
        SparkSqlOperator(task_id="t", sql="select 1").execute({})


@pytest.mark.parametrize("operator", [SparkSubmitOperator, SparkSqlOperator])
def test_numbers_may_be_text_templates_or_results(operator: Any) -> None:
    @task
    def size() -> int:
        return 2

    own = {"application": "/app.py"} if operator is SparkSubmitOperator else {"sql": "select 1"}
    with DAG("d", schedule=None, params={"n": 3}) as dag:
        number = size()
        made = operator(
            task_id="t", num_executors="1", executor_cores="{{ params.n }}", total_executor_cores=number,
            executor_memory="{{ params.n }}g", **own,
        )  # fmt: skip
        for wrong in ("one", "0", 0, 1.5, True):
            with pytest.raises(DagError, match="executor_cores must be an int of at least 1"):
                operator(task_id="u", executor_cores=wrong, **own)

    assert (made.num_executors, made.upstream_task_ids) == (1, {"size"})
    assert {"num_executors", "executor_cores", "total_executor_cores"} <= set(made.template_fields)
    assert from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).tasks[1].queue == "spark"


def test_a_deploy_mode_may_be_a_result() -> None:
    @task
    def mode() -> str:
        return "client"

    with DAG("d", schedule=None):
        made: Any = SparkSubmitOperator(task_id="t", application="/app.py", deploy_mode=mode(), status_poll_interval=1)
        with pytest.raises(DagError, match="deploy_mode cannot be 'clint'; did you mean 'client'"):
            SparkSubmitOperator(task_id="u", application="/app.py", deploy_mode="clint")

    assert made.upstream_task_ids == {"mode"}
