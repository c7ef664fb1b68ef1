"""IDs, confs and all other input are parameters of statements and items of argument lists, never text in them.

Text that is put into a statement is a constant of a module, or is listed here with the reason why it cannot come from outside.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORE = sorted((ROOT / "scheduler" / "store").rglob("*.py"))
OURS = sorted([*(ROOT / "scheduler").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
VERBS = ("select", "insert", "update", "delete", "with ", "create", "alter", "drop", "grant", "set ", "prepare", "execute", "copy")

#: File and expression: why it is no text from outside.
REVIEWED: dict[tuple[str, str], str] = {
    ("connections.py", "', '.join(COLUMNS)"): "a constant",
    ("cipher.py", "os.getpid()"): "the name of a file",
    ("connections.py", "conflict"): "one of two texts in the function",
    ("database.py", "'' if settings.core.record_events else ' -c paceline.events=off'"): "one of two texts",
    ("database.py", "timeout_ms"): "a number",
    ("cipher.py", "path"): "advice to a person, which begins with `set`",
    ("files.py", "table"): "each of a tuple of names in the function",
    ("files.py", "path"): "each of a tuple of names in the function",
    ("files.py", "which"): "one of two texts of the module",
    ("files.py", "ORDERS[sort_mode]"): "each of the constants of the module",
    ("fencing.py", "statement"): "each of the constants of the modules that call it",
    ("dags.py", "chosen.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    ("instances.py", "chosen.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    ("dags.py", "filters.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    ("dags.py", "filters.parameter(account_id)"): "a placeholder",
    ("home.py", "where"): "made of constants and of filters.conditions, see listing.Filters",
    ("home.py", "join"): "one of two texts of the module",
    ("instances.py", "filters.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    ("listing.py", "filters.sql"): "made of columns that the package names and of placeholders",
    ("listing.py", "where"): "made of columns that the package names and of placeholders",
    ("listing.py", "columns"): "made of columns that the package names",
    ("listing.py", "self.source_for(chosen)"): "made of constants of the package",
    ("listing.py", "self.source_for(filters.sql)"): "made of constants of the package",
    ("listing.py", "self.source"): "made of constants of the package",
    ("listing.py", "order"): "made of columns that the package names",
    ("listing.py", "self.columns"): "a constant of the package",
    ("listing.py", "self.key"): "a constant of the package",
    ("listing.py", "chosen"): "made of columns that the package names and of placeholders",
    ("instances.py", "INSTANCES.source"): "made of constants of the module",
    ("instances.py", "INSTANCES.tables"): "a constant of the module",
    ("dags.py", "DAGS.source"): "made of constants of the module",
    ("runs.py", "RUNS.source"): "made of constants of the module",
    ("xcoms.py", "XCOMS.tables"): "a constant of the module",
    ("xcoms.py", "XCOMS_WITH_VALUES.columns"): "a constant of the module",
    ("listing.py", "_sql(direction)"): "made of columns that the package names",
    ("assets.py", "filters.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    ("xcoms.py", "filters.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    ("assets.py", "key('u')"): "made of a constant",
    ("assets.py", "key('w.uri')"): "made of a constant",
    ("roles.py", "kind"): "one of two texts in the function",
    ("edits.py", "column"): "one of two texts of the module",
    ("edits.py", "table"): "one of two texts of the module",
    ("runs.py", "filters.sql"): "made of columns that the package names and of placeholders, see listing.Filters",
    **{("concurrent_indexes.py", name): "from the migrations of the package" for name in ("name", "definition", "indexes[name]")},
    ("capacity.py", "rank"): "one of two constants of the module",
    ("capacity.py", "locking"): "a constant of the module, or nothing",
    ("limits.py", "columns"): "made of constants of the module",
    ("limits.py", "counting.each"): "made of constants of the module",
    ("limits.py", "counting.most"): "made of constants of the module",
    ("limits.py", "counting.counts"): "made of constants of the module",
    ("limits.py", "counting.has"): "made of constants of the module",
    ("limits.py", "group"): "made of constants of the module",
    ("limits.py", "allowed(*limits)"): "made of constants of the module",
    ("limits.py", "parts"): "made of constants of the module",
    ("limits.py", "limit"): "made of constants of the module",
    ("limits.py", "COUNTING[limit].each"): "made of constants of the module",
    ("limits.py", "COUNTING[limit].found"): "made of constants of the module",
    ("limits.py", "counted(limit)"): "made of constants of the module",
    **{("invariants.py", name): "each of the constants of the module" for name in ("what", "since", "rows", "dag_id")},
    ("invariants.py", "over(limit)"): "made of constants",
    ("pending_work.py", "asked"): "constants of the store, which the services name",
    ("prepared.py", "self.name"): "from a .sql file of the package",
    ("prepared.py", "body"): "from a .sql file of the package",
    ("prepared.py", "', '.join(values)"): "placeholders",
    ("why.py", "_in_front(rank)"): "made of constants of the module",
    ("why.py", "rank"): "one of two constants of the module",
    ("delete.py", "table"): "each of a tuple of names in the function",
    ("lose.py", "which"): "a constant of the function",
    ("selection.py", "which"): "one of two texts in the function",
    ("fit.py", "table"): "each of a tuple of names in the function",
    ("fit.py", "of_task"): "each of a tuple of conditions in the function",
    **{("row_versions.py", name): "each of the constants of the module" for name in ("table", "condition", "order")},
    ("retention.py", "rows.table"): "each of the constants of the module",
    ("retention.py", "rows.key"): "each of the constants of the module",
    ("retention.py", "rows.old"): "each of the constants of the module",
    ("retention.py", "rows.free"): "each of the constants of the module",
}


def statements(tree: ast.AST) -> Iterator[ast.JoinedStr]:
    """f-strings inside functions that are statements or clauses. Statements built at import contain no input."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {id(inner): inner for function in functions for inner in ast.walk(function)}.values():
        if isinstance(node, ast.JoinedStr):
            start = "".join(part.value for part in node.values if isinstance(part, ast.Constant)).strip().lower()
            first = node.values[0]
            composed = isinstance(first, ast.FormattedValue) and ast.unparse(first.value).isupper()
            if start.startswith(VERBS) or composed:
                yield node


def is_constant(name: str) -> bool:
    """CONSTANT or module.CONSTANT, also with text put into it, or the SQL of such a set of states or prepared statement."""
    name = name.partition(".or_none('")[0].partition(".format('")[0]
    return name.removesuffix(".sql").removesuffix(".execute").rpartition(".")[2].strip("_").isupper()


def interpolations() -> Iterator[tuple[str, str, int]]:
    for path in STORE:
        for statement in statements(ast.parse(path.read_text(encoding="utf-8"))):
            for part in statement.values:
                if isinstance(part, ast.FormattedValue):
                    yield path.name, ast.unparse(part.value), statement.lineno


def test_statements_hold_constants_and_parameters_alone() -> None:
    found = list(interpolations())
    assert len(found) > 20, "the check no longer finds the statements"

    strange = [one for one in found if not is_constant(one[1]) and one[:2] not in REVIEWED]

    assert strange == []


def test_reviewed_places_still_exist() -> None:
    found = {interpolation[:2] for interpolation in interpolations()}

    assert set(REVIEWED) - found == set()


def test_no_statement_is_put_together_by_percent_or_plus() -> None:
    strange = []
    for path in STORE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                left = node.left
                if isinstance(left, ast.Constant) and isinstance(left.value, str) and left.value.strip().lower().startswith(VERBS):
                    strange.append((path.name, node.lineno))
    assert strange == []


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_shell_parses_our_arguments(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        assert name not in {"os.system", "os.popen", "eval", "subprocess.getoutput", "pickle.loads", "yaml.load"}, (
            path,
            node.lineno,
        )
        assert not any(keyword.arg == "shell" for keyword in node.keywords), (path, node.lineno)
        if name in {"subprocess.run", "subprocess.Popen", "subprocess.check_output", "asyncio.create_subprocess_exec"}:
            assert isinstance(node.args[0], ast.List | ast.Name), f"{path}:{node.lineno}: its arguments are no list"
