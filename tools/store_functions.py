"""Store functions take a connection, and read rows by the names of their columns (ADR 24); store/read only reads."""

import ast
import re
from collections.abc import Iterator

from tools.sources import check, differences, modules

STORE = "scheduler/store/"
#: Functions that open transactions themselves, with the reason.
TAKE_ENGINE = {
    "dags/files.py record": "a file that cannot be stored is stored as an import error, after a rollback",
    "upkeep/processes.py register": "all later changes of the engine record the new ID",
    "worker/external_jobs.py by_engine": "each statement of a thread has a transaction of its own",
    "tables/comparisons.py claimed": "a lock without a transaction, of a session that ends with the block",
    "upkeep/processes.py __init__": "an object that registers its process, again if it was declared lost",
}
WRITES = re.compile(r"\b(insert\s+into|update\s+\w+(\s+(as\s+)?\w+)?\s+set|delete\s+from|truncate|merge\s+into)\b", re.IGNORECASE)


def is_by_position(node: ast.AST) -> bool:
    """Whether this may read a column by its place: row[1], rows[0][0], row[:2], or a row unpacked to more than three names."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Subscript):
        is_row = isinstance(node.value, ast.Subscript) or node.value.id == "row"
        number = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return (is_row and isinstance(node.slice, ast.Slice)) or (isinstance(number, int) and (is_row or number > 0))
    targets = [node.target] if isinstance(node, ast.For | ast.comprehension) else []
    if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Tuple):
        targets = node.targets
    return any(isinstance(target, ast.Tuple) and len(target.elts) > 3 for target in targets)


@check
def store_functions_take_a_connection() -> Iterator[str]:
    """Those that take an engine are in TAKE_ENGINE."""
    found = {
        f"{path.removeprefix(STORE)} {node.name}"
        for path, tree in modules(STORE).items()
        if not path.startswith(f"{STORE}db/")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(one.annotation and ast.unparse(one.annotation) == "Engine" for one in node.args.args)
    }
    yield from differences(found, set(TAKE_ENGINE), "take a connection, or give the reason in tools/store_functions.py")


@check
def no_store_function_reads_a_column_by_its_place() -> Iterator[str]:
    """Except in db/rows.py, which makes rows."""
    for path, tree in modules(STORE).items():
        if "migrations" not in path and path != f"{STORE}db/rows.py":
            for node in ast.walk(tree):
                if is_by_position(node):
                    yield f"{path}:{getattr(node, 'lineno', '')} {ast.unparse(node)}"


@check
def the_folder_read_only_reads() -> Iterator[str]:
    """No text in store/read is a statement that writes."""
    for path, tree in modules(f"{STORE}read").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and WRITES.search(node.value):
                yield f"{path}:{node.lineno} writes"
