"""Task groups: ids, nesting, arguments, and the edges that go to and come from them."""

from collections.abc import Callable
from typing import Any

import pytest
from support.authored import edges, empty

from paceline import DAG, Label, TaskGroup, chain, chain_linear, task, task_group
from paceline.exceptions import DagError, DuplicateTaskError
from paceline.operators import BashOperator
from scheduler.serialized.authored import from_dag
from scheduler.settings import Core, Scheduler


def test_ids_contain_the_groups_and_the_dag_lists_them() -> None:
    with DAG("d") as dag:
        with TaskGroup("outer", tooltip="all of it"):
            empty("a")
            with TaskGroup("inner"):
                empty("b")
            with TaskGroup("bare", prefix_group_id=False):
                empty("c")
        empty("a")

    assert dag.task_ids == ["outer.a", "outer.inner.b", "c", "a"]
    assert [task.parent_group_id for task in dag.tasks] == ["outer", "outer.inner", "outer.bare", None]
    data = from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler())
    assert {one.task_id: one.group for one in data.tasks}["outer.inner.b"] == "outer.inner"
    assert data.groups == (
        {"group_id": "outer", "parent": None, "tooltip": "all of it"},
        {"group_id": "outer.inner", "parent": "outer", "tooltip": ""},
        {"group_id": "outer.bare", "parent": "outer", "tooltip": ""},
    )


def test_edges_of_a_group_are_those_of_its_first_and_last_tasks() -> None:
    with DAG("d") as dag:
        start, end, last = empty("start"), empty("end"), empty("last")
        with TaskGroup("g") as group:
            a, b, c = empty("a"), empty("b"), empty("c")
            a >> [b, c]
        start >> group >> [end, last]

    assert edges(dag) == {"start>g.a", "g.a>g.b", "g.a>g.c", "g.b>end", "g.c>end", "g.b>last", "g.c>last"}


def test_groups_join_groups_lists_and_results() -> None:
    with DAG("d") as dag:
        with TaskGroup("g") as g:
            empty("a")
        with TaskGroup("h") as h:
            empty("a")

        @task
        def fetch() -> int:
            return 1

        g << fetch()
        [empty("x"), empty("y")] >> g
        chain(g, h)

    assert edges(dag) == {"fetch>g.a", "x>g.a", "y>g.a", "g.a>h.a"}


def test_chain_pairs_groups_of_two_lists() -> None:
    with DAG("d") as dag:
        with TaskGroup("g") as g:
            empty("a")
            empty("b")
        chain([g, empty("x")], [empty("y"), empty("z")])

    assert edges(dag) == {"g.a>y", "g.b>y", "x>z"}


def test_chain_linear_joins_every_task_of_neighboring_steps() -> None:
    with DAG("d") as dag:
        chain_linear(empty("a"), [empty("b"), empty("c")], [], [empty("d"), empty("e")])
        with pytest.raises(DagError, match="at least two steps"):
            chain_linear(empty("f"), [])

    assert edges(dag) == {"a>b", "a>c", "b>d", "b>e", "c>d", "c>e"}


def test_labels_stand_in_edges() -> None:
    with DAG("d") as dag:
        a, b, c, d = (empty(name) for name in "abcd")
        a >> Label("yes") >> [b, c]
        d << Label("back") << b
        chain([b, c], Label("on"), d)

    assert edges(dag) == {"a>b", "a>c", "b>d", "c>d"}
    assert dag.edge_labels == {("a", "b"): "yes", ("a", "c"): "yes", ("b", "d"): "on", ("c", "d"): "on"}


def test_default_args_come_from_the_nearest() -> None:
    with DAG("d", default_args={"retries": 1, "queue": "dag", "pool": "dag"}):
        with TaskGroup("outer", default_args={"retries": 2, "queue": "outer"}):
            with TaskGroup("inner", default_args={"retries": 3}):
                a = empty("a", default_args={"retries": 4})
                b = BashOperator(task_id="b", bash_command="true")
                c = BashOperator.partial(task_id="c").expand(bash_command=["true"])

    assert [(one.retries, one.queue, one.pool) for one in (a, b, c)] == [
        (4, "outer", "dag"),
        (3, "outer", "dag"),
        (3, "outer", "dag"),
    ]


def test_a_decorated_function_makes_a_group_and_gives_its_result_or_the_group() -> None:
    with DAG("d") as dag:

        @task
        def add(x: int, y: int = 1) -> int:
            return x + y

        @task_group
        def twice(x: Any) -> Any:
            """Adds twice."""
            return add(add(x))

        @task_group(group_id="silent", tooltip="says nothing")
        def quiet() -> None:
            empty("a")

        end = empty("end")
        twice(twice(1)) >> end
        empty("start") >> quiet() >> end
        twice.override(group_id="third")(3)

    assert edges(dag) == {
        "twice.add>twice.add__1",
        "twice.add__1>twice__1.add",
        "twice__1.add>twice__1.add__1",
        "twice__1.add__1>end",
        "start>silent.a",
        "silent.a>end",
        "third.add>third.add__1",
    }
    assert {spec["group_id"]: spec["tooltip"] for spec in (group.spec for group in dag.task_group_dict.values())} == {
        "twice": "Adds twice.",
        "twice__1": "Adds twice.",
        "silent": "says nothing",
        "third": "Adds twice.",
    }


def test_a_group_belongs_to_the_dag_it_is_given_and_to_no_other() -> None:
    first = DAG("first")
    with TaskGroup("g", dag=first):
        empty("a")
    with DAG("second") as second:
        empty("b")
        with TaskGroup("h"):
            with DAG("third") as third:
                empty("c")
        empty("d", task_group=second.task_group_dict["h"])

    assert (first.task_ids, second.task_ids, third.task_ids) == (["g.a"], ["b", "h.d"], ["c"])


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda: TaskGroup("a.b"), "200 characters: letters, digits"),
        (lambda: TaskGroup("g", prefix_group_id=1), "prefix_group_id must be True or False"),
        (lambda: [TaskGroup("g"), TaskGroup("g")], "another task or task group 'g'"),
        (lambda: [TaskGroup("g"), empty("g")], "a task group has the same ID"),
        (lambda: [empty("g"), TaskGroup("g")], "another task or task group 'g'"),
        (lambda: task_group(print), "decorates a function"),
        (lambda: task_group(3)(lambda: None)(), "200 characters: letters, digits"),
        (lambda: task_group(lambda x: None)(), "missing a required argument: 'x'"),
        (lambda: Label(""), "the text of the label"),
        (lambda: empty("a") >> Label("x") >> Label("y"), "next to another label"),
    ],
)
def test_mistakes(write: Callable[[], Any], words: str) -> None:
    with DAG("d"), pytest.raises(DagError, match=words):
        write()


def test_a_group_outside_of_a_dag_is_refused() -> None:
    with pytest.raises(DagError, match="is in no DAG"):
        TaskGroup("g")


def test_a_group_of_a_taken_id_names_the_line() -> None:
    with DAG("d"):
        TaskGroup("g")
        with pytest.raises(DuplicateTaskError) as caught:
            TaskGroup("g")
    assert caught.value.line is not None
    assert caught.value.file == __file__
