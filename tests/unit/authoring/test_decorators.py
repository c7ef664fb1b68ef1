"""@dag, @task and @task.pyspark, and the arguments of their functions."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import DAG, dag, task
from paceline.authoring import execution, scope
from paceline.exceptions import DagError
from paceline.operators import PythonOperator


def call(function: Any, *args: Any, given: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """Make a task by calling `function` in a DAG and execute it with the context `given`."""
    with DAG("d") as made:
        function(*args, **kwargs)
    return made.tasks[0].execute(given or {})


def test_a_dag_function_makes_a_dag_of_its_name_with_its_docstring() -> None:
    @dag(schedule="@daily", tags=["x"])
    def flights() -> None:
        """All flights."""
        task(task_id="one")(lambda: 1)()

    made = flights()

    assert (made.dag_id, made.doc_md, made.tags, made.task_ids) == ("flights", "All flights.", ["x"], ["one"])
    assert made.fileloc == __file__
    assert dag("other")(lambda: None)().dag_id == "other"
    assert dag(dag_id="third")(lambda: None)().dag_id == "third"


def test_opened_dags_are_collected_also_without_a_name() -> None:
    with scope.collect() as collected:
        with DAG("a"):
            with DAG("b"):
                pass
        dag("c")(lambda: None)()

    assert [made.dag_id for made in collected] == ["a", "b", "c"]
    assert scope.current_dag() is None


def test_a_file_that_ends_late_in_another_thread_takes_no_dag_of_the_next_file() -> None:
    """A file that hangs ends at any time, while a new thread of the waiter reads another one."""
    opened, end, ended = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        with scope.collect(defer_errors=True), DAG("late"):
            opened.set()
            end.wait(60)
        ended.set()

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    assert opened.wait(60)
    with scope.collect(defer_errors=True) as collected:
        assert scope.current_dag() is None
        with DAG("a") as made:
            end.set()
            assert ended.wait(60)
            assert scope.current_dag() is made

    assert [dag.dag_id for dag in collected] == ["a"]


def test_a_dag_that_a_thread_of_its_file_creates_is_collected() -> None:
    def create() -> None:
        with DAG("a"):
            task(task_id="t")(lambda: 1)()

    with scope.collect() as collected:
        thread = threading.Thread(target=create)
        thread.start()
        thread.join()

    assert [dag.dag_id for dag in collected] == ["a"]
    assert len(collected.tasks) == 1


def test_a_task_has_the_line_that_created_it() -> None:
    with DAG("d") as made:
        task(task_id="a")(lambda: 1)()
        task(task_id="b")(lambda: 1)()

    assert made.get_task("b").at.line == made.get_task("a").at.line + 1 == made.line + 2


def test_a_function_called_again_becomes_a_task_with_a_number() -> None:
    @task
    def load(n: int) -> None: ...

    with DAG("d") as made:
        for n in range(3):
            load(n)
        load.override(task_id="other", retries=4)(9)

    assert made.task_ids == ["load", "load__1", "load__2", "other"]
    assert made.get_task("other").retries == 4


def test_context_variables_fill_parameters_of_their_name_unless_given() -> None:
    @task
    def load(rows: int, run_id: str, ds: str = "default", *, ti: Any = None) -> tuple[Any, ...]:
        return rows, run_id, ds, ti

    given = {"run_id": "r1", "ds": "2026-01-01", "ti": "instance"}

    assert call(load, 5, given=given) == (5, "r1", "2026-01-01", "instance")
    assert call(load, rows=5, run_id="mine", given=given) == (5, "mine", "2026-01-01", "instance")
    assert call(load, 5, "mine", given=given)[1] == "mine"


def test_a_function_with_keyword_arguments_gets_the_whole_context() -> None:
    @task
    def load(rows: int, **kwargs: Any) -> Any:
        return rows, kwargs["run_id"], kwargs["more"]

    assert call(load, 5, more=6, given={"run_id": "r1"}) == (5, "r1", 6)


def test_a_python_operator_passes_args_kwargs_and_templates_dict() -> None:
    def load(a: int, b: int, templates_dict: dict[str, Any]) -> Any:
        return a, b, templates_dict["t"]

    operator = PythonOperator(
        task_id="t", python_callable=load, op_args=[1], op_kwargs={"b": 2}, templates_dict={"t": 3}, dag=DAG("d")
    )

    assert operator.execute({}) == (1, 2, 3)


def test_a_spark_function_gets_its_session_and_positional_arguments_go_past_it() -> None:
    session = SimpleNamespace(sparkContext="context")

    @task.pyspark(conf={"spark.sql.shuffle.partitions": 4}, heavy=True)
    def count(spark: Any, rows: int, sc: Any, ds: str) -> Any:
        return spark, rows, sc, ds

    with DAG("d") as made:
        count(3)
    (operator,) = made.tasks

    assert operator.execute({"spark": session, "ds": "x"}) == (session, 3, "context", "x")
    assert operator.worker_runtime == "pyspark"
    assert (operator.heavy, operator.spark_conf) == (True, {"spark.sql.shuffle.partitions": 4})  # type: ignore[attr-defined]


@pytest.mark.parametrize(("annotation", "several"), [(dict, True), (dict[str, int], True), (list, False), ("gone", False)])
def test_a_function_annotated_to_return_a_dict_has_several_outputs(annotation: Any, several: bool) -> None:
    def load() -> Any: ...

    load.__annotations__["return"] = annotation
    with DAG("d") as made:
        task(load)()
        task(multiple_outputs=False, task_id="off")(load)()

    assert [t.multiple_outputs for t in made.tasks] == [several, False]


def test_a_decorated_function_keeps_its_name_and_can_be_called_plainly() -> None:
    @task()
    def load(n: int) -> int:
        """Load."""
        return n + 1

    assert (load.__name__, load.__doc__, load.function(1)) == ("load", "Load.", 2)


def test_calling_a_task_inside_a_running_task_is_refused() -> None:
    @task
    def load() -> None: ...

    with execution.current({}), pytest.raises(DagError, match=r"call load\.function\(\), the plain function"):
        load()


def test_importing_scheduler_loads_authoring_only() -> None:
    heavy = ["sqlalchemy", "celery", "redis", "pyspark", "pydantic", "jinja2", "croniter", "psycopg2"]
    code = f"import paceline, paceline.operators, sys; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})

    assert done.stdout.strip() == "[]"
