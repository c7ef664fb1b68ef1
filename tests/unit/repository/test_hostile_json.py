"""JSON from outside can nest so deep that Python gives up: with RecursionError, which is no ValueError."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("paceline", "scheduler", "workers")


def reads_json(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"loads", "load"}
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "json"
    )


def handlers_without_recursion_error(tree: ast.AST) -> Iterator[int]:
    """The lines of `except ValueError` and `suppress(ValueError)` around a reading of JSON that let a RecursionError pass."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.With) and any(reads_json(child) for part in node.body for child in ast.walk(part)):
            if isinstance(node, ast.With):
                handled: list[ast.expr] = [item.context_expr for item in node.items]
            else:
                handled = [handler.type or ast.Name("BaseException") for handler in node.handlers]
            caught = {name.id for one in handled for name in ast.walk(one) if isinstance(name, ast.Name)}
            if caught & {"ValueError", "JSONDecodeError"} and not caught & {"RecursionError", "Exception", "BaseException"}:
                yield node.lineno


def test_the_check_sees_a_handler_that_lets_it_pass() -> None:
    code = "try:\n    json.loads(text)\nexcept {}:\n    pass"
    assert list(handlers_without_recursion_error(ast.parse(code.format("ValueError")))) == [1]
    assert list(handlers_without_recursion_error(ast.parse(code.format("(ValueError, RecursionError)")))) == []
    assert list(handlers_without_recursion_error(ast.parse("with suppress(ValueError):\n    json.loads(text)"))) == [1]


@pytest.mark.parametrize("folder", PRODUCT)
def test_code_that_handles_wrong_json_handles_json_that_nests_too_deep(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in handlers_without_recursion_error(ast.parse(path.read_text()))
    ]
    assert found == []
