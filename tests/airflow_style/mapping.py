"""Mapped tasks: expand, partial, expand_kwargs, map, zip, cross products, empty lists."""

from datetime import UTC, datetime

from airflow.exceptions import AirflowSkipException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

with DAG("mapping", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False):

    @task
    def numbers():
        return [1, 2, 3]

    @task
    def letters():
        return ["x", "y", "z"]

    @task
    def empty():
        return []

    @task
    def add_one(x):
        return x + 1

    @task
    def total(values):
        assert sorted(values) == [2, 3, 4]
        return sum(values)

    @task
    def power(base, exponent):
        return base**exponent

    @task
    def check_powers(values):
        assert list(values) == [1, 1, 2, 4, 3, 9]

    @task
    def pair(left, right):
        return [left, right]

    @task
    def keywords():
        return [{"left": 1, "right": 2}, {"left": 3, "right": 4}]

    @task
    def odd_only(x):
        if x % 2 == 0:
            raise AirflowSkipException(f"{x} is even")
        return x

    @task
    def fail_at_two(x):
        if x == 2:
            raise ValueError("two")
        return x

    @task(trigger_rule="all_done")
    def count(values):
        return len(list(values))

    @task
    def never(values):
        raise AssertionError("upstream failed")

    three = numbers()
    total(add_one.expand(x=three))
    check_powers(power.expand(base=three, exponent=[1, 2]))
    pair.partial(left=0).expand(right=["a", "b"])
    pair.override(task_id="pair_kwargs").expand_kwargs(keywords())

    doubled = three.map(lambda x: x * 2)
    add_one.override(task_id="add_to_doubled").expand(x=doubled)
    zipped = three.zip(letters())
    pair.override(task_id="zipped").partial(left="zip").expand(right=zipped)

    after_none = add_one.override(task_id="over_none").expand(x=empty())
    count.override(task_id="count_none")(after_none)

    odd_only.expand(x=three)
    failing = fail_at_two.expand(x=three)
    count.override(task_id="count_failing")(failing)
    never(failing)

    BashOperator.partial(task_id="commands", append_env=True).expand(bash_command=["true", "echo {{ ti.map_index }}"])
