"""Mapped tasks and groups: their serialized form, the values of each instance, and refused arguments."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline import DAG, BaseOperator, task, task_group
from paceline.authoring.operator import MappedOperator
from paceline.exceptions import DagError, XComError
from paceline.operators import BashOperator, EmptyOperator, PythonOperator
from scheduler.serialized.authored import from_dag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import Core, Scheduler


@task
def numbers() -> list[int]:
    return [10, 20]


@task
def add(x: Any, y: Any = 0) -> Any:
    return [x, y]


def group(function: Callable[..., Any]) -> Any:
    return task_group("g")(function)


class Stored:
    """A `ti` with given XComs; `lengths` and `entries` count the reads."""

    def __init__(self, map_index: int = 0, **values: Any) -> None:
        self.map_index = map_index
        self.values = values
        self.asked: list[str] = []

    def xcom_pull(self, task_ids: str, key: str = "return_value", default: Any = None) -> Any:
        return self.values.get(task_ids if key == "return_value" else key, default)

    def xcom_entries(self, task_id: str, key: str) -> Sequence[Any]:
        ti = self
        name = task_id if key == "return_value" else key
        values = self.values[name]

        class Counted(list[Any]):
            def __len__(self) -> int:
                ti.asked.append(f"len {name}")
                return super().__len__()

            def __getitem__(self, place: Any) -> Any:
                ti.asked.append(f"{name}[{place}]")
                return super().__getitem__(place)

        return Counted(values.items() if isinstance(values, dict) else values)


def data(dag: DAG) -> dict[str, SerializedTask]:
    return {one.task_id: one for one in from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).tasks}


def unmapped(dag: DAG, task_id: str, ti: Stored) -> BaseOperator:
    return dag.task_dict[task_id].unmap({"ti": ti, "task": dag.task_dict[task_id]}, ti.map_index)


def rendered(dag: DAG, task_id: str, ti: Stored, field: str = "op_kwargs") -> Any:
    context = {"ti": ti, "task": dag.task_dict[task_id], "ds": "2026-01-01"}
    return getattr(dag.task_dict[task_id].unmap(context, ti.map_index).render(context), field)


def test_the_spec_names_the_sources_of_the_lengths() -> None:
    with DAG("d") as dag:
        found = numbers()
        add.expand(x=[1, 2, 3])
        add.expand(x=found, y={"a": 1, "b": 2})
        add.override(task_id="kwargs").partial(y=1).expand_kwargs(found)
        add.override(task_id="dicts").expand_kwargs([{"x": 1}, {"x": 2, "y": 3}])
        more = found.map(lambda n: n).zip(found, fillvalue=0).concat(found["rows"])
        add.override(task_id="combined").expand(x=more)
        add.override(task_id="short").expand(x=found.zip(numbers()))

    source = {"task": "numbers", "key": "return_value"}
    assert {name: one.expand for name, one in data(dag).items() if one.expand} == {
        "add": {"kind": "product", "inputs": [{"literal": 3}]},
        "add__1": {"kind": "product", "inputs": [source, {"literal": 2}]},
        "kwargs": {"kind": "list", "inputs": [source]},
        "dicts": {"kind": "list", "inputs": [{"literal": 2}]},
        "combined": {
            "kind": "product",
            "inputs": [{"concat": [{"zip": [source, source], "longest": True}, {"task": "numbers", "key": "rows"}]}],
        },
        "short": {
            "kind": "product",
            "inputs": [{"zip": [source, {"task": "numbers__1", "key": "return_value"}], "longest": False}],
        },
    }
    assert data(dag)["short"].upstream == ("numbers", "numbers__1")
    assert data(dag)["combined"].upstream == ("numbers",)


def test_a_mapped_task_has_the_arguments_of_its_instances() -> None:
    with DAG("d", default_args={"retries": 3, "env": {"A": "1"}}) as dag:
        BashOperator.partial(task_id="b", pool="p", queue="q", trigger_rule="all_done", map_index_template="{{ ds }}").expand(
            bash_command=["echo 1", "echo {{ ds }}"]
        )

    mapped = dag.task_dict["b"]
    one = data(dag)["b"]
    assert (one.operator, one.runtime, one.retries, one.pool, one.queue) == ("BashOperator", "bash", 3, "p", "q")
    assert isinstance(mapped, MappedOperator)
    assert mapped.map_index_template == "{{ ds }}"
    real = unmapped(dag, "b", Stored(1))
    assert (type(real), real.task_id, real.dag, real.retries, real.trigger_rule) == (BashOperator, "b", dag, 3, "all_done")
    assert rendered(dag, "b", Stored(1), "bash_command") == "echo 2026-01-01"
    assert rendered(dag, "b", Stored(1), "env") == {"A": "1"}


def test_the_last_argument_varies_fastest() -> None:
    with DAG("d") as dag:
        add.expand(x=numbers(), y=["a", "b", "c"])

    found = [rendered(dag, "add", Stored(index, numbers=[10, 20])) for index in range(6)]
    assert [(one["x"], one["y"]) for one in found] == [(10, "a"), (10, "b"), (10, "c"), (20, "a"), (20, "b"), (20, "c")]


def test_an_instance_reads_no_more_than_its_entry() -> None:
    with DAG("d") as dag:
        add.expand(x=numbers().map(str))

    ti = Stored(1, numbers=[10, 20])
    assert rendered(dag, "add", ti) == {"x": "20"}
    assert ti.asked == ["numbers[1]"]


def test_dicts_are_mapped_over_as_pairs() -> None:
    with DAG("d") as dag:
        add.expand(x={"a": 1, "b": 2})
        add.override(task_id="of_task").expand(x=numbers())

    assert rendered(dag, "add", Stored(1)) == {"x": ("b", 2)}
    assert rendered(dag, "of_task", Stored(0, numbers={"k": "v"})) == {"x": ("k", "v")}


def test_zips_and_joins_entry_by_entry_and_whole() -> None:
    with DAG("d") as dag:
        a, b = numbers(), numbers()
        zipped, filled, joined = a.zip(b), a.zip(b, fillvalue=None), a.concat(b)
        for name, value in (("zipped", zipped), ("filled", filled), ("joined", joined)):
            add.override(task_id=name).expand(x=value)
        add.override(task_id="whole").partial(y=zipped.map(sum)).expand(x=[1])

    values = {"numbers": [1, 2, 3], "numbers__1": [4, 5]}
    assert [rendered(dag, "zipped", Stored(index, **values))["x"] for index in range(2)] == [(1, 4), (2, 5)]
    assert [rendered(dag, "filled", Stored(index, **values))["x"] for index in range(3)] == [(1, 4), (2, 5), (3, None)]
    assert [rendered(dag, "joined", Stored(index, **values))["x"] for index in range(5)] == [1, 2, 3, 4, 5]
    assert rendered(dag, "whole", Stored(0, **values))["y"] == [5, 7]
    context = {"ti": Stored(**values)}
    assert (filled.resolve(context), joined.resolve(context)) == ([(1, 4), (2, 5), (3, None)], [1, 2, 3, 4, 5])


def test_values_of_other_tasks_are_no_templates_but_those_of_the_file_are() -> None:
    with DAG("d") as dag:
        add.partial(y="{{ ds }}").expand(x=["{{ ds }}"])
        add.override(task_id="of_task").partial(y="{{ ds }}").expand(x=numbers())
        BashOperator.partial(task_id="bash").expand(bash_command=numbers().map(lambda text: text + " {{ ds }}"))
        add.override(task_id="inside").expand(x=[{"sum": numbers()}])

    assert rendered(dag, "add", Stored()) == {"x": "2026-01-01", "y": "2026-01-01"}
    assert rendered(dag, "of_task", Stored(numbers=[["{{ ds }}"]])) == {"x": ["{{ ds }}"], "y": "2026-01-01"}
    assert rendered(dag, "bash", Stored(numbers__1=["echo"]), "bash_command") == "echo {{ ds }}"
    assert rendered(dag, "inside", Stored(numbers__2=3)) == {"x": {"sum": 3}}
    assert data(dag)["inside"].upstream == ("numbers__2",)


def test_expand_kwargs_of_a_task_gives_each_its_dict() -> None:
    with DAG("d") as dag:
        add.partial(y=1).expand_kwargs(numbers())
        PythonOperator.partial(task_id="classic", python_callable=print).expand_kwargs(numbers())

    assert rendered(dag, "add", Stored(1, numbers=[{}, {"x": 5}])) == {"x": 5, "y": 1}
    assert rendered(dag, "classic", Stored(numbers__1=[{"op_args": [7]}]), "op_args") == [7]
    with pytest.raises(XComError, match="got 3 for map index 0; it takes a dict"):
        unmapped(dag, "add", Stored(numbers=[3]))
    with pytest.raises(DagError, match="cannot be called with these arguments"):
        unmapped(dag, "add", Stored(numbers=[{"z": 1}]))


def test_every_task_of_a_mapped_group_is_mapped_with_it() -> None:
    with DAG("d") as dag:

        @task_group
        def steps(x: Any, y: Any, z: int = 3) -> Any:
            first = add(x, y)
            EmptyOperator(task_id="aside")
            return add(first, z)

        end = add(steps.partial(y="{{ ds }}").expand(x=numbers()), 1)
        EmptyOperator(task_id="before") >> dag.task_group_dict["steps"]
        steps.expand_kwargs([{"x": 1, "y": 2, "z": 3}])

    spec = {"kind": "product", "inputs": [{"task": "numbers", "key": "return_value"}]}
    tasks = data(dag)
    for name in ("steps.add", "steps.add__1", "steps.aside"):
        assert (tasks[name].expand, tasks[name].mapped_group) == (spec, "steps")
    assert tasks["steps.add"].upstream == tasks["steps.aside"].upstream == ("before", "numbers")
    assert tasks["steps.add__1"].upstream == ("steps.add",)
    assert tasks["steps__1.aside"].expand == {"kind": "list", "inputs": [{"literal": 1}]}
    assert (end.operator.expand_spec, tasks["add"].upstream) == (None, ("steps.add__1",))
    assert rendered(dag, "steps.add", Stored(1, numbers=[10, 20]), "op_args") == (20, "2026-01-01")
    assert rendered(dag, "steps__1.add", Stored(0), "op_args") == (1, 2)


def test_a_key_of_a_mapped_result_is_taken_from_each_instance() -> None:
    with DAG("d") as dag:
        mapped = add.expand(x=[1, 2])
        add.override(task_id="end")(mapped["x"])

    context = {"ti": Stored(add=[{"x": 1}, {"x": 2}]), "task": dag.task_dict["end"]}
    assert mapped["x"].resolve(context) == [1, 2]


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda: add.expand(), "nothing to expand over"),
        (lambda: add.expand(x=3), r"expand\(x=...\) takes a list, a dict or the result of a task, not 3 \(int\)"),
        (lambda: add.expand(x="abc"), "takes a list, a dict or the result"),
        (lambda: add.partial(x=1).expand(x=[1]), "'x' is in partial"),
        (lambda: add.partial(x=1).partial(x=2), "'x' is in partial"),
        (lambda: add.partial(z=1).expand(x=[1]), r"add\(\) has no argument 'z'"),
        (lambda: add.partial(y=1).expand(y=[1]), "'y' is in partial"),
        (lambda: add.expand(y=[1]), "missing a required (keyword-only )?argument: 'x'"),
        (lambda: add.expand_kwargs([{"x": 1}, {"y": 1}]), "missing a required (keyword-only )?argument: 'x'"),
        (lambda: add.expand_kwargs([1]), "takes a list of dicts with str keys, but 1 is in it"),
        (lambda: add.expand_kwargs({"x": 1}), "takes a list of dicts or the result"),
        (lambda: add.partial(x=1)(), "only for mapping"),
        (lambda: BashOperator.partial(task_id="b").expand(bash_command=["x"], retries=[1]), "'retries' is the same for every"),
        (lambda: BashOperator.partial(task_id="b").expand(pool=["x"]), "'pool' is the same for every instance"),
        (
            lambda: BashOperator.partial(task_id="b").expand(bash_comand=["x"]),
            "'bash_comand' in expand.*did you mean 'bash_command'",
        ),
        (lambda: BashOperator.partial(task_id="b", bash_comand="x"), "unknown argument 'bash_comand'"),
        (lambda: BashOperator.partial(task_id="b").expand(env=[{}]), "needs the argument 'bash_command', in partial"),
        (lambda: BashOperator.partial(task_id="b", bash_command="x").expand(bash_command=["x"]), "'bash_command' is in"),
        (lambda: BashOperator.partial(bash_command="x").expand(env=[{}]), "needs the argument 'task_id'"),
        (lambda: BashOperator.partial(task_id="b") >> EmptyOperator(task_id="e"), "add .expand"),
        (lambda: BashOperator.partial(task_id="b", bash_command="x", cwd=numbers(), pool=numbers()).expand(env=[{}]), "pool"),
        (lambda: numbers().map(3), "takes a plain function"),
        (lambda: numbers().map(add), "takes a plain function"),
        (lambda: numbers().zip([1]), "Only results of tasks can be joined"),
        (lambda: numbers().map(str)["x"], "takes no subscript"),
        (lambda: f"{numbers().concat(numbers())}", "cannot be part of a string"),
        (lambda: add.expand(x=numbers()["a"]["b"]), "cannot be mapped over; only a whole result or one key"),
        (lambda: group(lambda x: add.expand(x=[x])).expand(x=[1]), "is in the mapped group"),
        (lambda: group(lambda x: add.expand(x=x)).expand(x=[1]), "mapping does not nest"),
        (lambda: group(lambda x: group(lambda y: add(y)).expand(y=[1])).expand(x=[1]), "is in the mapped group"),
        (lambda: group(lambda x: add.override(trigger_rule="always")(x)).expand(x=[1]), "cannot have trigger_rule='always'"),
        (lambda: group(lambda x: x).expand(x=[1]), "returns one of its own arguments"),
        (lambda: group(lambda x: None).expand(), "nothing to expand over"),
        (lambda: group(lambda x: None).expand(y=[1]), "no argument 'y'"),
        (lambda: group(lambda x: None).partial(x=1).expand(x=[1]), "is in partial"),
        (lambda: group(lambda x, y: None).expand(x=[1]), "missing a required (keyword-only )?argument: 'y'"),
        (lambda: group(lambda x: f"{x}").expand(x=[1]), "cannot be part of a string"),
    ],
)
def test_mistakes(write: Callable[[], Any], words: str) -> None:
    dag = DAG("d")
    dag.__enter__()
    try:
        with pytest.raises(DagError, match=words) as caught:
            write()
    finally:
        dag.__exit__(DagError, None, None)
    assert caught.value.file == __file__


def test_a_partial_that_is_never_expanded_is_refused() -> None:
    with pytest.raises(DagError, match=r"partial\(\) defines no task by itself"), DAG("d"):
        BashOperator.partial(task_id="b", bash_command="x")
