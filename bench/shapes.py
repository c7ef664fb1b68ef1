"""The measured shapes as texts of DAG files. Only the import line differs for Apache Airflow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import indent

#: For DAGs with many ready tasks: the default of 16 is less than a worker with 4 pool processes prefetches.
WIDE = "max_active_tasks=128"
#: A no-op task: a Python function that returns None.
NOOP = """\
from paceline import DAG, task


@task
def noop():
    pass


"""
FIB = """\
from paceline import DAG, task


@task
def fib(n):
    def f(k):
        return k if k < 2 else f(k - 1) + f(k - 2)

    f(n)


"""
MAP = """\
from paceline import DAG, task


@task
def numbers():
    return list(range({count}))


@task
def noop(number):
    pass


"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`files` are texts by file name. `dag_ids` are triggered one after the other without waiting for their ends. `tasks` is the
    total number of task instances."""

    name: str
    meaning: str
    files: Mapping[str, str]
    dag_ids: tuple[str, ...]
    tasks: int


def chain(count: int = 100, name: str = "chain") -> Shape:
    """A chain of no-op tasks."""
    return _one(name, f"{count:,} no-op tasks in a row", NOOP, _row("noop", count), tasks=count)


def wide(count: int = 2000) -> Shape:
    """One task, then many, then one."""
    body = f"""\
root = noop.override(task_id="root")()
join = noop.override(task_id="join")()
for i in range({count}):
    root >> noop.override(task_id=f"t{{i:04}}")() >> join
"""
    return _one("wide", f"1 -> {count:,} -> 1", NOOP, body, tasks=count + 2, options=WIDE)


def tree(count: int = 1023) -> Shape:
    """Each task is followed by two."""
    body = f"""\
nodes = [noop.override(task_id=f"t{{i:04}}")() for i in range({count})]
for i in range(1, {count}):
    nodes[(i - 1) // 2] >> nodes[i]
"""
    return _one("tree", f"{count:,} tasks, each followed by two", NOOP, body, tasks=count, options=WIDE)


def grid(levels: int = 20, width: int = 20) -> Shape:
    """Levels of tasks. Each task depends on all tasks of the level above."""
    body = f"""\
before = []
for level in range({levels}):
    tasks = [noop.override(task_id=f"l{{level:02}}_{{i:02}}")() for i in range({width})]
    for one in before:
        one >> tasks
    before = tasks
"""
    meaning = f"{levels} levels of {width}, each needs the whole level before"
    return _one("grid", meaning, NOOP, body, tasks=levels * width, options=WIDE)


def many(dags: int = 100, length: int = 10) -> Shape:
    """Many DAGs, each a short chain, triggered at once."""
    ids = [f"many_{number:03}" for number in range(dags)]
    files = {f"{dag_id}.py": _text(NOOP, dag_id, _row("noop", length)) for dag_id in ids}
    return Shape(
        name="many", meaning=f"{dags} DAGs of {length} in a row, at once", files=files, dag_ids=tuple(ids), tasks=dags * length
    )


def many_runs(runs: int = 1000, length: int = 5) -> Shape:
    """Many runs of one short chain, triggered at once."""
    text = _text(NOOP, "many_runs", _row("noop", length), f"max_active_runs={runs}")
    meaning = f"{runs:,} runs of {length} in a row, at once"
    return Shape(
        name="many_runs", meaning=meaning, files={"many_runs.py": text}, dag_ids=("many_runs",) * runs, tasks=runs * length
    )


def fib(name: str = "fib", n: int = 10, count: int = 40) -> Shape:
    """A sequence of tasks that compute fib(n), as in the public comparison of engines."""
    return _one(name, f"{count} x fib({n}) in sequence", FIB, _row("fib", count, str(n)), tasks=count)


def mapped(count: int = 10_000) -> Shape:
    """A task mapped over a list that another task returned."""
    body = "noop.expand(number=numbers())\n"
    return _one("map", f"{count:,} mapped over one list", MAP.format(count=count), body, tasks=count + 1, options=WIDE)


def urgent() -> Shape:
    """One task that ranks above those of all other shapes."""
    body = 'noop.override(task_id="t", priority_weight=1_000_000)()\n'
    return _one("urgent", "one task of a high rank", NOOP, body, tasks=1, options="max_active_runs=1000")


def full() -> dict[str, Shape]:
    """All shapes in the measured sizes."""
    return _by_name(chain(), wide(), tree(), many(), many_runs(), grid(), fib(), fib("fib_long", 33, 10), mapped())


def small() -> dict[str, Shape]:
    """All shapes in the sizes of a smoke test."""
    return _by_name(
        chain(5), wide(10), tree(7), many(3, 2), many_runs(5, 2), grid(3, 3), fib(count=3), fib("fib_long", 12, 2), mapped(10)
    )


def files_of(shapes: Iterable[Shape]) -> dict[str, str]:
    """The files of several shapes, by name."""
    return {name: text for shape in shapes for name, text in shape.files.items()}


def _by_name(*shapes: Shape) -> dict[str, Shape]:
    return {shape.name: shape for shape in shapes}


def _row(function: str, count: int, argument: str = "") -> str:
    return f"""\
before = None
for i in range({count}):
    one = {function}.override(task_id=f"t{{i:03}}")({argument})
    if before is not None:
        before >> one
    before = one
"""


def _one(name: str, meaning: str, head: str, body: str, *, tasks: int, options: str = "") -> Shape:
    files = {f"{name}.py": _text(head, name, body, options)}
    return Shape(name=name, meaning=meaning, files=files, dag_ids=(name,), tasks=tasks)


def _text(head: str, dag_id: str, body: str, options: str = "") -> str:
    arguments = ", ".join(filter(None, [f'"{dag_id}"', "schedule=None", options]))
    return f"{head}with DAG({arguments}):\n{indent(body, '    ')}"
