"""Loading DAG files by path in a long-lived process: imports, shadowed names, and changed files."""

import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paceline.exceptions import DagError, NotFoundError, TaskTimeout
from scheduler.dagfiles.load import MODULE_PREFIX, load
from scheduler.dagfiles.loaded_files import LoadedFiles

ONE_TASK = """
from paceline import DAG, task

with DAG("{dag_id}", schedule=None):
    @task
    def {task_id}():
        return {value}

    {task_id}()
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, source: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())
        return path

    return write


def one_task(dag_id: str = "d", task_id: str = "t", value: object = 1) -> str:
    return ONE_TASK.format(dag_id=dag_id, task_id=task_id, value=value)


def test_finds_dags_of_globals_with_blocks_and_decorated_calls_once_each(write: Write, tmp_path: Path) -> None:
    write(
        "all.py",
        """
        from paceline import DAG, dag

        plain = DAG("plain")
        alias = plain
        with DAG("block"):
            pass

        @dag(schedule=None)
        def decorated():
            pass

        decorated()

        def made_in_a_function():
            with DAG("function"):
                pass

        made_in_a_function()
        """,
    )

    assert set(load(tmp_path, "all.py")) == {"plain", "block", "decorated", "function"}


def test_a_file_without_dags_has_none(write: Write, tmp_path: Path) -> None:
    write("none.py", "x = 1  # a scheduler for no dag\n")

    assert load(tmp_path, "none.py") == {}


def test_two_dags_of_one_id_in_a_file_are_an_error_naming_both_lines(write: Write, tmp_path: Path) -> None:
    path = write("twice.py", "from paceline import DAG\na = DAG('same')\n\nb = DAG('same')\n")

    with pytest.raises(DagError, match="two DAGs with the ID 'same', in lines 2 and 4") as raised:
        load(tmp_path, "twice.py")
    assert (raised.value.file, raised.value.line) == (str(path), 4)


def test_a_cycle_of_a_dag_without_a_with_block_is_an_error(write: Write, tmp_path: Path) -> None:
    write(
        "cycle.py",
        """
        from paceline import DAG
        from paceline.operators import EmptyOperator

        d = DAG("d")
        a, b = EmptyOperator(task_id="a", dag=d), EmptyOperator(task_id="b", dag=d)
        a >> b >> a
        """,
    )

    with pytest.raises(DagError, match="cycle"):
        load(tmp_path, "cycle.py")


@pytest.mark.parametrize(
    "source", ["\ufeff{}".encode(), b"# -*- coding: latin-1 -*-\n# caf\xe9\n{}"], ids=["BOM", "latin-1 declared"]
)
def test_a_bom_or_a_declared_encoding_is_fine(source: bytes, write: Write, tmp_path: Path) -> None:
    write("encoded.py", source.replace(b"{}", one_task().encode()))

    assert set(load(tmp_path, "encoded.py")) == {"d"}


@pytest.mark.parametrize("source", [b"# dag paceline\n# caf\xe9\n", "import paceline # dag\n".encode("utf-16")])
def test_a_file_that_is_not_utf8_is_an_error_in_one_sentence(source: bytes, write: Write, tmp_path: Path) -> None:
    write("latin.py", source)

    with pytest.raises(DagError, match=r"^latin\.py is not UTF-8: save it as UTF-8, or declare its encoding") as raised:
        load(tmp_path, "latin.py")
    assert raised.value.line == (2 if b"caf" in source else 1)


def test_the_folder_is_searched_last_and_the_file_itself_cannot_be_imported(write: Write, tmp_path: Path) -> None:
    for name in ("config.py", "workers.py", "scheduler/__init__.py", "json.py", "__init__.py"):
        write(name, "raise RuntimeError('the wrong module was imported')")
    write("aside.py", "VALUE = 'from beside'")
    write("mine.py", "import json, workers, scheduler, aside\n" + one_task(value="aside.VALUE"))

    before = set(sys.modules)
    loaded = load(tmp_path, "mine.py")

    assert sys.path[-1] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1
    assert "mine" not in sys.modules
    assert [name for name in sys.modules.keys() - before if name.startswith(MODULE_PREFIX)] == [
        loaded["d"].task_dict["t"].python_callable.__module__
    ]


def test_a_file_that_fails_leaves_no_module_behind(write: Write, tmp_path: Path) -> None:
    write("fails.py", "raise ValueError('no')")
    before = set(sys.modules)

    with pytest.raises(ValueError, match="no"):
        load(tmp_path, "fails.py")
    assert not [name for name in sys.modules.keys() - before if name.startswith(MODULE_PREFIX)]


def test_loaded_files_runs_a_file_once_until_it_changes(write: Write, tmp_path: Path) -> None:
    write("d.py", one_task(value=1))
    loaded = LoadedFiles(tmp_path)

    first = loaded.task("d.py", "d", "t")
    assert loaded.task("d.py", "d", "t") is first

    write("d.py", one_task(value=2))  # the same size, perhaps the same second
    assert loaded.task("d.py", "d", "t").python_callable() == 2


@pytest.mark.parametrize(
    ("head", "value"),
    [("from numbers_beside import VALUE\n", "VALUE"), ("", "__import__('numbers_beside').VALUE")],
    ids=["imported by the file", "imported by its task"],
)
def test_loaded_files_reads_a_file_again_when_a_module_has_changed(head: str, value: str, write: Write, tmp_path: Path) -> None:
    write("numbers_beside.py", "VALUE = 1")
    write("d.py", head + one_task(value=value))
    loaded = LoadedFiles(tmp_path)
    assert [loaded.task("d.py", "d", "t").python_callable() for _ in range(2)] == [1, 1]

    beside = write("numbers_beside.py", "VALUE = 22")
    os.utime(beside, (1, 1))  # so that Python's own cache of it cannot be taken for current

    assert loaded.task("d.py", "d", "t").python_callable() == 22


def test_loaded_files_reads_a_package_without_init_again(write: Write, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write("package/beside.py", "VALUE = 1")
    write("d.py", one_task(value="__import__('package', fromlist=['beside']).beside.VALUE"))
    loaded = LoadedFiles(tmp_path)
    assert [loaded.task("d.py", "d", "t").python_callable() for _ in range(2)] == [1, 1]

    os.utime(write("package/beside.py", "VALUE = 22"), (1, 1))  # so that Python's own cache of it cannot be taken for current

    assert loaded.task("d.py", "d", "t").python_callable() == 22


def test_loaded_files_reports_a_missing_file_or_dag(write: Write, tmp_path: Path) -> None:
    path = write("d.py", one_task())
    loaded = LoadedFiles(tmp_path)

    with pytest.raises(NotFoundError, match=r"DAG other is no longer in .*d\.py"):
        loaded.task("d.py", "other", "t")
    with pytest.raises(NotFoundError, match=r"Task x is no longer in DAG d of .*d\.py"):
        loaded.task("d.py", "d", "x")
    path.unlink()
    with pytest.raises(NotFoundError, match=r"The DAG file .*d\.py is gone"):
        loaded.task("d.py", "d", "t")


@pytest.mark.parametrize(
    ("source", "kind", "words"),
    [
        ("def broken(:", DagError, r"The DAG file .*d\.py cannot be loaded: SyntaxError"),
        ("import sys; sys.exit(3)", DagError, r"The DAG file .*d\.py cannot be loaded: SystemExit"),
        ("1 / 0", DagError, r"The DAG file .*d\.py cannot be loaded: ZeroDivisionError"),
        ("from paceline import DAG\nDAG('d', schedul=1)", DagError,
         r"The DAG file .*d\.py cannot be loaded: line 2: DAG 'd': unknown argument 'schedul'"),
        # The timeout of a task is let through.
        ("from paceline.exceptions import TaskTimeout\nraise TaskTimeout", TaskTimeout, None),
    ],
)  # fmt: skip
def test_loaded_files_turns_a_broken_file_into_one_error(
    source: str, kind: type[BaseException], words: str | None, write: Write, tmp_path: Path
) -> None:
    write("d.py", source)

    with pytest.raises(kind, match=words):
        LoadedFiles(tmp_path).task("d.py", "d", "t")


#: A DAG whose tasks are `names`, an expression.
FACTORY = """
import json, os, pathlib, sys
from paceline import DAG
from paceline.operators import EmptyOperator
here = pathlib.Path(__file__).parent
with DAG("d"):
    for name in NAMES:
        EmptyOperator(task_id=name)
"""
READS: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "a data file": (
        "json.loads((here / 'names.json').read_text())",
        lambda folder: folder.joinpath("names.json").write_text('["b"]'),
    ),
    "a folder": ("sorted(p.stem for p in here.glob('*.sql'))", lambda folder: folder.joinpath("a.sql").rename(folder / "b.sql")),
    "a file that was not there": (
        "['b'] if os.path.exists(here / 'marker') else ['a']", lambda folder: folder.joinpath("marker").touch(),
    ),
    "the environment": ("[os.environ.get('OF_A_DAG_FILE', 'a')]", lambda folder: os.environ.update(OF_A_DAG_FILE="b")),
    "a module outside of the folder": (
        "(sys.path.append(str(here.parent / 'lib')), __import__('names_of_tasks').NAMES)[1]",
        lambda folder: folder.parent.joinpath("lib/names_of_tasks.py").write_text("NAMES = ['b', ]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("read", READS)
def test_a_task_is_found_that_an_input_beside_the_dag_file_has_added(
    read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_A_DAG_FILE", "a")
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, library = tmp_path / "dags", tmp_path / "lib"
    for made in (folder, library):
        made.mkdir()
    expression, change = READS[read]
    (folder / "names.json").write_text('["a"]')
    (folder / "a.sql").touch()
    (library / "names_of_tasks.py").write_text("NAMES = ['a']")
    (folder / "d.py").write_text(FACTORY.replace("NAMES:", f"{expression}:"))
    loaded = LoadedFiles(folder)
    assert loaded.task("d.py", "d", "a", (1, {"a": set()})).task_id == "a"

    change(folder)

    assert loaded.task("d.py", "d", "b", (2, {"b": set()})).task_id == "b"


def test_a_run_of_an_older_version_does_not_load_the_file_for_each_task(tmp_path: Path, write: Write) -> None:
    write(
        "d.py",
        "from paceline import DAG\nfrom paceline.operators import EmptyOperator\nwith DAG('d'):\n    EmptyOperator(task_id='t')",
    )
    loaded = LoadedFiles(tmp_path)
    versions = [(1, {"t": set[str]()}), (2, {"t": set[str](), "u": set[str]()})]

    tasks = {id(loaded.task("d.py", "d", "t", version)) for version in versions * 5}

    assert len(tasks) == 2


def test_a_file_that_reads_from_elsewhere_is_loaded_again_after_a_while(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("d.py", "import subprocess\nsubprocess.run(['true'])\n" + one_task())
    loaded = LoadedFiles(tmp_path)
    first = loaded.task("d.py", "d", "t")
    assert loaded.task("d.py", "d", "t") is first

    monkeypatch.setattr("scheduler.dagfiles.loaded_files.REREAD_S", 0.0)

    assert loaded.task("d.py", "d", "t") is not first
