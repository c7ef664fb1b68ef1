"""Sets of states and their SQL come from paceline/states, and no other module writes any."""

import ast
import re
from collections.abc import Iterator

from paceline.states import RunState, TaskState
from scheduler.cli import backfills
from scheduler.store.read import pictures
from tools.sources import PRODUCT, check, differences, modules

NAMES = {*TaskState, *RunState}
#: The other columns called state: of an external job, of a date of a backfill, of a process.
OTHER_STATES = {
    "submitted",
    "finished",
    "killed",
    "unknown",
    "waiting",
    "made",
    "left_out",
    "stopped",
    "silent",
    "alive",
    "new",
    "ready",
    "refused",
}
LIST = re.compile(r"\(\s*('\w+'(?:\s*,\s*'\w+')*)\s*\)")
#: Collections with several names of states that are no sets of states, by module, with the reason.
NO_SETS = {
    ("paceline/authoring/task_arguments.py", "execute success failure retry skipped"): "events with a callback",
    ("scheduler/cli/backfills.py", "failed left_out running queued"): "columns of a backfill, in the order of a sentence",
    ("scheduler/cli/backfills.py", " ".join(backfills.COLUMNS)): "columns",
    ("scheduler/cli/progress.py", "success running"): "whose reason a line does not show",
    ("scheduler/dagfiles/migrate/shadow.py", "success failed"): "states in the REST API of Airflow",
    ("scheduler/store/read/pictures.py", " ".join(pictures.WORST_FIRST)): "all states, in an order of its own",
    ("scheduler/store/queueing/capacity.py", "queue scheduled queued running concurrency"): "columns",
}
COMPARED = re.compile(r"\bstate(?:, '')?\)?\s*(?:=|<>|is distinct from|is not distinct from)\s*'(\w*)'")


def texts(tree: ast.AST) -> Iterator[str]:
    """Every string of a module; of an f-string its fixed text."""
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def state_lists(tree: ast.AST) -> list[str]:
    """Lists in SQL that hold nothing but states. A single name after `=` is a state, not a set that could differ from another."""
    lists = [found for text in texts(tree) for found in LIST.findall(text)]
    return [found for found in lists if NAMES.issuperset(re.findall(r"\w+", found))]


def sets_of_states(tree: ast.AST) -> list[str]:
    """The elements of each tuple, set and list with two states or more. `Literal[...]`, a type of the API, cannot be computed."""
    types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"}
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple | ast.Set | ast.List) and id(node) not in types]
    elements = [[_name(element) for element in literal.elts] for literal in literals]
    return [" ".join(names) for names in elements if sum(name in NAMES for name in names) > 1]


def _name(node: ast.expr) -> str:
    """The value of a string, and of a member of an enum; any other expression in brackets."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in {"S", "TaskState", "RunState"}:
        return node.attr.lower()
    return str(node.value) if isinstance(node, ast.Constant) else f"[{ast.unparse(node)}]"


def strange_states(tree: ast.AST) -> set[str]:
    """The names with which SQL compares a state and that are none."""
    return {name for text in texts(tree) for name in COMPARED.findall(text)} - NAMES - OTHER_STATES - {""}


@check
def the_store_writes_no_list_of_states_and_compares_with_states_that_exist() -> Iterator[str]:
    """Statements take lists from States.sql."""
    for path, tree in modules("scheduler/store").items():
        if "/migrations/" not in path:
            yield from (f"{path} writes the list {found}" for found in state_lists(tree))
            yield from (f"{path} compares with {found}, which is no state" for found in strange_states(tree))


@check
def no_other_module_writes_a_set_of_states() -> Iterator[str]:
    """Each is named in paceline/states.py, or is in NO_SETS."""
    found = {
        f"{path}: {written}"
        for path, tree in modules(*PRODUCT).items()
        if "/migrations/" not in path and path != "paceline/states.py"
        for written in sets_of_states(tree)
    }
    yield from differences(found, {": ".join(one) for one in NO_SETS}, "take the set from paceline/states.py")
