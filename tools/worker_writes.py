"""docs/explanation/worker-writes.md has a row for every write of workers and waiters, and each row names its test."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scheduler.store.db.prepared import Prepared
from scheduler.store.moves import prepared
from tools.sources import ROOT, check, differences, missing, read, rows, spaced, tree

PAGE = "docs/explanation/worker-writes.md"
#: The modules of the store by room and name.
STORE = {f"{path.parent.name}/{path.stem}": path for path in sorted((ROOT / "scheduler" / "store").glob("*/*.py"))}
#: The code that runs in workers and waiters.
WORKER_FILES = sorted((ROOT / "workers").rglob("*.py"))
WRITES = re.compile(r"insert into |delete from |(?<!key )(?<!for )(?<!do )update \w+ (as )?(\w+ )?set ")
#: The statements with which a WorkerConnection connects are no writes of its methods; NOTE_CRASH_FREE writes only after a crash.
CONNECTING = "WorkerConnection._open"
#: These run statements of others, which stand for themselves.
CARRIERS = {f"hot_path.WorkerConnection{one}" for one in ("", ".read", ".write", ".run", ".objects")} | {"hot_path.HotPath"}


@cache
def parts(module: str) -> dict[str, ast.AST]:
    """The functions, methods and constants of a module of the store, by name."""
    found: dict[str, ast.AST] = {}
    for node in tree(STORE[module]).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def modules(path: Path) -> dict[str, tuple[str, str | None]]:
    """The imports of a file from the store, by the name that it uses: the module, and its member."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ImportFrom):
            continue
        match (node.module or "").split("."):
            case ["scheduler", "store", room]:
                found |= {alias.asname or alias.name: (f"{room}/{alias.name}", None) for alias in node.names}
            case ["scheduler", "store", room, module]:
                found |= {alias.asname or alias.name: (f"{room}/{module}", alias.name) for alias in node.names}
    return found


def used(node: ast.AST, imported: dict[str, tuple[str, str | None]], here: str | None) -> Iterator[tuple[str, str]]:
    """The parts of store modules that a piece of code names, as (module, part)."""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            module, part = imported.get(one.value.id, (None, None))
            if module is not None and part is None:
                yield module, one.attr
            if one.value.id == "self" and here is not None:
                yield from ((here, name) for name in parts(here) if name.endswith(f".{one.attr}"))
        elif isinstance(one, ast.Name):
            module, part = imported.get(one.id, (here, one.id))
            if module is not None and part is not None:
                yield module, part


@cache
def writes(module: str, part: str, above: frozenset[tuple[str, str]] = frozenset()) -> bool:
    """Whether a part of the store sends SQL that writes, itself or through others."""
    if isinstance(statement := getattr(prepared, part, None), Prepared) and module == "moves/prepared":
        return bool(WRITES.search(spaced(statement.body)))
    node = parts(module).get(part)
    if node is None or part == CONNECTING or (module, part) in above:
        return False
    texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        texts = texts[1:]
    text = spaced(" ".join(texts))
    return bool(WRITES.search(f"{text} ")) or any(
        writes(*one, above | {(module, part)}) for one in used(node, modules(STORE[module]), module)
    )


def named(module: str, part: str) -> str:
    """As the page names it."""
    return f"{module.partition('/')[2]}.{part}"


def written_by_workers() -> set[str]:
    """The writes of workers and waiters, as the page names them."""
    found = set()
    classes = {one for path in WORKER_FILES for one in modules(path).values() if one[1] is not None and one[1][0].isupper()}
    attributes = {one.attr for path in WORKER_FILES for one in ast.walk(tree(path)) if isinstance(one, ast.Attribute)}
    for path in WORKER_FILES:
        found |= {named(*one) for one in used(tree(path), modules(path), None) if one[1] != "Settings" and writes(*one)}
    for module, name in classes:
        methods = [part for part in parts(module) if part.startswith(f"{name}.") and part.partition(".")[2] in attributes]
        found |= {named(module, method) for method in methods if writes(module, method)}
    return found - CARRIERS


@check
def each_write_of_a_worker_or_waiter_has_a_row_and_a_test() -> Iterator[str]:
    """The first cell of a row names writes, and the last one tests."""
    table = rows(read(PAGE), "| `")
    documented = {name for row in table for name in re.findall(r"`([^`]+)`", row[0])}
    yield from differences(written_by_workers(), documented, f"add a row to {PAGE}")
    for row in table:
        yield from missing([one.removeprefix("tests/") for one in re.findall(r"`([^`]+)`", row[-1])])
