"""The table of Airflow's names: which of its modules hold which names, and where these names are in Paceline.

The import hook, `paceline migrate-airflow`, the advice in import errors and docs/reference/airflow-imports.md all read it
through names.py.
"""

import configparser
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Row:
    """Modules of Airflow that hold the same names, and our modules in which these names are looked up in order."""

    modules: tuple[str, ...]
    places: tuple[str, ...]
    names: tuple[str, ...]


def _rows() -> Iterator[Row]:
    """The sections of names.cfg. A section is named by its modules."""
    parser = configparser.RawConfigParser(delimiters="=", comment_prefixes="#")
    parser.read_string(resources.files(__package__).joinpath("names.cfg").read_text(encoding="utf-8"))
    for modules in parser.sections():
        section = parser[modules]
        yield Row(tuple(modules.split()), tuple(section.get("places", "paceline").split()), tuple(section["names"].split()))


ROWS = tuple(_rows())
#: Names that are different here, or that have two names in Airflow. The name itself is looked up first.
RENAMED = {
    "Dataset": "Asset",
    "DatasetAlias": "AssetAlias",
    "DatasetAll": "AssetAll",
    "DatasetAny": "AssetAny",
    "DatasetOrTimeSchedule": "AssetOrTimeSchedule",
    "DummyOperator": "EmptyOperator",
    "RuntimeTaskInstanceProtocol": "TaskInstance",
    "DagRunProtocol": "DagRun",
    "RemovedInAirflow3Warning": "RemovedInAirflow4Warning",
}

#: The modules of the variants of our classes that accept the arguments of Airflow 2. An unchanged file imports these.
UNCHANGED = dict.fromkeys(("DAG", "dag", "PythonOperator"), "paceline.airflow.classic")

_NO_DATABASE = "a task has no access to the database of Paceline; use the REST API, or Variable and ti.xcom_pull"
_OWN = "define what you need of it in a module of the DAGs folder"
_CLIENT = "or use the Python client of the service in a @task function"
_NO_USER_CODE = "schedulers never run user code"
#: Why a name is not supported, and what to use instead. It is read only if the name is not found here.
REASONS = {
    **dict.fromkeys(("provide_session", "create_session", "NEW_SESSION", "Session", "engine"), _NO_DATABASE),
    **dict.fromkeys(("XCom", "BaseXCom", "XCOM_RETURN_KEY"), "use ti.xcom_pull and ti.xcom_push"),
    **dict.fromkeys(
        ("Timetable", "DagRunInfo", "DataInterval", "TimeRestriction"),
        f"{_NO_USER_CODE}; use EventsTimetable with the dates, or several crons in MultipleCronTriggerTimetable",
    ),
    "PriorityWeightStrategy": f"{_NO_USER_CODE}; use priority_weight and one of the three values of weight_rule",
    "AirflowPlugin": "Paceline has no plugins; import classes and functions from modules of the DAGs folder",
    **dict.fromkeys(
        ("DecoratedMappedOperator", "get_unique_task_id"),
        "use task_decorator_factory, which maps tasks and finds free IDs",
    ),
    "Stats": "use a metrics client of your own",
    **dict.fromkeys(("DagModel", "clear_task_instances"), _NO_DATABASE),
    "DagBag": "load the files with `paceline dags list`, and test a DAG with `paceline dags test`",
    "SubDagOperator": "use TaskGroup",
    "DagParam": "declare the inputs of a run with params= of the DAG, and read them as {{ params.name }}",
    "MappedOperator": "a mapped task is an operator whose is_mapped is True",
    "ChainRetryPolicy": "write a RetryPolicy whose evaluate() asks the others in turn",
    "DagRunTriggerException": "use TriggerDagRunOperator",
    "TaskAwaitingInput": "use HITLOperator",
    "redact": "the log of a task is masked without it, and mask_secret() adds values to mask",
    "context_to_airflow_vars": "read the values from the context",
    "SmoothOperator": "use EmptyOperator",
    "SparkJDBCOperator": "use @task.pyspark with spark.read.jdbc",
    "SparkPySparkOperator": "use @task.pyspark",
    "SparkPipelinesOperator": "use SparkSubmitOperator",
    "SparkSubmitHook": "use SparkSubmitOperator",
    "SparkSqlHook": "use SparkSqlOperator",
    **dict.fromkeys(("TriggerDagRunLink", "ExternalTaskSensorLink"), "operators have no extra links"),
    **dict.fromkeys(("DagStateTrigger", "WorkflowTrigger"), "use ExternalTaskSensor with deferrable=True, or ExternalTrigger"),
    "ResumableJobMixin": "SparkSubmitOperator resumes by itself; other operators store their job in task_state_store",
    "EdgeModifier": "write Label",
    **dict.fromkeys(("deadline_reference", "BaseDeadlineReference"), "write one of DeadlineReference"),
    "result": "the result of a run is the XCom of its last task",
    "AssetAccessControl": "Paceline has no teams; the roles of web accounts limit who may change assets",
}

#: The same for modules and all that is below them; the longest prefix counts.
MODULE_REASONS: dict[str, str] = {
    "airflow": _OWN,
    "airflow.contrib": f"it was removed in Airflow 3; install the provider package that replaces it, {_CLIENT}",
    "airflow.api": "use TriggerDagRunOperator or the REST API",
    "airflow.utils.dag_cycle_tester": "a circle of tasks is an import error, which `paceline dags errors` shows",
    "airflow.plugins_manager": "Paceline has no plugins; import classes and functions from modules of the DAGs folder",
    "airflow.example_dags": "copy this module into the DAGs folder, and import it from there",
    "airflow.models": f"it is for the database of Airflow, and {_NO_DATABASE}",
    "airflow.providers": f"install its package next to Paceline with `pip install --no-deps {{}}`, {_CLIENT}",
    "airflow.providers.apache.spark": "use SparkSubmitOperator, SparkSqlOperator or @task.pyspark",
    "airflow.providers.common.sql": "use SQLExecuteQueryOperator of paceline.operators or @task.sql, or install its package",
    "airflow.providers.standard": _OWN,
    "airflow.settings": _NO_DATABASE,
    "airflow.utils.db": _NO_DATABASE,
    "airflow.jobs": _NO_DATABASE,
    "airflow.www": "Paceline has its own pages, without plugins",
    "airflow.executors": "Celery workers are the only executor; queue= chooses them",
}

#: The provider packages of the services whose modules Airflow 1 had in airflow.contrib, airflow.hooks, airflow.operators and
#: airflow.sensors, such as airflow.hooks.postgres_hook.
SERVICES = {
    **dict.fromkeys(("bigquery", "dataflow", "dataproc", "gcs", "mlengine", "pubsub"), "google.cloud"),
    **dict.fromkeys(("athena", "ecs", "emr", "glue", "redshift", "s3", "sns", "sqs"), "amazon.aws"),
    **dict.fromkeys(("druid", "hdfs", "hive", "livy", "pig", "pinot", "sqoop"), "apache"),
    **dict.fromkeys((
        "databricks", "datadog", "docker", "ftp", "grpc", "http", "imap", "jdbc", "mongo", "mysql", "opsgenie", "oracle",
        "postgres", "presto", "redis", "segment", "sftp", "slack", "snowflake", "sqlite", "ssh", "vertica",
    ), ""),
    "mssql": "microsoft",
    "kubernetes": "cncf",
}  # fmt: skip
