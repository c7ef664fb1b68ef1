"""Mapped tasks and groups with a real worker, and the walk of one task, traced: it stays short."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from click.testing import CliRunner
from support.scenario import pool_process

from scheduler.cli import paceline
from scheduler.dagfiles import load
from workers.task import execute

MANY = """
with DAG("d"):
    @task
    def numbers(): return [1, 2, 3]

    @task
    def names(): return {"a": 1, "b": 2}

    @task
    def twice(x):
        from paceline.exceptions import SkipTask
        if x == 2: raise SkipTask("not two")
        return x * 2

    @task
    def pair(x, y): return [x, y]

    @task(trigger_rule="none_failed")
    def collect(values): return list(values)

    @task
    def show(entry): return entry

    @task_group
    def steps(x):
        @task
        def first(x): return x + 10
        @task
        def second(y, ti): return [y, ti.xcom_pull("steps.first"), ti.map_index]
        return second(first(x))

    found = numbers()
    collect(twice.expand(x=found))
    pair.expand(x=found, y=["u", "v"])
    show.override(task_id="of_dict").expand(entry=names())
    show.override(task_id="zipped").expand(entry=found.zip(names().map(lambda kv: kv[0]), fillvalue="none"))
    show.override(task_id="joined").expand(entry=found.map(lambda n: -n).concat(names()))
    pair.override(task_id="kwargs").partial(x=0).expand_kwargs(found.map(lambda n: {"y": n}))
    collect.override(task_id="of_group")(steps.expand(x=found))
    inner = pair.override(task_id="inner").partial(y=1).expand(x=[7, 8])
    pair.override(task_id="chained").partial(y="{{ run_id }}").expand(x=inner)
    BashOperator.partial(task_id="bash").expand(bash_command=["echo {{ task.task_id }}", "echo two"])
    show.override(task_id="nothing").expand(entry=[])
"""


@pytest.fixture(scope="module")
def worker_options() -> dict[str, Any]:
    return {"concurrency": 2}


def values(bench: Any, task_id: str) -> list[Any]:
    """The XComs of the instances of a task, in map order."""
    statement = (
        "select x.value from task_instance t join xcom x on x.task_instance_id = t.id"
        " where t.task_id = %s and x.key = 'return_value' order by t.map_index"
    )
    return [row[0] for row in bench.scenario.rows(statement, task_id)]


def states(bench: Any, task_id: str) -> dict[int, str]:
    return dict(bench.scenario.rows("select map_index, state from task_instance where task_id = %s", task_id))


def test_each_instance_gets_its_values(shared_bench: Any) -> None:
    run = shared_bench.run(MANY)

    assert shared_bench.scenario.run_state(run) == "success", shared_bench.output
    assert states(shared_bench, "twice") == {0: "success", 1: "skipped", 2: "success"}
    assert values(shared_bench, "collect") == [[2, 6]]
    assert values(shared_bench, "pair") == [[1, "u"], [1, "v"], [2, "u"], [2, "v"], [3, "u"], [3, "v"]]
    assert values(shared_bench, "of_dict") == [["a", 1], ["b", 2]]
    assert values(shared_bench, "zipped") == [[1, "a"], [2, "b"], [3, "none"]]
    assert values(shared_bench, "joined") == [-1, -2, -3, ["a", 1], ["b", 2]]
    assert values(shared_bench, "kwargs") == [[0, 1], [0, 2], [0, 3]]
    assert values(shared_bench, "steps.second") == [[11, 11, 0], [12, 12, 1], [13, 13, 2]]
    assert values(shared_bench, "of_group") == [[[11, 11, 0], [12, 12, 1], [13, 13, 2]]]
    assert values(shared_bench, "chained") == [[[7, 1], "r1"], [[8, 1], "r1"]]
    assert values(shared_bench, "bash") == ["bash", "two"]
    assert states(shared_bench, "nothing") == {-1: "skipped"}


def test_values_of_other_tasks_are_no_templates_and_map_may_skip(shared_bench: Any) -> None:
    run = shared_bench.run("""
        from paceline.exceptions import SkipTask
        def odd(n):
            if n % 2 == 0: raise SkipTask("even")
            return str(n) + " {{ ds }}"
        with DAG("d"):
            @task
            def numbers(): return [1, 2]
            @task
            def show(text): return text
            show.expand(text=numbers().map(odd))
    """)

    assert shared_bench.scenario.run_state(run) == "success"
    assert states(shared_bench, "show") == {0: "success", 1: "skipped"}
    assert values(shared_bench, "show") == ["1 {{ ds }}"]


def test_a_task_with_a_result_that_cannot_be_mapped_over_fails(bench: Any) -> None:
    bench.worker(PACELINE_CORE_MAX_MAP_LENGTH="2")

    bench.run("""
        with DAG("d"):
            @task(retries=3)
            def number(): return 3
            @task
            def nothing(): pass
            @task
            def long(): return [1, 2, 3]
            @task
            def by_hand(ti): ti.xcom_push("rows", "text")
            @task
            def show(x): pass
            for source in (number(), nothing(), long(), by_hand()["rows"]):
                show.expand(x=source)
            show.expand(x=[3, 4])
    """)

    reasons = {name: bench.column(name, "reason") for name in ("number", "nothing", "long", "by_hand")}
    assert "is of type int, but task 'show' is mapped over it; return a list or a dict" in reasons["number"]
    assert bench.column("number", "try_number") == 1
    assert "is None, but task 'show__1'" in reasons["nothing"]
    assert "has 3 entries, and task 'show__2' is mapped over it; 2 are allowed (core.max_map_length)" in reasons["long"]
    assert "value of XCom 'rows' is of type str" in reasons["by_hand"]
    assert states(bench, "show") == {-1: "upstream_failed"}
    assert states(bench, "show__4") == {0: "success", 1: "success"}


def test_the_label_of_an_instance_comes_from_its_context(shared_bench: Any) -> None:
    run = shared_bench.run("""
        with DAG("d"):
            @task(map_index_template="{{ name }} of {{ task.op_kwargs['n'] }}")
            def label(n):
                get_current_context()["name"] = f"item {n}"
                if n == 2:
                    raise ValueError("two")
            @task(map_index_template="{{ nowhere }}")
            def broken(n): pass
            label.expand(n=[1, 2])
            broken.expand(n=[1])
    """)

    assert shared_bench.scenario.run_state(run) == "failed"
    rows = shared_bench.scenario.rows("select task_id, map_label, state from task_instance order by task_id desc, map_index")
    assert rows == [("label", "item 1 of 1", "success"), ("label", "item 2 of 2", "failed"), ("broken", None, "failed")]
    assert "field map_index_template: 'nowhere' is undefined" in str(shared_bench.column("broken", "reason"))
    env = {"PACELINE_DATABASE_URL": shared_bench.settings.database_url, "PACELINE_HOME": str(shared_bench.settings.home)}
    listed = json.loads(CliRunner().invoke(paceline, ["tasks", "list", "d", "r1", "--json"], env=env).stdout)
    assert {one["map_label"] for one in listed} == {"item 1 of 1", "item 2 of 2", None}


def test_setups_teardowns_and_groups_end_as_configured(shared_bench: Any) -> None:
    run = shared_bench.run("""
        with DAG("d"):
            @setup
            def up(): return "cluster"
            @teardown
            def down(name): assert name == "cluster"
            @task
            def work(): raise ValueError("broken")
            with TaskGroup("g") as group:
                name = up()
                with name >> down(name):
                    work()
            group >> EmptyOperator(task_id="after")
    """)

    assert shared_bench.scenario.states(run) == {
        "g.up": "success",
        "g.work": "failed",
        "g.down": "success",
        "after": "upstream_failed",
    }
    assert shared_bench.scenario.run_state(run) == "failed"


def test_an_instance_of_a_mapped_task_has_the_number_of_instances(bench: Any) -> None:
    bench.worker()

    bench.run("""
        @dag(schedule=None)
        def d():
            BashOperator.partial(task_id="m", do_xcom_push=True).expand(
                bash_command=["echo {{ expanded_ti_count }} {{ map_index }}", "echo {{ expanded_ti_count }}", "true"]
            )
            BashOperator(task_id="plain", bash_command="echo {{ expanded_ti_count }}")
        d()
    """)

    values = bench.scenario.rows(
        "select t.task_id, x.value from task_instance t join xcom x on x.task_instance_id = t.id order by t.task_id, t.map_index"
    )
    assert values == [("m", "3 0"), ("m", "3"), ("m", ""), ("plain", "None")]


ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
#: More than these would be more than a newcomer can hold in mind.
MOST_FILES, MOST_STOPS = 16, 12
#: No stops of their own: they are part of the function around them.
PARTS = re.compile(r"<(listcomp|dictcomp|setcomp|genexpr|lambda)>$")
#: Sends the message of the next task, as in the text below the table of the page.
PUBLISHER = ["scheduler/messaging/publisher.py", "scheduler/messaging/brokers.py"]
CHAIN = """
with DAG("d", schedule=None):
    task(task_id="traced")(lambda: 1)() >> task(task_id="after")(lambda: 1)()
"""


@contextmanager
def trace() -> Iterator[list[CodeType]]:
    """The functions of Paceline that are entered inside, in order."""
    entered: list[CodeType] = []
    ours = tuple(f"{ROOT / package}/" for package in ("paceline", "scheduler", "workers"))

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            entered.append(frame.f_code)

    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)


def walk_of_the_page() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## The walk of one task\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/.]+)` \|", section, re.MULTILINE)


def one_task(bench: Any, *, in_place: bool) -> list[CodeType]:
    """A pool process runs the first task of a second run, so that everything is loaded: from its message to the next task.

    The next task runs in the same process, or its message is sent.
    """
    load.preload()
    scenario = bench.scenario
    bench.dag(CHAIN)
    # However slow the machine is.
    process = pool_process(scenario, in_place_seconds=60 if in_place else 0)
    execute.executes_with(process.run, process.must_be_replaced)
    for number in range(2):
        run = scenario.trigger("d", run_id=f"r{number}")
        scenario.turn()
        (message,) = scenario.messages()
        with trace() as entered:
            failed, _, _ = execute.run(*message)
        assert not failed
        assert scenario.states(run) == {"traced": "success", "after": "success" if in_place else "queued"}
        assert len(scenario.messages()) == (0 if in_place else 1)
    starts = [place for place, code in enumerate(entered) if code.co_qualname == "TryRunner._run_claimed"]
    assert len(starts) == (2 if in_place else 1)
    return entered[: starts[1]] if in_place else entered


@pytest.mark.parametrize(
    ("in_place", "at_the_end"), [(True, []), (False, PUBLISHER)], ids=["the next task runs in place", "its message is sent"]
)
def test_one_task_walks_through_the_files_that_the_page_lists(bench: Any, in_place: bool, at_the_end: list[str]) -> None:
    entered = one_task(bench, in_place=in_place)

    files = list(dict.fromkeys(str(Path(code.co_filename).relative_to(ROOT)) for code in entered))
    assert files == walk_of_the_page() + at_the_end
    assert len(files) - len(at_the_end) <= MOST_FILES

    names = [code.co_qualname for code in entered if not PARTS.search(code.co_qualname)]
    start = names.index("Follower.report")
    stops = list(dict.fromkeys(names[start : names.index("WorkerConnection.run", names.index("HotPath.report")) + 1]))
    assert len(stops) <= MOST_STOPS, stops
