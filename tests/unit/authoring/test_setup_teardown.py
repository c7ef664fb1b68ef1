"""Setup and teardown tasks: how they are declared, and to which tasks they belong."""

from collections.abc import Callable
from typing import Any

import pytest
from support.authored import edges, empty

from paceline import DAG, TaskGroup, chain, setup, task, task_group, teardown
from paceline.authoring.setup_teardown import setup_scopes
from paceline.exceptions import DagError, DuplicateTaskError
from scheduler.serialized.authored import from_dag
from scheduler.settings import Core, Scheduler


def setups(dag: DAG) -> dict[str, str]:
    return {name: " ".join(one.setups) for name, one in setup_scopes(dag).items() if one.setups}


def test_decorators_mark_their_tasks() -> None:
    with DAG("d") as dag:

        @setup
        def start() -> str:
            return "cluster"

        @teardown(on_failure_fail_dagrun=True)
        def stop(cluster: str) -> None: ...

        @teardown
        @task(retries=2)
        def forget() -> None: ...

        @task
        def work(cluster: str) -> None: ...

        cluster = start()
        work(cluster) >> [stop(cluster), forget()]

    tasks = dag.task_dict
    assert [(one.is_setup, one.is_teardown, one.on_failure_fail_dagrun) for one in tasks.values()] == [
        (True, False, False),
        (False, False, False),
        (False, True, True),
        (False, True, False),
    ]
    assert tasks["forget"].retries == 2
    assert {name: one.trigger_rule for name, one in tasks.items() if one.is_teardown} == {
        "stop": "all_done_setup_success",
        "forget": "all_done_setup_success",
    }
    data = {one.task_id: one for one in from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).tasks}
    assert (data["stop"].setups, data["stop"].scope) == (("start",), ("work",))
    assert data["stop"].on_failure_fail_dagrun
    assert data["start"].is_setup


def test_as_teardown_joins_its_setups() -> None:
    with DAG("d") as dag:
        a, b, work = empty("a"), empty("b"), empty("work")
        [a, b] >> work >> empty("down").as_teardown(setups=[a, b])

    assert edges(dag) == {"a>work", "b>work", "work>down", "a>down", "b>down"}
    assert dag.task_dict["a"].is_setup
    assert setups(dag) == {"work": "a b", "down": "a b"}


def test_a_block_puts_its_tasks_between() -> None:
    with DAG("d") as dag:
        outside = empty("outside")
        with empty("up").as_setup() >> empty("down").as_teardown() as block:
            first, last = empty("first"), empty("last")
            first >> last
            empty("alone")
            block.add_task(outside)
        empty("after")

    assert edges(dag) == {
        "up>down", "up>first", "first>last", "last>down", "up>alone", "alone>down", "up>outside", "outside>down",
    }  # fmt: skip


def test_blocks_nest() -> None:
    with DAG("d") as dag:

        @setup
        def up() -> None: ...

        @teardown
        def down() -> None: ...

        with up() >> down():
            empty("a")
            with up.override(task_id="up2")() >> down.override(task_id="down2")():
                empty("b")

    assert edges(dag) == {"up>down", "up>a", "a>down", "up>up2", "up2>down2", "up2>b", "b>down2", "down2>down"}
    assert setups(dag) == {"a": "up", "b": "up up2", "up2": "up", "down": "up", "down2": "up2"}
    assert setup_scopes(dag)["down"].between == ("a", "b", "down2", "up2")
    assert setup_scopes(dag)["down2"].between == ("b",)


def test_a_block_of_a_teardown_alone_has_its_setups() -> None:
    with DAG("d") as dag:
        down = empty("down").as_teardown(setups=empty("up"))
        with down:
            empty("work")

    assert edges(dag) == {"up>down", "up>work", "work>down"}


def test_an_error_in_a_block_leaves_nothing_open() -> None:
    with DAG("d") as dag:
        both = empty("up").as_setup() >> empty("down").as_teardown()
        with pytest.raises(DuplicateTaskError), both:
            [empty("inside"), empty("inside")]
        with empty("up2").as_setup():
            empty("work")

    assert edges(dag) == {"up>down", "up2>work"}


def test_indirect_setups_count_while_their_teardown_is_to_come() -> None:
    with DAG("d") as dag:
        up, forever = empty("up"), empty("forever").as_setup()
        a, b, after = empty("a"), empty("b"), empty("after")
        down = empty("down").as_teardown(setups=up)
        [up, forever] >> a >> b >> down
        b >> after

    # `after` comes after the work of `up`, but no teardown of it lies below.
    assert setups(dag) == {"a": "forever up", "b": "forever up", "after": "forever", "down": "up"}
    assert setup_scopes(dag)["down"].between == ("a", "b")


def test_tasks_downstream_of_a_group_do_not_wait_for_its_teardowns() -> None:
    with DAG("d") as dag:
        with TaskGroup("g") as group:
            up, work, down = empty("up").as_setup(), empty("work"), empty("down").as_teardown()
            up >> work >> down
            up >> down
        group >> empty("next")
        with TaskGroup("bare") as bare:
            empty("up").as_setup() >> empty("down").as_teardown()
        bare >> empty("last")

    assert edges(dag) == {
        "g.up>g.work", "g.work>g.down", "g.up>g.down", "g.work>next", "bare.up>bare.down", "bare.up>last",
    }  # fmt: skip


def test_the_leaves_of_a_dag_without_setups_are_not_searched() -> None:
    with DAG("d") as dag:
        empty("a") >> empty("b")

    assert {scope.setups for scope in setup_scopes(dag).values()} == {()}


def test_scopes_of_a_long_chain() -> None:
    with DAG("d") as dag:
        up = empty("up").as_setup()
        chain(up, *(empty(f"t{number}") for number in range(3000)), empty("down").as_teardown(setups=up))

    scopes = setup_scopes(dag)
    assert len(scopes["down"].between) == 3000
    assert scopes["t2999"].setups == ("up",)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda: empty("t", trigger_rule="all_done").as_teardown(), "a teardown has its own trigger rule"),
        (lambda: empty("t").as_teardown().as_setup(), "a teardown cannot be a setup too"),
        (lambda: empty("t").as_setup().as_teardown(), "a setup cannot be a teardown too"),
        (lambda: empty("t").as_teardown(on_failure_fail_dagrun=1), "must be True or False"),
        (lambda: empty("t").__enter__(), "only a setup or a teardown can open"),
        (lambda: setup(task_group(lambda: None)), "@setup decorates a function"),
        (lambda: teardown(3), "@teardown decorates a function"),
    ],
)
def test_mistakes(write: Callable[[], Any], words: str) -> None:
    with DAG("d"), pytest.raises(DagError, match=words):
        write()
