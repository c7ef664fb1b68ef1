"""No test replaces a function, a method or a variable of Paceline. Only constants, with names in capitals, get other values."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
OWN = re.compile(r"(scheduler|workers|bench)(\.|$)")
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
#: Attributes of objects whose class the text of a test does not show, with the owner of the class.
FOREIGN = {
    ("unit/workers/spark/test_python_side.py", "shutdown_request"): "PySpark",
    ("unit/workers/spark/test_submitter.py", "while_submitting"): "the test: it belongs to its stand-in for a cluster",
    ("integration/workers/waiter/test_waiter.py", "serialize"): "the author of a trigger",
}


def patches(text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each attribute that may be ours and is replaced."""
    tree = ast.parse(text)
    imported = dict(imports(tree))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for path, name in replaced_by_call(node):
                if not CONSTANT.fullmatch(name) and is_own(path, imported, unknown=True):
                    yield node.lineno, name
        elif isinstance(node, ast.Assign):
            for target, value in assigned(node):
                if (
                    isinstance(target, ast.Attribute)
                    and not CONSTANT.fullmatch(target.attr)
                    and ast.unparse(target.value) != "self"
                ):
                    is_function = isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions)
                    if is_own(ast.unparse(target.value), imported, unknown=is_function):
                        yield node.lineno, target.attr


def assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value, also of tuples."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each imported name with its full path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"


def replaced_by_call(call: ast.Call) -> Iterator[tuple[str, str]]:
    """The object and the name that `setattr`, `monkeypatch.setattr`, `mock.patch` or `mock.patch.object` replaces."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if not call.args or last not in {"setattr", "delattr", "patch", "object", "multiple"}:
        return
    function = ast.unparse(call.func)
    if last in {"object", "multiple"} and not function.endswith(f"patch.{last}"):
        return
    first, *others = call.args
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        path, _, name = first.value.rpartition(".")
        if path and "/" not in path:
            yield f'"{path}"', name
    elif others and isinstance(others[0], ast.Constant):
        yield ast.unparse(first), str(others[0].value)
    elif last == "multiple" or others:
        yield ast.unparse(first), "?"


def is_own(path: str, imported: dict[str, str], *, unknown: bool) -> bool:
    """Whether an object is ours; `unknown` is the answer for a variable, whose class the text does not show."""
    if path.startswith('"'):
        return bool(OWN.match(path.strip('"')))
    root = re.match(r"\w+", path)
    if root is None or root[0] not in imported:
        return unknown
    return bool(OWN.match(imported[root[0]]))


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(logins, "seconds_to_wait", late)',
        'monkeypatch.setattr(Watch, "_seen", late)',
        'monkeypatch.setattr(logins.Limit, "wait", late)',
        'monkeypatch.setattr(scenario.hot, "deciding", late)',
        'monkeypatch.setattr("scheduler.store.accounts.logins.failed", late)',
        'self._monkeypatch.setattr(logins, name, late)',
        'patch.setattr(logins, "_cache", None)',
        'mock.patch("workers.task.execute.run", late)',
        'mock.patch.object(logins, "failed")',
        'setattr(Watch, "look", late)',
        "logins.failed = late",
        "Watch.look = late",
        "thread._attempt = lambda work: None",
        "thread._attempt, before = lambda work: None, thread._attempt",
    ],
)  # fmt: skip
def test_a_patch_is_found(line: str) -> None:
    imported = "from scheduler.dagfiles.watch import Watch\nfrom scheduler.store.accounts import logins"

    assert [number for number, _ in patches(f"from unittest import mock\n{imported}\n{line}\n")] == [4]


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(logins, "OF_ADDRESS", 1)',
        'monkeypatch.setattr(time, "monotonic", late)',
        'monkeypatch.setattr("click.confirm", late)',
        'mock.patch.dict(os.environ, {"A": "b"})',
        'http.patch("/dags/etl", json={})',
        'http.patch(f"/dags/{path}", json=body)',
        "logins.OF_ADDRESS = 1",
        "task.on_success_callback = late",
    ],
)
def test_constants_and_foreign_code_may_be_replaced(line: str) -> None:
    text = f"import os, time\nfrom unittest import mock\nfrom scheduler.store.accounts import logins\n{line}\n"

    assert list(patches(text)) == []


def test_nothing_of_our_own_is_patched() -> None:
    found = {
        (str(file.relative_to(TESTS)), name): f"{file.relative_to(TESTS)}:{line} replaces {name}"
        for file in TESTS.rglob("*.py")
        for line, name in patches(file.read_text(encoding="utf-8"))
    }

    assert found.keys() >= FOREIGN.keys(), "remove what is no longer replaced from FOREIGN"
    assert [text for key, text in found.items() if key not in FOREIGN] == []
