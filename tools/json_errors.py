"""JSON from outside can nest so deep that Python gives up: with RecursionError, which is no ValueError."""

import ast
from collections.abc import Iterator

from tools.sources import PRODUCT, check, modules


def reads_json(node: ast.AST) -> bool:
    """Whether this is a call of json.loads or json.load."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"json.loads", "json.load"}


def handlers_without_recursion_error(tree: ast.AST) -> Iterator[int]:
    """The lines of `except ValueError` and `suppress(ValueError)` around a reading of JSON that let a RecursionError pass."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try | ast.With) and any(reads_json(child) for part in node.body for child in ast.walk(part)):
            handled: list[ast.expr] = (
                [item.context_expr for item in node.items]
                if isinstance(node, ast.With)
                else [handler.type or ast.Name("BaseException") for handler in node.handlers]
            )
            caught = {name.id for one in handled for name in ast.walk(one) if isinstance(name, ast.Name)}
            if caught & {"ValueError", "JSONDecodeError"} and not caught & {"RecursionError", "Exception", "BaseException"}:
                yield node.lineno


@check
def handlers_of_wrong_json_handle_json_that_nests_too_deep() -> Iterator[str]:
    """Each handler of a ValueError of JSON handles a RecursionError too."""
    for path, tree in modules(*PRODUCT).items():
        for line in handlers_without_recursion_error(tree):
            yield f"{path}:{line}: catch RecursionError too"
