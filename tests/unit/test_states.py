"""Sets of states: they and their SQL come from paceline/states, and no other module writes any."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from paceline.states import (
    ACTIVE,
    FINISHED,
    IDLE,
    MARKABLE,
    OPEN,
    REPROCESS,
    RUN_FINISHED,
    RUN_UNFINISHED,
    UNFINISHED,
    RunState,
    States,
    TaskState,
)
from scheduler.api.models.dag_runs import DagRunPatch
from scheduler.api.models.records import BackfillBody
from scheduler.api.models.task_instances import MARKABLE as MARKABLE_TYPE
from scheduler.cli import backfills
from scheduler.store.read import grid

ROOT = Path(__file__).parents[2]
STORE = ROOT / "scheduler" / "store"
NAMES = {*TaskState, *RunState}
#: The other columns called state: of an external job, of a date of a backfill, of a process.
OTHER_STATES = {"submitted", "finished", "killed", "unknown", "waiting", "made", "left_out", "stopped", "silent", "alive"}
LIST = re.compile(r"\(\s*('\w+'(?:\s*,\s*'\w+')*)\s*\)")
#: Collections with several names of states that are no sets of states, by module, with the reason.
NO_SETS = {
    ("paceline/authoring/task_arguments.py", "execute success failure retry skipped"): "events with a callback",
    ("scheduler/cli/backfills.py", "failed left_out running queued"): "columns of a backfill, in the order of a sentence",
    ("scheduler/cli/backfills.py", " ".join(backfills.COLUMNS)): "columns",
    ("scheduler/cli/progress.py", "success running"): "whose reason a line does not show",
    ("scheduler/dagfiles/migrate/shadow.py", "success failed"): "states in the REST API of Airflow",
    ("scheduler/store/read/grid.py", " ".join(grid.WORST_FIRST)): "all states, in an order of its own",
    ("scheduler/store/read/overview.py", "queue scheduled queued running concurrency"): "columns",
}
COMPARED = re.compile(r"\bstate(?:, '')?\)?\s*(?:=|<>|is distinct from|is not distinct from)\s*'(\w*)'")


def texts(source: str) -> Iterator[str]:
    """Every string of a module; of an f-string its fixed text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def state_lists(source: str) -> list[str]:
    """Lists in SQL that hold nothing but states. A single name after `=` is a state, not a set that could differ from another."""
    lists = [found for text in texts(source) for found in LIST.findall(text)]
    return [found for found in lists if NAMES.issuperset(re.findall(r"\w+", found))]


def sets_of_states(source: str) -> list[str]:
    """The elements of each tuple, set and list with two states or more. `Literal[...]`, a type of the API, cannot be computed."""
    tree = ast.parse(source)
    types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"}
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple | ast.Set | ast.List) and id(node) not in types]
    elements = [[_name(element) for element in literal.elts] for literal in literals]
    return [" ".join(names) for names in elements if sum(name in NAMES for name in names) > 1]


def _name(node: ast.expr) -> str:
    """The value of a string, and of a member of an enum; any other expression in brackets."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in {"S", "TaskState", "RunState"}:
        return node.attr.lower()
    return str(node.value) if isinstance(node, ast.Constant) else f"[{ast.unparse(node)}]"


def strange_states(source: str) -> set[str]:
    return {name for text in texts(source) for name in COMPARED.findall(text)} - NAMES - OTHER_STATES - {""}


def store_files() -> list[Path]:
    return [path for path in sorted(STORE.rglob("*.py")) if "migrations" not in path.parts]


def test_the_store_writes_no_list_of_states() -> None:
    assert len(store_files()) > 40

    assert [(path.name, found) for path in store_files() for found in state_lists(path.read_text(encoding="utf-8"))] == []


def test_no_other_module_writes_a_set_of_states() -> None:
    files = [path for folder in ("paceline", "scheduler", "workers") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 300

    found = {
        (path.relative_to(ROOT).as_posix(), written)
        for path in files
        if "migrations" not in path.parts and path != ROOT / "paceline" / "states.py"
        for written in sets_of_states(path.read_text(encoding="utf-8"))
    }

    assert found == set(NO_SETS)


@pytest.mark.parametrize(
    "source",
    [
        "A = ('queued', 'running')",
        "if state in {None, 'success', 'failed'}:\n    pass",
        "B = frozenset({TaskState.SUCCESS, TaskState.SKIPPED})",
        "C = States([S.RUNNING, states.RunState.QUEUED])",
    ],
)
def test_a_set_of_states_is_found(source: str) -> None:
    assert len(sets_of_states(source)) == 1
    assert sets_of_states("A = ACTIVE | {S.SCHEDULED}, ('queued', 'places'), x['failed']; B: Literal['success', 'failed']") == []


def test_the_types_and_orders_of_states_are_complete() -> None:
    assert set(get_args(MARKABLE_TYPE)) == MARKABLE
    state, _ = get_args(DagRunPatch.model_fields["state"].annotation)
    assert set(get_args(state)) == RUN_FINISHED | {RunState.QUEUED}
    assert set(get_args(BackfillBody.model_fields["reprocess_behavior"].annotation)) == set(REPROCESS)
    assert set(grid.WORST_FIRST) == set(TaskState)


@pytest.mark.parametrize(
    "source",
    [
        "A = \"select 1 from task_instance where state in ('queued', 'running')\"",
        'B = f"""where {x} and coalesce(state, \'\') not in (\n  \'up_for_retry\',\n  \'deferred\')"""',
        "def f():\n    g(\"where state in \" \"('success',\" \"'skipped')\")",
        "C = \"where state in ('queued')\"",
    ],
)  # fmt: skip
def test_a_list_of_states_is_found(source: str) -> None:
    assert len(state_lists(source)) == 1


def test_other_lists_are_let_pass() -> None:
    assert (
        state_lists("A = \"where kind in ('success', 'asset') and f('x', state) and state in {ACTIVE.sql} and state = 'queued'\"")
        == []
    )


def test_the_store_compares_with_states_that_exist() -> None:
    assert [(path.name, found) for path in store_files() if (found := strange_states(path.read_text(encoding="utf-8")))] == []


def test_a_misspelt_state_is_found() -> None:
    assert strange_states("A = \"where t.state = 'runing' or coalesce(t.state, '') = 'queud' or r.state <> 'failed'\"") == {
        "runing",
        "queud",
    }


def test_the_list_is_in_the_order_of_the_enum() -> None:
    assert ACTIVE.sql == "('queued', 'running', 'deferred', 'shutdown')"
    assert RUN_UNFINISHED.sql == "('queued', 'running')"


def test_a_set_with_none_has_no_list() -> None:
    for states in (UNFINISHED, frozenset[TaskState]()):
        with pytest.raises(ValueError, match="NONE is stored as NULL"):
            States(states)


def test_each_state_but_none_is_idle_or_with_a_worker_or_finished() -> None:
    assert IDLE | {TaskState.RUNNING, TaskState.SHUTDOWN} == OPEN
    assert {TaskState.NONE} | OPEN | FINISHED == set(TaskState)
