"""Groups of tasks: nested, decorated, with arguments of their own, without prefix, and one mapped over a list."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup, task, task_group

with DAG("task_groups", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False):
    start, end = EmptyOperator(task_id="start"), EmptyOperator(task_id="end")

    with TaskGroup("outer", tooltip="Two in one") as outer:
        with TaskGroup("inner") as inner:
            EmptyOperator(task_id="one") >> EmptyOperator(task_id="two")
        last = EmptyOperator(task_id="last")
        inner >> last

    with TaskGroup("plain", prefix_group_id=False) as plain:
        EmptyOperator(task_id="without_prefix")

    @task_group(default_args={"retries": 3})
    def decorated(value):
        @task
        def show(value, ti=None):
            assert ti.max_tries == 3
            return value

        @task
        def check(value):
            assert value == "given"

        check(show(value))

    start >> [outer, plain] >> decorated("given") >> end

    @task
    def sizes():
        return [1, 2, 3]

    @task_group
    def process(size):
        @task
        def prepare(size):
            if size == 2:
                raise ValueError("the second one fails")
            return size * 10

        @task
        def finish(prepared):
            return prepared + 1

        return finish(prepare(size))

    @task
    def collect(finished):
        raise AssertionError("one instance failed, so this does not run")

    @task(trigger_rule="all_done")
    def collect_what_is_there(finished):
        assert sorted(finished) == [11, 31]

    done = process.expand(size=sizes())
    collect(done)
    collect_what_is_there(done)
