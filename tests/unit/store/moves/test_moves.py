"""store/moves is the only writer of a task instance's state, dispatch ID and number of the try, and states.py names each file."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.states import TRANSITIONS

ROOT = Path(__file__).parents[4]
MOVES = ROOT / "scheduler" / "store" / "moves"
FILES = sorted(
    path for name in ("paceline", "scheduler", "workers") for kind in ("py", "sql") for path in (ROOT / name).rglob(f"*.{kind}")
)
#: What only moves write. An insert may leave them out: then the task instance is undecided, without a try.
OWN = {"state", "dispatch_id", "try_number"}
#: Any table that the check cannot read may be this one.
UPDATE = re.compile(r"\bupdate\s+(?:only\s+)?(?:task_instance\b|\{[^}]*\})(?:\s+(?:as\s+)?(?!set\b)\w+)?\s+set\b", re.IGNORECASE)
INSERT = re.compile(r"\binsert\s+into\s+task_instance\b(?:\s+as\s+\w+)?\s*\(", re.IGNORECASE)
#: What the f-strings put in for a column, or for a list of columns, that the check cannot read. `{COMMON}` are columns of the task.
UNKNOWN = "{unknown}"
ENDS = re.compile(r"\s+(?:from|where|returning)\b", re.IGNORECASE)


def texts(path: Path) -> Iterator[str]:
    """The statements of a file: all of a .sql file without comments; the strings of a module, with names in braces."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        yield re.sub(r"--[^\n]*", "", source)
        return
    tree = ast.parse(source)
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def written(text: str) -> set[str]:
    """The columns of task_instance that a statement writes; UNKNOWN for names that another constant puts in."""
    found: set[str] = set()
    for start in UPDATE.finditer(text):
        for part in parts(text[start.end() :]):
            columns, _, _ = part.partition("=")
            found |= set(re.findall(r"\w+", columns)) if "{" not in columns.replace("{COMMON}", "") else {UNKNOWN}
    for start in INSERT.finditer(text):
        columns = text[start.end() : text.index(")", start.end())]
        found |= set(re.findall(r"\w+", columns)) if "{" not in columns.replace("{COMMON}", "") else {UNKNOWN}
    return found


def parts(text: str) -> Iterator[str]:
    """The assignments of a SET clause."""
    depth, begin, place = 0, 0, 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth < 0 or (depth == 0 and ENDS.match(text, place)):
            break
        if char == "," and depth == 0:
            yield text[begin:place]
            begin = place + 1
    else:
        place = len(text)
    yield text[begin:place]


def writers() -> dict[Path, set[str]]:
    return {path: columns for path in FILES if (columns := {one for text in texts(path) for one in written(text)})}


def test_no_other_file_writes_a_state_a_dispatch_or_the_number_of_a_try() -> None:
    elsewhere = {str(path.relative_to(ROOT)): columns for path, columns in writers().items() if path.parent != MOVES}

    assert {name: columns & (OWN | {UNKNOWN}) for name, columns in elsewhere.items() if columns & (OWN | {UNKNOWN})} == {}
    assert "scheduler/store/queueing/capacity.py" in elsewhere, "the check no longer finds the statements that change a rank alone"


def test_each_transition_names_a_statement_that_writes_a_state_and_the_other_way_around() -> None:
    statements = {path.stem for path, columns in writers().items() if path.parent == MOVES and "state" in columns}

    assert {move.statement for move in TRANSITIONS} == statements


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("update task_instance set state = 'queued' where id = %s", {"state"}),
        ("with x as (update task_instance as t\n set rank = 1,\n dispatch_id = null from y) select 1", {"rank", "dispatch_id"}),
        ("update task_instance t set rank = (select state from x where a = 1), try_number = 2", {"rank", "try_number"}),
        ("update task_instance t set (rank, state) = (1, null) where t.state is null", {"rank", "state"}),
        ("insert into task_instance (dag_run_id, state) values (1, 'queued')", {"dag_run_id", "state"}),
        ("UPDATE task_instance SET state = 'queued'", {"state"}),
        ("update task_instance set rank = 1 where state = 'queued' and try_number = 1", {"rank"}),
        ("update task_instance set {column} = %s where id = %s", {UNKNOWN}),
        ("insert into task_instance ({columns}) select 1", {UNKNOWN}),
        ("insert into task_instance_notes (state) values (1)", set()),
        ("update dag_run set state = 'queued'", set()),
        ("update {table} t set state = 'queued'", {"state"}),
    ],
)
def test_the_check_sees_what_a_statement_writes(text: str, columns: set[str]) -> None:
    assert written(text) == columns


def test_the_check_sees_a_mutant_in_a_module_and_in_a_file_of_sql(tmp_path: Path) -> None:
    module, file = tmp_path / "mutant.py", tmp_path / "mutant.sql"
    module.write_text('WHICH = "id = %s"\nSQL = f"update task_instance t set reason = null, state = null where {WHICH}"\n')
    file.write_text(
        "prepare mutant as\nupdate task_instance\n   set try_number = try_number + 1 -- as if it had failed\n where id = $1;"
    )

    assert [set().union(*map(written, texts(path))) & OWN for path in (module, file)] == [{"state"}, {"try_number"}]
