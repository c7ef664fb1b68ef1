"""Templates and params: dates, results, params, macros and filters of the DAG's own, native types, files."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Param, task


def twice(value):
    return value * 2


def shout(text):
    return text.upper()


def check(ds, ts, day, template, number, items, **context):
    assert ds == context["logical_date"].strftime("%Y-%m-%d") == day
    assert ts == context["logical_date"].isoformat()
    assert template == f"TEMPLATES at {ds.replace('-', '/')}"
    assert number == 7 and isinstance(number, int)
    assert items == [1, 2]
    assert context["params"]["number"] == 7
    assert context["dag_run"].conf["number"] == 7


with DAG(
    "templates",
    schedule=None,
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "number": Param(5, type="integer", minimum=1, maximum=9),
        "name": Param("world", type="string"),
        "plain": "as it is",
    },
    user_defined_macros={"twice": twice},
    user_defined_filters={"shout": shout},
    render_template_as_native_obj=True,
):
    PythonOperator(
        task_id="check",
        python_callable=check,
        op_kwargs={
            "day": "{{ data_interval_end | ds }}",
            "template": "{{ dag.dag_id | shout }} at {{ macros.ds_format(ds, '%Y-%m-%d', '%Y/%m/%d') }}",
            "number": "{{ params.number }}",
            "items": "{{ [1, params.number - 5] }}",
        },
    )
    BashOperator(
        task_id="shell",
        bash_command="test '{{ params.name }} {{ twice(2) }} {{ params.plain }}' = 'world 4 as it is'",
    )
    BashOperator(task_id="environment", bash_command="test $RUN = '{{ run_id }}'", env={"RUN": "{{ run_id }}"}, append_env=True)

    @task(templates_dict={"previous": "{{ prev_data_interval_start_success }}", "try": "{{ ti.try_number }}"})
    def decorated(templates_dict=None, params=None):
        assert templates_dict["try"] == 1
        assert params["name"] == "world"

    decorated()

    # A name that is defined nowhere is an error.
    BashOperator(task_id="undefined", bash_command="echo '{{ nobody_knows_this }}'")
