"""No test replaces a function, a method or a variable of Paceline. Only constants, with names in capitals, get other values.

The same holds for the code of the processes that tests start, which is in strings.
"""

import ast
import contextlib
import re
import textwrap
from collections.abc import Iterator

from tools.sources import check, modules

OWN = re.compile(r"(paceline|scheduler|workers|bench)(\.|$)")
IMPORT = re.compile(r"(from|import) (paceline|scheduler|workers|bench)\b")
PLACEHOLDER = re.compile(r"\{\w*(![rsa])?\}")
CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
#: Attributes of objects whose class the text of a test does not show, with the owner of the class.
FOREIGN = {
    ("unit/workers/spark/test_python_side.py", "shutdown_request"): "PySpark",
    ("unit/workers/spark/test_submitter.py", "while_submitting"): "the test: it belongs to its stand-in for a cluster",
    ("integration/workers/waiter/test_waiter.py", "serialize"): "the author of a trigger",
    ("integration/dagfiles/test_hostile_answers.py", "content_hash"): "a hostile DAG file",
}


def patches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of each attribute that may be ours and is replaced."""
    yield from of_code(tree)
    for line, code in codes(tree):
        yield from ((line + number - 1, name) for number, name in of_code(code))


def codes(tree: ast.AST) -> Iterator[tuple[int, ast.AST]]:
    """The first line of each string of several lines that is Python code and imports ours, and its syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [str(part.value) if isinstance(part, ast.Constant) else "None" for part in node.values]
            text = "".join(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = PLACEHOLDER.sub("None", node.value)
        else:
            continue
        if "\n" in text and IMPORT.search(text):
            with contextlib.suppress(SyntaxError):
                yield node.lineno, ast.parse(textwrap.dedent(text))


def of_code(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The patches in one module or in one string."""
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


@check
def no_test_replaces_code_of_our_own() -> Iterator[str]:
    """What tests replace is a constant, foreign code, or listed in FOREIGN."""
    found = {(path.removeprefix("tests/"), name): line for path, tree in modules("tests").items() for line, name in patches(tree)}
    yield from (f"tests/{path}:{found[path, name]} replaces {name}" for path, name in sorted(found.keys() - FOREIGN.keys()))
    yield from (f"remove {key} from FOREIGN: it is no longer replaced" for key in sorted(FOREIGN.keys() - found.keys()))
