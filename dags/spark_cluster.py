"""Submitted Spark applications: the same file with its driver next to the worker and with its driver on the cluster.

This DAG needs a Spark cluster: the connection `spark_cluster`, which the profile `spark` of docker-compose.yml provides.
"""

from pathlib import Path

from paceline import DAG
from paceline.operators import SparkSubmitOperator

SMALL = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.cores.max": "2"}

with DAG("spark_cluster", schedule=None, tags=["example", "spark"], default_args={"conn_id": "spark_cluster", "retries": 1}):
    beside = SparkSubmitOperator(
        task_id="beside_the_worker",
        application=str(Path(__file__).parent / "spark_cluster_parts" / "pi.py"),
        application_args=["10"],
        conf=SMALL,
    )
    within = SparkSubmitOperator(
        task_id="within_the_cluster",
        application=str(Path(__file__).parent / "spark_cluster_parts" / "pi.py"),
        application_args=["10"],
        conf=SMALL,
        deploy_mode="cluster",
    )
    beside >> within
