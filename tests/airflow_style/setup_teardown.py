"""Setups and teardowns: which tasks need a setup, what a teardown waits for, and which failures fail the run."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, setup, task, teardown


def fail():
    raise RuntimeError("as planned")


with DAG("setup_teardown", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False):

    @setup
    def make_cluster():
        return "cluster-1"

    @task
    def work(cluster):
        assert cluster == "cluster-1"

    @teardown
    def drop_cluster(cluster):
        assert cluster == "cluster-1"

    cluster = make_cluster()
    used = work(cluster)
    dropped = drop_cluster(cluster)
    used >> dropped

    # Work fails: the teardown runs all the same.
    with EmptyOperator(task_id="close").as_teardown(setups=EmptyOperator(task_id="open")):
        PythonOperator(task_id="broken_work", python_callable=fail) >> EmptyOperator(task_id="more_work")

    # A setup fails: its work does not run, and neither does its teardown, since there is nothing to tear down.
    bad_setup = PythonOperator(task_id="bad_setup", python_callable=fail)
    needs_it = EmptyOperator(task_id="needs_it")
    needs_it_too = EmptyOperator(task_id="needs_it_too", trigger_rule="all_done")
    unused = EmptyOperator(task_id="unused")
    bad_setup >> needs_it >> needs_it_too >> unused.as_teardown(setups=bad_setup)


with DAG("teardown_fails", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False):
    opened = EmptyOperator(task_id="opened")
    inside = EmptyOperator(task_id="inside")
    opened >> inside >> PythonOperator(task_id="closed", python_callable=fail).as_teardown(setups=opened)
