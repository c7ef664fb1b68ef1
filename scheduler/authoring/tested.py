"""Tells what a DAG file tests when Python asks for the truth of a value, as in `if value:`."""

import ast
import dis
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType

from scheduler.authoring.source import PACKAGE


def tested(frame: FrameType) -> str | None:
    """The expression that the current line of the author's code tests; None if it may be one that is sometimes None.

    `if previous:` is the usual way to chain tasks in a loop that starts with `previous = None`.
    """
    file = frame.f_code.co_filename
    if file.startswith(PACKAGE) or not _is_test(frame):
        return None
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    found = [ast.unparse(one) for one in _tests(_parsed(text), frame.f_lineno)]
    return None if not found or _sometimes_none(text).intersection(found) else found[0]


def _is_test(frame: FrameType) -> bool:
    """Whether the code itself tests a value, not a function that it calls, such as `filter(None, ...)`."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return "JUMP" in name or name in {"UNARY_NOT", "TO_BOOL"}


@lru_cache(maxsize=8)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _tests(tree: ast.Module, line: int) -> Iterator[ast.expr]:
    """The expressions on a line whose truth decides something, without `not`, `and` and `or` around them."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
                tests = [test]
            case ast.BoolOp(values=[*tests, _]):
                pass
            case ast.UnaryOp(op=ast.Not(), operand=test):
                tests = [test]
            case ast.comprehension(ifs=tests):
                pass
            case _:
                continue
        for test in tests:
            if test.lineno <= line <= (test.end_lineno or test.lineno):
                yield from _operands(test)


def _operands(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _operands(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _operands(test.operand)
    else:
        yield test


@lru_cache(maxsize=8)
def _sometimes_none(text: str) -> frozenset[str]:
    """The names to which a file assigns what may be None, and the parameters of functions with defaults."""
    names: set[str] = set()
    for node in ast.walk(_parsed(text)):
        match node:
            case ast.Assign(targets=targets, value=value) if _may_be_none(value):
                names.update(ast.unparse(one) for target in targets for one in getattr(target, "elts", [target]))
            case ast.AnnAssign(target=target, value=value) | ast.For(target=target, iter=value) if value and _may_be_none(value):
                names.update(ast.unparse(one) for one in getattr(target, "elts", [target]))
            case ast.arguments() if node.defaults or any(node.kw_defaults):
                names.update(argument.arg for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs))
    return frozenset(names)


def _may_be_none(value: ast.expr) -> bool:
    """Whether None is written in an expression, or it calls a `get`."""
    return any(
        (isinstance(node, ast.Constant) and node.value is None) or (isinstance(node, ast.Attribute) and node.attr == "get")
        for node in ast.walk(value)
    )
