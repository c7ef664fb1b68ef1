"""Store functions take a connection, and read rows by the names of their columns (ADR 24); store/read only reads."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

STORE = Path(__file__).parents[3] / "scheduler" / "store"
TREES = {str(path.relative_to(STORE)): ast.parse(path.read_text(encoding="utf-8")) for path in STORE.rglob("*.py")}
#: Functions that open transactions themselves, with the reason.
TAKE_ENGINE = {
    "actions/clear.py clear": "a dry run is rolled back",
    "actions/mark.py mark": "a dry run is rolled back",
    "dags/files.py record": "a file that cannot be stored is stored as an import error, after a rollback",
    "upkeep/processes.py register": "all later changes of the engine record the new ID",
    "worker/external_jobs.py by_engine": "each statement of a thread has a transaction of its own",
    "upkeep/registration.py __init__": "an object that registers its process, again if it was declared lost",
    "upkeep/settings_drift.py __init__": "an object that compares now and then, while its process runs",
}


WRITES = re.compile(r"\b(insert\s+into|update\s+\w+(\s+(as\s+)?\w+)?\s+set|delete\s+from|truncate|merge\s+into)\b", re.IGNORECASE)


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for file, tree in TREES.items():
        if not file.startswith("db/"):
            yield from ((file, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def is_by_position(node: ast.AST) -> bool:
    """Whether this may read a column by its place: row[1], rows[0][0], row[:2], or a row unpacked to more than three names."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Subscript):
        is_row = isinstance(node.value, ast.Subscript) or node.value.id == "row"
        is_number = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)
        return (is_row and isinstance(node.slice, ast.Slice)) or (is_number and (is_row or node.slice.value > 0))
    targets = [node.target] if isinstance(node, ast.For | ast.comprehension) else []
    if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Tuple):
        targets = node.targets
    return any(isinstance(target, ast.Tuple) and len(target.elts) > 3 for target in targets)


def test_store_functions_take_a_connection_except_those_with_a_reason() -> None:
    found = {
        f"{file} {function.name}"
        for file, function in functions()
        if any(one.annotation and ast.unparse(one.annotation) == "Engine" for one in function.args.args)
    }

    assert found == set(TAKE_ENGINE)


def test_the_folder_read_only_reads() -> None:
    found = [
        f"{file}:{node.lineno}"
        for file, tree in TREES.items()
        if file.startswith("read/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and WRITES.search(node.value)
    ]

    assert found == []


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("insert into xcom (key)", True),
        ("with a as (select 1)\nupdate task_instance t\n   set state = null", True),
        ("delete from favorite where", True),
        ("select updated_at from asset", False),
        ("Lock the rows of a thing until the update of it", False),
        ("select 1 from dag_run for update", False),
    ],
)
def test_the_check_finds_writes(text: str, writes: bool) -> None:
    assert bool(WRITES.search(text)) is writes


def test_no_store_function_reads_a_column_by_its_place() -> None:
    found = [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, tree in TREES.items()
        if "migrations" not in file and file != "db/rows.py"
        for node in ast.walk(tree)
        if is_by_position(node)
    ]

    assert found == []


def test_the_check_finds_columns_read_by_place() -> None:
    wrong = ["row[0]", "found[1]", "rows[0][0]", "row[:2]", "[a for a, b, c, d in found]", "a, b, c, d = row"]
    right = ["found[0]", "own[-1]", "row.id", "text[:9]", "row['id']", "[a for a, b in found]", "a, b, c, d = 1, 2, 3, 4"]

    assert [any(map(is_by_position, ast.walk(ast.parse(code)))) for code in wrong + right] == [True] * 6 + [False] * 7
