"""Mistakes: both type checkers find each line with `error`, and mypy with our plugin those with `error mypy` too."""

from datetime import UTC, datetime

from paceline import DAG, TaskGroup, dag, task, task_group
from paceline.operators import BashOperator
from paceline.sensors import FileSensor

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

    @task
    def words() -> list[str]:
        return ["a"]

    @task
    async def number() -> int:
        return 3

    @task(multiple_outputs=True)
    def both() -> tuple[int, str]:
        return 1, "a"

    @task
    def total(numbers: list[int], factor: float = 1) -> float:
        return factor * sum(numbers)

    four(words())  # error mypy
    total(number())  # error mypy
    total([1], factor=words())  # error mypy
    total(four.expand(x=[1, 2]))  # error mypy
    total(both(), factor=total([1]))
    total(both.override(task_id="again")()["x"], factor=number())
    four.expand(x=words())  # error mypy
    four.expand(x=["a"])  # error mypy
    four.expand(x=number.expand_kwargs([{}]))
    total.partial(factor="a").expand(numbers=[[1]])  # error mypy

    BashOperator.partial(task_id="m", retrys=1).expand(bash_command=["ls"])  # error mypy
    BashOperator.partial(task_id="n").expand(bash_comand=["ls"])  # error mypy
    BashOperator.partial(task_id="o").expand(bash_command=[3])  # error mypy
    FileSensor.partial(task_id="p", poke_intervall=3).expand(filepath=["/x"])  # error mypy
    four.override(retrys=1)(1)  # error

    @task_group
    def group(x: int, y: str = "") -> None: ...

    group(3, z=3)  # error
    group("text")  # error
    group.expand(z=[3])  # error mypy
    group.expand(x=["text"])  # error mypy
    group.partial(z="a").expand(x=[1])  # error mypy
    group.partial(y="a").expand(z=[1])  # error mypy
    group.override(tooltp="a")(3)  # error
    TaskGroup("g", tooltp="a")  # error

    @task_group(tooltp="a")  # error
    def other() -> None: ...


DAG("d", schedul="@daily")  # error


@dag(schedul="@daily")  # error
def made() -> None: ...
