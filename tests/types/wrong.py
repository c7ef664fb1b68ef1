"""Mistakes: both type checkers find each line with `error`, and mypy with our plugin those with `error mypy` too."""

from datetime import UTC, datetime

from scheduler import DAG, dag, task
from scheduler.operators import BashOperator
from scheduler.sensors import FileSensor

with DAG("d", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    FileSensor(task_id="f", filepath="/x", poke_intervall=3)  # error
    BashOperator(task_id="b", bash_command="ls", retrys=2)  # error
    BashOperator(task_id="c", bash_command=3)  # error
    BashOperator(task_id="e")  # error

    @task(retrys=2)  # error
    def one(x: int) -> int:
        return x

    @task.bash(apend_env=True)  # error
    def two() -> str:
        return "ls"

    @task.virtualenv(requirement=["x"])  # error
    def three() -> None: ...

    @task
    def four(x: int, ds: str) -> str:
        return ds * x

    four(1)
    four(y=3)  # error mypy
    four("text")  # error mypy
    four.expand(y=[3])  # error mypy
    four.partial(z=3).expand(x=[3])  # error mypy

DAG("d", schedul="@daily")  # error


@dag(schedul="@daily")  # error
def made() -> None: ...
