"""Operators as objects, joined by >>, <<, chain and cross_downstream, with retries, a failing command and a skipping one."""

from datetime import UTC, datetime, timedelta

from airflow.exceptions import AirflowFailException, AirflowSkipException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Label, chain, cross_downstream


def add(left, right, *, scale=1):
    return (left + right) * scale


def second_try(ti):
    if ti.try_number < 2:
        raise ConnectionError("not yet")
    return ti.try_number


def refuse():
    raise AirflowFailException("no use to try this again")


def pass_over():
    raise AirflowSkipException("nothing to do today")


with DAG(
    "classic_operators",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retry_delay": timedelta(seconds=0.2)},
    max_active_tasks=8,
):
    start = EmptyOperator(task_id="start")
    end = EmptyOperator(task_id="end", trigger_rule="all_done")

    sums = [
        PythonOperator(task_id=f"add_{scale}", python_callable=add, op_args=[1, 2], op_kwargs={"scale": scale}) for scale in (1, 10)
    ]
    shell = BashOperator(
        task_id="shell",
        bash_command='test "$NAME" = paceline && echo "{{ ti.xcom_pull(task_ids=\'add_10\') }}"',
        env={"NAME": "paceline"},
        append_env=True,
    )
    check_shell = BashOperator(task_id="check_shell", bash_command="test '{{ ti.xcom_pull(task_ids=\"shell\") }}' = 30")
    skip_by_code = BashOperator(task_id="skip_by_code", bash_command="exit 99")
    fail_by_code = BashOperator(task_id="fail_by_code", bash_command="exit 3")
    retried = PythonOperator(task_id="retried", python_callable=second_try, retries=2)
    refused = PythonOperator(task_id="refused", python_callable=refuse, retries=5)
    passed_over = PythonOperator(task_id="passed_over", python_callable=pass_over, retries=5)
    slow = BashOperator(task_id="slow", bash_command="sleep 60", execution_timeout=timedelta(seconds=1))

    chain(start, sums, shell)
    shell >> Label("its output") >> check_shell
    cross_downstream([start], [skip_by_code, fail_by_code, retried])
    end << [check_shell, skip_by_code, fail_by_code, retried]
    start >> [refused, passed_over, slow]
    [refused, passed_over, slow] >> end
