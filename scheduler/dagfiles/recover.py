"""Finds the errors of a DAG file behind the first one: it corrects the known errors and runs the file again.

An error of a task waits for the end of the file by itself (see authoring/scope). This is for errors that stop the file, such as
one of a DAG or of an edge, and for the other arguments of a call with a wrong one.
"""

import ast
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType

from paceline.exceptions import DagError

#: How often a file is run again, and for how long in all. A file that takes longer than this shows its errors one by one.
MOST_RUNS = 20
MOST_S = 1.0
_MEANT = re.compile(r"unknown argument '(\w+)'; did you mean '(\w+)'\?")

#: Runs the code of the file, and returns its errors in order, and whether the last one stopped it.
Run = Callable[[CodeType], tuple[Sequence[DagError], bool]]


def further(text: str, path: Path, errors: Sequence[DagError], *, ended: bool, run: Run) -> list[DagError]:
    """The errors of the file, with those that show once `errors` are corrected. The last of these has `ended` the file."""
    tree, deadline = ast.parse(text), time.monotonic() + MOST_S
    known, fresh = list(errors), list(errors)
    for _ in range(MOST_RUNS):
        changed = [_correct(tree, error, path, may_drop=ended and error is fresh[-1]) for error in fresh]
        if not any(changed) or time.monotonic() > deadline:
            break
        found, ended = run(compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True))
        lines, sentences = {error.line for error in known}, {str(error) for error in known}
        fresh = [error for error in found if error.file == str(path) and str(error) not in sentences]
        # In the line of another error, one that names no argument may only follow from the correction.
        known += [
            error for error in fresh if error.line not in lines or _argument(tree, error.line or 0, _sentence(error)) is not None
        ]
    return sorted(known, key=lambda error: error.line or 0) if len(known) > len(errors) else known


def _correct(tree: ast.Module, error: DagError, path: Path, *, may_drop: bool) -> bool:
    """Remove the cause of an error from the tree. Without `may_drop`, only an argument. False if the cause is unknown."""
    if error.file != str(path) or error.line is None:
        return False
    found = _argument(tree, error.line, _sentence(error))
    if found is None:
        return may_drop and _without_statement(tree, error.line)
    call, argument = found
    meant = _MEANT.search(str(error))
    if meant is not None and meant[1] == argument.arg and all(other.arg != meant[2] for other in call.keywords):
        argument.arg = meant[2]
    else:
        call.keywords.remove(argument)
    return True


def _sentence(error: DagError) -> str:
    """The part of the message behind the name of the DAG and the task."""
    return str(error).partition(": ")[2] or str(error)


def _argument(tree: ast.Module, line: int, sentence: str) -> tuple[ast.Call, ast.keyword] | None:
    """The argument by name that the sentence names, in the innermost call of the line that has it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _covers(node, line)]
    for call in sorted(calls, key=lambda node: (node.end_lineno or 0) - node.lineno):
        for argument in call.keywords:
            if argument.arg and re.search(rf"\b{argument.arg}\b", sentence):
                return call, argument
    return None


def _without_statement(tree: ast.Module, line: int) -> bool:
    """Replace an expression whose value nothing uses by `pass`, or `@task.some` by `@task`."""
    for node in ast.walk(tree):
        for body in _bodies(node):
            for place, statement in enumerate(body):
                if isinstance(statement, ast.Expr) and _covers(statement, line):
                    body[place] = ast.copy_location(ast.Pass(), statement)
                    return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for place, decorator in enumerate(node.decorator_list):
                named = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(named, ast.Attribute) and _covers(decorator, line):
                    node.decorator_list[place] = named.value
                    return True
    return False


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if isinstance(found := getattr(node, name, None), list):
            yield found


def _covers(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
