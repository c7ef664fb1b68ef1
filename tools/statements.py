"""IDs, confs and all other input are parameters of statements and items of argument lists, never text in them.

Text that is put into a statement is a constant of a module, or is listed here with the reason why it cannot come from outside.
"""

import ast
from collections.abc import Iterator

from tools.sources import check, differences, modules

VERBS = ("select", "insert", "update", "delete", "with ", "create", "alter", "drop", "grant", "set ", "prepare", "execute", "copy")
#: Calls by which a shell or an interpreter reads text.
INTERPRETERS = {"os.system", "os.popen", "eval", "subprocess.getoutput", "pickle.loads", "yaml.load"}
STARTING = {"subprocess.run", "subprocess.Popen", "subprocess.check_output", "asyncio.create_subprocess_exec"}
#: Why a text in a statement cannot come from outside: the files and expressions.
REVIEWED: dict[str, tuple[str, ...]] = {
    "a constant, or made of the names of parameters in the files of the package": (
        "pooler.py: statement", "prepared.py: ', '.join((f':{name}' for name in used))", "prepared.py: ', '.join(used)",
        "prepared.py: rows", "prepared.py: steps",
    ),
    "in a message": ("pooled.py: error",),
    "a constant": ("connections.py: ', '.join(COLUMNS)",),
    "the name of a file": ("cipher.py: os.getpid()",),
    "one of two texts in the function": ("connections.py: conflict", "roles.py: kind", "selection.py: which",),
    "advice to a person, which begins with `set`": ("cipher.py: path",),
    "each of a tuple of names in the function": (
        "files.py: table", "files.py: path", "delete.py: table", "fit.py: table", "retention.py: table",
    ),
    "one of two texts of the module": ("current.py: which", "home.py: join",),
    "each of the constants of the module": (
        "files.py: ORDERS[sort_mode]", "invariants.py: what", "invariants.py: since", "invariants.py: rows",
        "invariants.py: dag_id", "row_versions.py: table", "row_versions.py: condition", "row_versions.py: order",
        "retention.py: rows.table", "retention.py: rows.key", "retention.py: rows.keys",
        "retention.py: rows.old", "retention.py: rows.free", "retention.py: rows.object",
    ),
    "each of the constants of the modules that call it": ("fencing.py: statement",),
    "made of columns that the package names and of placeholders, see listing.Filters": (
        "dags.py: chosen.sql", "instances.py: chosen.sql", "jump.py: chosen.sql", "dags.py: filters.sql",
        "instances.py: filters.sql", "assets.py: filters.sql", "values.py: filters.sql", "runs.py: filters.sql",
    ),
    "a placeholder": ("dags.py: filters.parameter(account_id)",),
    "made of constants and of filters.conditions, see listing.Filters": ("home.py: where", "operations.py: where"),
    "made of columns that the package names and of placeholders": (
        "listing.py: filters.sql", "listing.py: where", "listing.py: chosen",
    ),
    "made of columns that the package names": ("listing.py: columns", "listing.py: order", "listing.py: _sql(direction)",),
    "made of constants of the package": (
        "listing.py: self.source_for(chosen)", "listing.py: self.source_for(filters.sql)", "listing.py: self.source",
    ),
    "a constant of the package": ("listing.py: self.columns", "listing.py: self.key",),
    "made of constants of the module": (
        "instances.py: INSTANCES.source", "dags.py: DAGS.source", "runs.py: RUNS.source", "limits.py: columns",
        "limits.py: counting.each", "limits.py: counting.most", "limits.py: counting.counts", "limits.py: counting.has",
        "limits.py: group", "limits.py: allowed(*limits)", "limits.py: parts", "limits.py: limit",
        "limits.py: COUNTING[limit].each", "limits.py: COUNTING[limit].found", "limits.py: counted(limit)",
        "why.py: _in_front(rank)",
    ),
    "a constant of the module": (
        "instances.py: INSTANCES.source_for(chosen.sql)", "values.py: XCOMS.tables", "values.py: XCOMS_WITH_VALUES.columns",
    ),
    "made of a constant": ("assets.py: key('u')", "assets.py: key('w.uri')",),
    "from the migrations of the package": (
        "migrate.py: name", "migrate.py: definition", "migrate.py: indexes[name]",
        "0002_one_trigger.py: check", "0010_rows_of_instances.py: table",
    ),
    "one of two constants of the module": ("capacity.py: rank", "why.py: rank",),
    "a constant of the module, or nothing": ("capacity.py: locking",),
    "made of constants": ("invariants.py: over(limit)",),
    "constants of the store, which the services name": ("pending_work.py: text",),
    "made of the constants of the module, see Prepared": ("prepared.py: '; '.join((one.execute for one in every))",),
    "from a .sql file of the package": ("prepared.py: self.name", "prepared.py: body",),
    "placeholders": ("prepared.py: ', '.join(values)",),
    "a constant of the function": ("lose.py: which",),
    "each of a tuple of conditions in the function": ("fit.py: of_task",),
}  # fmt: skip


def statements(tree: ast.AST) -> Iterator[ast.JoinedStr]:
    """f-strings inside functions that are statements or clauses. Statements built at import contain no input."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {id(inner): inner for function in functions for inner in ast.walk(function)}.values():
        if isinstance(node, ast.JoinedStr):
            start = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant)).strip().lower()
            first = node.values[0]
            composed = isinstance(first, ast.FormattedValue) and ast.unparse(first.value).isupper()
            if start.startswith(VERBS) or composed:
                yield node


def is_constant(name: str) -> bool:
    """CONSTANT or module.CONSTANT, also with text put into it, or the SQL of such a set of states or prepared statement."""
    name = name.partition(".or_none('")[0].partition(".format('")[0]
    return name.removesuffix(".sql").removesuffix(".execute").rpartition(".")[2].strip("_").isupper()


@check
def statements_hold_constants_and_parameters_alone() -> Iterator[str]:
    """Each text in a statement of the store is a constant, or reviewed."""
    found = {
        f"{path.rpartition('/')[2]}: {ast.unparse(part.value)}"
        for path, tree in modules("scheduler/store").items()
        for statement in statements(tree)
        for part in statement.values
        if isinstance(part, ast.FormattedValue)
    }
    reviewed = {one for listed in REVIEWED.values() for one in listed}
    strange = {one for one in found if one in reviewed or not is_constant(one.partition(": ")[2])}
    yield from differences(strange, reviewed, "make it a parameter, or give the reason in tools/statements.py")


@check
def no_statement_is_put_together_by_percent() -> Iterator[str]:
    """Statements have parameters."""
    for path, tree in modules("scheduler/store").items():
        for node in ast.walk(tree):
            left = node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) else None
            if isinstance(left, ast.Constant) and str(left.value).strip().lower().startswith(VERBS):
                yield f"{path}:{left.lineno}: {ast.unparse(left)}"


@check
def no_shell_parses_our_arguments() -> Iterator[str]:
    """Programs get lists of arguments."""
    for path, tree in modules("scheduler", "workers").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in INTERPRETERS or any(keyword.arg == "shell" for keyword in node.keywords):
                    yield f"{path}:{node.lineno}: {name} reads text as code"
                if name in STARTING and not isinstance(node.args[0], ast.List | ast.Name):
                    yield f"{path}:{node.lineno}: the arguments of {name} are no list"
