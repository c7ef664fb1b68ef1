"""The imports of a module, read from its source."""

import ast
from collections.abc import Iterator

#: The functions that import the module that their first argument names.
BY_NAME = {"importlib.import_module", "import_module", "__import__"}


def of_node(node: ast.AST) -> Iterator[str]:
    """Every name that may be a module that this node imports: by a statement, or by a call with a literal name."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
        yield from (one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str))
