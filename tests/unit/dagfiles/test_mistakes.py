"""Mistakes that Python or Airflow leave undetected: each is one message with the line and the fix."""

import re
import sys
import textwrap
from pathlib import Path

import pytest

from scheduler.dagfiles.load import MODULE_PREFIX, MOST_S, load
from scheduler.dagfiles.problem import of_exception
from scheduler.store.dags.import_errors import Problem

HEAD = "from paceline import *\nfrom paceline.operators import *\n"


def problem(folder: Path, source: str, *, head: str = HEAD) -> Problem | None:
    """The problem of a file. Lines count from the first one after the head."""
    path = folder / "d.py"
    path.write_text(head + textwrap.dedent(source).lstrip("\n"))
    try:
        load(folder, "d.py", all_errors=True)
    except Exception as error:
        found = of_exception(error, path, memory_limit_mb=100)
        return found if found.line is None else found.model_copy(update={"line": found.line - head.count("\n")})
    return None


def mistake(folder: Path, source: str, *, head: str = HEAD) -> Problem:
    """The problem of a file that has one."""
    found = problem(folder, source, head=head)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("@task\ndef f(): ...\nf()", 3, "Task 'f' is in no DAG"),
        ("with DAG('d'):\n    x = EmptyOperator(task_id='t').output\n    while not x: pass", 3, "write `is not None` to ask"),
        ("with DAG('d'):\n    x = EmptyOperator(task_id='t').output or 3", 2, "cannot test it; decide"),
        ("def f(): ...\ndef g(): ...\nf >> g", 3, ">> joins tasks, not functions; decorate each function with @task, and call it"),
        (
            "with DAG('d'):\n    @task\n    def f(): ...\n    f >> f()",
            4,
            "f is a function; a call of it creates the task: write f()",
        ),
        ("with DAG('d'):\n    BashOperator.partial(task_id='t').expand(['ls'])", 2, "write expand(bash_command=...)"),
        (
            "with DAG('d'):\n    @task_group\n    def g(n): ...\n    g.expand([1])",
            4,
            "Task group 'g': expand() takes each list by the name of its argument: write expand(n=...)",
        ),
        (
            "with DAG('d'):\n    @task\n    def f(): ...\n    f.loop(until=lambda n: n > 3)",
            4,
            "f.loop(): only task groups run in loops; put the task into a @task_group, and call .loop(",
        ),
        ("with DAG('d'):\n    BashOperator.partial(task_id='t').loop(bash_command='ls')", 2, "only task groups run in loops"),
        ("with DAG('d'):\n    BashOperator(task_id='t', bash_command='ls', max_iterations=3)", 2, "only task groups run in loops"),
        ("with DAG('d'):\n    if task(print)(1) == 'x': pass", 2, "cannot compare it with 'x'; decide in a @task.branch"),
        ("with DAG('d'):\n    task(print)(1) + 1", 2, "the DAG file cannot compute with it (unsupported operand type(s) for +"),
        ("with DAG('d'):\n    len(task(print)(1))", 2, "pass it to a @task function, and compute there."),
        ("with DAG('d'):\n    task(print)(1) > 3", 2, "cannot compute with it ('>' not supported"),
        ("DAG()", 1, 'A DAG needs an ID: write DAG("my_dag", ...).'),
        ("DAG('d', 'Counts orders')", 1, "Only the ID of a DAG is given by position"),
        ("DAG('d', schedule_interval='@daily')", 1, "'schedule_interval' does not exist any more: write schedule"),
    ],
)
def test_a_mistake_is_one_message_with_its_line(tmp_path: Path, source: str, line: int, words: str) -> None:
    found = mistake(tmp_path, source)

    assert words in found.message
    assert found.line == line


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "from airflow.sdk import dag, AssetAccessControl, EmptyOperator",
            "write `from paceline import dag; from paceline.operators import EmptyOperator`. Paceline has no AssetAccessControl:"
            " Paceline has no teams; the roles of web accounts limit who may change assets.",
        ),
        (
            "from airflow.providers.standard.operators.empty import DummyOperator",
            "Airflow is not installed; write `from paceline.operators import EmptyOperator`.",
        ),
        ("from airflow.exceptions import AirflowSkipException", "write `from paceline.exceptions import AirflowSkipException`"),
        (
            "from airflow.providers.google.x import Y",
            "Airflow is not installed. Paceline has no counterpart of airflow.providers.google.x: install its package",
        ),
        ("import airflow", "Airflow is not installed; write `import paceline`."),
        ("from paceline import DAGG", "paceline has no 'DAGG'; did you mean 'DAG'?"),
        (
            "from paceline import BashOperator",
            "paceline has no 'BashOperator'; write `from paceline.operators import BashOperator`.",
        ),
        (
            "from paceline.operators import EmptyOperater",
            "paceline.operators has no 'EmptyOperater'; did you mean 'EmptyOperator'?",
        ),
        ("from paceline.triggers import FileTriger", "paceline.triggers has no 'FileTriger'; did you mean 'FileTrigger'?"),
        (
            "from paceline import timetables, exceptions, Nope",
            "paceline has no 'Nope'; the reference of authoring in the documentation lists all names.",
        ),
        (
            "import x\nfrom paceline.operator import Y",
            "There is no module paceline.operator; did you mean 'paceline.operators'?",
        ),
    ],
)
def test_an_import_that_fails_names_the_import_to_write(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "x.py").write_text("")
    found = mistake(tmp_path, source, head="")

    assert words in found.message
    assert found.line == 1 + source.count("\n")


def test_all_imports_that_do_not_work_are_named(tmp_path: Path) -> None:
    found = mistake(tmp_path, "import os\nfrom airflow.sdk import DAG\nfrom paceline import DAGG\n", head="")

    assert found.message == (
        "Correct these imports:\nline 2: Airflow is not installed; write `from paceline import DAG`.\n"
        "line 3: paceline has no 'DAGG'; did you mean 'DAG'?"
    )


#: The mistakes of authors who come from Airflow, with the line and the whole message of each. Airflow 3.3.2 loads the first three,
#: and their tasks never run.
EXACT = [
    (
        "with DAG('d'): ...\nEmptyOperator(task_id='lost')",
        2,
        "Task 'lost' is in no DAG, so it never runs; create it inside `with DAG(...)` or a @dag function.",
    ),
    ("@dag\ndef never(): ...", 1, "The @dag function 'never' is never called, so it creates no DAG; add never()."),
    (
        "with DAG('d'):\n    if task(print)(1): ...",
        2,
        "The result of 'print' is known only after it has run, so the DAG file cannot test it; decide in a @task.branch or"
        " @task.short_circuit, or write `is not None` to ask whether there is a task.",
    ),
    (
        "with DAG('d'):\n    @task\n    def f(n): ...\n    f.expand([1])",
        4,
        "Task 'f' of DAG 'd': expand() takes each list by the name of its argument: write expand(n=...).",
    ),
    (
        "with DAG('d'):\n    a, b = (EmptyOperator(task_id=name) for name in 'ab')\n    [a] >> [b]",
        3,
        "Python cannot join two lists with >>. Write cross_downstream(first, second) for an edge from each task to each, or"
        " chain(first, second) for pairs; both are in paceline.",
    ),
    ("from airflow import DAG", 1, "Airflow is not installed; write `from paceline import DAG`."),
    (
        "from paceline import Foo",
        1,
        "paceline has no 'Foo'; the reference of authoring in the documentation lists all names.",
    ),
    # Not the nearest of our names: those of operators have the same ending.
    (
        "from paceline.operators import KubernetesPodOperator",
        1,
        "paceline.operators has no 'KubernetesPodOperator'; install the provider package of the service next to Paceline with"
        " `pip install --no-deps`, or use its Python client in a @task function.",
    ),
    (
        "from paceline.operators import SubDagOperator",
        1,
        "Paceline has no SubDagOperator: use TaskGroup.",
    ),
    (
        "with DAG('d'):\n    PythonOperator(task_id='t', python_callable=print, provide_context=True)",
        2,
        "Task 't' of DAG 'd': the argument 'provide_context' does not exist any more: the function always gets the context"
        " variables that it has parameters for; remove it.",
    ),
    (
        "with DAG('d'):\n    FileSensor(task_id='t', filepath='/x', poke_intervall=3)",
        2,
        "Task 't' of DAG 'd': unknown argument 'poke_intervall'; did you mean 'poke_interval'?",
    ),
]


@pytest.mark.parametrize(("source", "line", "message"), EXACT)
def test_a_mistake_has_this_line_and_this_message(tmp_path: Path, source: str, line: int, message: str) -> None:
    found = mistake(tmp_path, source, head=HEAD + "from paceline.sensors import *\n")

    assert (found.line, found.message) == (line, message)


def test_a_file_names_its_mistakes_of_different_kinds(tmp_path: Path) -> None:
    source = """
        with DAG("d"):
            @task
            def count(n): return n
            if count(1):
                BashOperator(task_id="b", bash_comand="ls")
            count.expand([1]) >> EmptyOperator(task_id="e")
            if count(2) == 3: ...
            EmptyOperator(task_id="p", provide_context=True)
        [1] >> [2]
        """
    found = mistake(tmp_path, source)

    first, *each = found.message.splitlines()
    assert first == "The file has 6 errors:"
    assert [one.split(": ")[0] for one in each] == [f"line {line + HEAD.count(chr(10))}" for line in (4, 5, 6, 7, 8, 9)]


def test_a_loop_that_tests_a_result_ends_with_its_one_error(tmp_path: Path) -> None:
    found = mistake(tmp_path, "with DAG('d'):\n    while task(print)(1): ...")

    assert found.line == 2 and found.message.startswith("The result of 'print' is known only after it has run")


THREE = """
with DAG("d"):
    a = BashOperator(task_id="a", bash_comand="ls")
    b = PythonOperator(task_id="b", python_callable=3)
    @task(retrys=1)
    def c(n): return n
    a >> [b, c(a.output)] >> EmptyOperator(task_id="e")
    c.override(retries=0, retrys=None)(n=c.function(1))
"""


def test_a_file_with_several_errors_names_them_all(tmp_path: Path) -> None:
    found = mistake(tmp_path, THREE + "[1] >> [2]\n")

    first, *each = found.message.splitlines()
    assert (first, found.line) == ("The file has 5 errors:", 2)
    starts = (
        "line 4: Task 'a' of DAG 'd': unknown argument 'bash_comand'; did you mean 'bash_command'?",
        "line 5: Task 'b' of DAG 'd': python_callable must be a function",
        "line 8: Task 'c' of DAG 'd': unknown argument 'retrys'; did you mean 'retries'?",
        "line 9: Task 'c__1' of DAG 'd': unknown argument 'retrys'",
        "line 10: Python cannot join two lists with >>.",
    )
    assert all(one.startswith(start) for one, start in zip(each, starts, strict=True))
    assert "a = BashOperator(" in found.traceback and "a >> [b" in found.traceback


def test_an_error_of_python_that_may_follow_from_other_errors_is_not_named(tmp_path: Path) -> None:
    found = mistake(tmp_path, THREE + "undefined + 1\n")

    assert found.message.startswith("The file has 4 errors:") and "undefined" not in found.message


def test_errors_that_show_at_the_end_are_named_together(tmp_path: Path) -> None:
    found = mistake(
        tmp_path,
        """
        with DAG("circle"):
            a, b = EmptyOperator(task_id="a"), EmptyOperator(task_id="b")
            a >> b >> a
        with DAG("part"):
            BashOperator.partial(task_id="p")
        EmptyOperator(task_id="lost")
        @dag
        def never(): ...
        """,
    )

    first, *each = found.message.splitlines()
    assert first == "The file has 4 errors:"
    for one, words in zip(each, ("has a cycle", "partial() defines no task", "'lost' is in no DAG", "never called"), strict=True):
        assert words in one


def test_an_error_that_the_file_may_catch_is_raised_at_once(tmp_path: Path) -> None:
    source = """
        def made(**options):
            return BashOperator(task_id="t", **options)
        with DAG("d"):
            try:
                t = made(bash_comand="ls")
            except Exception:
                t = made(bash_command="ls")
        """

    assert problem(tmp_path, source) is None


def test_a_single_error_is_reported_unchanged(tmp_path: Path) -> None:
    found = mistake(tmp_path, "with DAG('d'):\n    t = EmptyOperator(task_id='t', x=1)\n    t.never.heard()")

    assert (found.line, found.message) == (2, "Task 't' of DAG 'd': unknown argument 'x'.")
    assert "t = EmptyOperator(task_id='t', x=1)" in found.traceback


@pytest.mark.parametrize(
    "source",
    [
        # A variable that starts as None is the usual way to chain tasks in a loop.
        """
        with DAG("d"):
            @task
            def f(n): ...
            before = None
            for n in range(3):
                now = f.override(task_id=f"t{n}")(n)
                if before is not None: before >> now
                before = now
        """,
        """
        with DAG("d"):
            x = EmptyOperator(task_id="x")
            if x: x >> EmptyOperator(task_id="y")
        """,
        # A task may join its DAG later, by an edge or by hand.
        """
        first, second, third = (EmptyOperator(task_id=name) for name in "abc")
        with DAG("d") as d:
            first >> EmptyOperator(task_id="inside")
        first >> second
        d.add_task(third)
        """,
        # A function that something mentions, or that needs arguments, is called elsewhere.
        """
        @dag
        def maker(name): EmptyOperator(task_id="t")
        @dag
        def sometimes(): EmptyOperator(task_id="t")
        if False: sometimes()
        @dag
        def passed(): EmptyOperator(task_id="t")
        FACTORIES = [passed]
        """,
    ],
)
def test_valid_code_is_accepted(tmp_path: Path, source: str) -> None:
    assert problem(tmp_path, source) is None


#: Files whose first error ends them, with the lines and words of all errors.
ENDED = [
    (
        """
        with DAG("d"):
            a = EmptyOperator(task_id="a", retires=3)
            [a] >> [a]
            BashOperator(task_id="b", bash_comand="ls")
            [a] >> None
            a.set_upstream("b")
            @task.stub
            def other(): ...
            other()
        EmptyOperator(task_id="lost")
        """,
        {
            2: "retires",
            3: "cannot join two lists",
            4: "bash_comand",
            5: "on the other a NoneType",
            6: "'b'",
            7: "stub",
            10: "'lost'",
        },
    ),
    (
        """
        with DAG("d"):
            @task_group
            def g(x):
                EmptyOperator(task_id="e")
            g.expand(y=[1])
            EmptyOperator(task_id="b", bad=1)
        """,
        {5: "no argument 'y'", 6: "'bad'"},
    ),
    (
        """
        @dag(schedule="@dayly")
        def first():
            EmptyOperator(task_id="t") >> 3
        first()
        with DAG("second", max_active_runs=-1):
            EmptyOperator(task_id="t", pool_slots=0)
        """,
        {1: "@dayly", 3: "not 3 (int)", 5: "max_active_runs", 6: "pool_slots"},
    ),
]


@pytest.mark.parametrize(("source", "expected"), ENDED)
def test_errors_after_an_error_that_ends_the_file_are_named_too(tmp_path: Path, source: str, expected: dict[int, str]) -> None:
    found = mistake(tmp_path, source)

    shown = {int(line) - HEAD.count("\n"): text for line, text in re.findall(r"^line (\d+): (.*)$", found.message, re.MULTILINE)}
    assert shown.keys() == expected.keys(), found.message
    assert all(words in shown[line] for line, words in expected.items()), found.message


def test_all_wrong_arguments_of_a_call_are_named(tmp_path: Path) -> None:
    found = mistake(tmp_path, "with DAG('d', catchup=3, foo=1):\n    EmptyOperator(task_id='t', retries='x', pool_slots=0)")

    assert found.message.startswith("The file has 4 errors:")
    assert all(name in found.message for name in ("catchup", "foo", "retries", "pool_slots"))


def test_the_same_error_of_many_tasks_is_one_line(tmp_path: Path) -> None:
    found = mistake(
        tmp_path,
        """
        with DAG("d"):
            for number in range(20):
                EmptyOperator(task_id=f"t{number}", pool_slots=0)
            EmptyOperator(task_id="u", pool_slots=0)
        """,
    )

    first, many, last = found.message.splitlines()
    assert first == "The file has 21 errors:" and "'t0'" in many and many.endswith("(and 19 more like this)") and "'u'" in last


@pytest.mark.parametrize("takes_s", [0, MOST_S])
def test_a_file_that_takes_long_is_read_once(tmp_path: Path, takes_s: float) -> None:
    counted = tmp_path / "counted"
    found = mistake(
        tmp_path,
        f"""
        import time
        with open({str(counted)!r}, "a") as file:
            file.write("x")
        time.sleep({takes_s})
        with DAG("d"):
            [1] >> [2]
            EmptyOperator(task_id="t", bad=1)
        """,
    )

    assert ("bad" in found.message) == (takes_s == 0)
    assert (counted.read_text() == "x") == (takes_s > 0)


def test_a_file_that_is_run_again_leaves_no_module(tmp_path: Path) -> None:
    source = """
        with DAG('d'):
            a, b = EmptyOperator(task_id='a'), EmptyOperator(task_id='b')
            [a] >> [b]
        """

    before = set(sys.modules)

    assert problem(tmp_path, source) is not None
    assert not any(name.startswith(MODULE_PREFIX) for name in set(sys.modules) - before)
