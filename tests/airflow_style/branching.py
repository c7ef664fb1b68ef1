"""Branches that choose one task, several, a group, or none, and the tasks that join them."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import BranchPythonOperator
from airflow.sdk import DAG, TaskGroup, TriggerRule, task

with DAG("branching", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False):

    @task.branch
    def one_of_three():
        return "red"

    red, green, blue = (EmptyOperator(task_id=name) for name in ("red", "green", "blue"))
    after_green = EmptyOperator(task_id="after_green")
    join = EmptyOperator(task_id="join", trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    strict_join = EmptyOperator(task_id="strict_join")
    choice = one_of_three()
    choice >> [red, green, blue]
    green >> after_green
    [red, after_green, blue] >> join
    [red, blue] >> strict_join

    two_of_three = BranchPythonOperator(task_id="two_of_three", python_callable=lambda: ["small", "large"])
    two_of_three >> [EmptyOperator(task_id=name) for name in ("small", "medium", "large")]

    nothing = BranchPythonOperator(task_id="nothing", python_callable=lambda: None)
    left, right = EmptyOperator(task_id="left"), EmptyOperator(task_id="right")
    either = EmptyOperator(task_id="either", trigger_rule="one_success")
    nothing >> [left, right] >> either

    @task.branch(task_id="into_group")
    def into_group():
        return "chosen"

    with TaskGroup("chosen") as chosen:
        EmptyOperator(task_id="first") >> EmptyOperator(task_id="second")
    with TaskGroup("passed") as passed:
        EmptyOperator(task_id="first") >> EmptyOperator(task_id="second")
    into_group() >> [chosen, passed]

    # The join is directly below its branch and below a chosen task too: it is not skipped.
    @task.branch
    def past_or_through():
        return "through"

    through = EmptyOperator(task_id="through")
    behind = EmptyOperator(task_id="behind", trigger_rule=TriggerRule.NONE_FAILED)
    decision = past_or_through()
    decision >> through >> behind
    decision >> behind
