"""Looks for secrets while the DAG file is read, in a task and in a trigger, and prints its findings, or "nothing"."""

from typing import Any

from look_around_parts.seen import Look, report

from paceline import DAG
from paceline.operators import PythonOperator


class FromWaiter(PythonOperator):
    """Returns the findings of its trigger."""

    def execute(self, context: Any) -> None:
        self.defer(trigger=Look(), method_name="found")

    def found(self, context: Any, event: Any = None) -> Any:
        return event


with DAG("look_around", schedule=None, description=report()):
    PythonOperator(task_id="task", python_callable=report)
    FromWaiter(task_id="waiter", python_callable=report)
