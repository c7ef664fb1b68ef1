"""Sets of states: their SQL comes from scheduler/states, and the store writes none itself."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.states import ACTIVE, FINISHED, IDLE, OPEN, RUN_UNFINISHED, UNFINISHED, RunState, States, TaskState

STORE = Path(__file__).parents[2] / "scheduler" / "store"
NAMES = {*TaskState, *RunState}
#: The other columns called state: of an external job, of a date of a backfill, of a process.
OTHER_STATES = {"submitted", "finished", "killed", "unknown", "waiting", "made", "left_out", "stopped", "silent", "alive"}
LIST = re.compile(r"\(\s*('\w+'(?:\s*,\s*'\w+')*)\s*\)")
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


def strange_states(source: str) -> set[str]:
    return {name for text in texts(source) for name in COMPARED.findall(text)} - NAMES - OTHER_STATES - {""}


def store_files() -> list[Path]:
    return [path for path in sorted(STORE.rglob("*.py")) if "migrations" not in path.parts]


def test_the_store_writes_no_list_of_states() -> None:
    assert len(store_files()) > 40

    assert [(path.name, found) for path in store_files() for found in state_lists(path.read_text(encoding="utf-8"))] == []


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
