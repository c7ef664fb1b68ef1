"""The files that the checks read, and the list of checks."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The packages of the product.
PRODUCT = ("paceline", "scheduler", "workers")
#: The functions that import the module that their first argument names.
BY_NAME = {"importlib.import_module", "import_module", "__import__"}
Check = Callable[[], Iterator[str]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Enter a check: it yields a line for each mistake."""
    CHECKS[function.__name__] = function
    return function


def read(path: str | Path) -> str:
    """The text of a file of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def spaced(text: str) -> str:
    """Text with one space in place of each line end and indentation."""
    return re.sub(r"\s+", " ", text)


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules(*folders: str) -> dict[str, ast.Module]:
    """The modules below some folders by their paths from the root."""
    return {str(path.relative_to(ROOT)): tree(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}


def imported(node: ast.AST) -> Iterator[str]:
    """Every name that may be a module that this node imports: by a statement, or by a call with a literal name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
        yield from (one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str))


@cache
def functions_in(path: Path) -> frozenset[str]:
    """The names of the functions of a file; none if there is no such file."""
    nodes = ast.walk(tree(path)) if path.is_file() else ()
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing(tests: list[str], folder: str = "tests") -> Iterator[str]:
    """Those of some tests, named `path::function`, that are not there."""
    for test in tests:
        path, _, name = test.strip().partition("::")
        if name not in functions_in(ROOT / folder / path):
            yield f"{folder}/{path} has no function {name}"


def rows(page: str, start: str = "| ") -> list[list[str]]:
    """The cells of the tables in the text of a page. The first row of each table is its head."""
    lines = [line for line in page.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def differences(found: set[str], listed: set[str], what: str) -> Iterator[str]:
    """What is found and not in a list, and what the list does not need."""
    yield from (f"{one}: {what}" for one in sorted(found - listed))
    yield from (f"{one}: remove it from the list, since it is not there any more" for one in sorted(listed - found))
