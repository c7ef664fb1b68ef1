"""Edges, by operators and by passing results."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline import DAG, chain, cross_downstream, dag, task
from paceline.exceptions import DagError
from paceline.operators import BashOperator, EmptyOperator, PythonOperator


def edges(dag: DAG) -> set[str]:
    down = {f"{t.task_id}>{below}" for t in dag.tasks for below in t.downstream_task_ids}
    assert down == {f"{above}>{t.task_id}" for t in dag.tasks for above in t.upstream_task_ids}
    return down


def empties(names: str) -> list[EmptyOperator]:
    return [EmptyOperator(task_id=name) for name in names]


def arrows(a: Any, b: Any, c: Any, d: Any) -> None:
    a >> [b, c] >> d
    [b, c] << a


def setters(a: Any, b: Any, c: Any, d: Any) -> None:
    a.set_downstream([b])
    a.set_upstream(c)


@pytest.mark.parametrize(
    ("join", "expected"),
    [
        (arrows, "a>b a>c b>d c>d"),
        (setters, "a>b c>a"),
        (lambda a, b, c, d: chain(a, [b, c], d), "a>b a>c b>d c>d"),
        (lambda a, b, c, d: chain([a, b], [c, d]), "a>c b>d"),
        (lambda a, b, c, d: cross_downstream([a, b], [c, d]), "a>c a>d b>c b>d"),
    ],
)
def test_tasks_and_lists_are_joined(join: Callable[..., None], expected: str) -> None:
    with DAG("d") as dag:
        join(*empties("abcd"))

    assert edges(dag) == set(expected.split())


def test_chain_refuses_lists_of_different_lengths() -> None:
    with DAG("d"):
        a, b, c = empties("abc")
        with pytest.raises(DagError, match="one has 2, the next 1"):
            chain([a, b], [c])


def test_passing_a_result_makes_the_edge_however_deep_it_is() -> None:
    with DAG("d") as dag:
        a, b, c, d = (t.output for t in empties("abcd"))
        BashOperator(task_id="bash", bash_command=a, env={"X": b})
        PythonOperator(task_id="py", python_callable=print, op_args=[[1, {"k": (c, d["x"][0])}]])

    assert edges(dag) == {"a>bash", "b>bash", "c>py", "d>py"}


def test_results_stand_in_arrows_like_tasks() -> None:
    @task
    def one() -> int:
        return 1

    with DAG("d") as dag:
        end = EmptyOperator(task_id="end")
        one() >> end
        [one(), one()] >> end

    assert edges(dag) == {"one>end", "one__1>end", "one__2>end"}


def test_a_result_put_into_a_field_later_makes_its_edge_when_the_dag_is_complete() -> None:
    with DAG("d") as dag:
        first = EmptyOperator(task_id="first")
        bash = BashOperator(task_id="bash", bash_command="true")
        bash.env = {"X": first.output}

    assert edges(dag) == {"first>bash"}


def test_a_task_without_a_dag_joins_that_of_its_neighbor() -> None:
    loose = EmptyOperator(task_id="loose")
    with DAG("d") as dag:
        EmptyOperator(task_id="a") >> loose

    assert dag.task_ids == ["a", "loose"]


def test_two_tasks_without_a_dag_cannot_be_joined() -> None:
    a, b = empties("ab")
    with pytest.raises(DagError, match="are in no DAG"):
        a >> b


def test_default_arguments_reach_the_tasks_that_take_them_and_give_way_to_their_own() -> None:
    defaults = {"retries": 3, "queue": "q", "bash_command": "true"}

    @dag(default_args=defaults)
    def made() -> None:
        EmptyOperator(task_id="plain")
        BashOperator(task_id="bash", retries=1, default_args={"queue": "other", "retries": 9})

    tasks = made().task_dict
    assert (tasks["plain"].retries, tasks["plain"].queue) == (3, "q")
    assert (tasks["bash"].retries, tasks["bash"].queue, tasks["bash"].bash_command) == (1, "other", "true")
