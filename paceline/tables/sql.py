"""SQL as text: its statements, what they read and write by table and column, and its parameters. Nothing here runs it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from paceline.exceptions import PacelineError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr

#: The name of the catalog that a full name of a table may start with.
CATALOG = "lake"
#: What some editors begin a file with.
BYTE_ORDER_MARK = "\ufeff"
#: Columns whose sources are looked for, in one statement.
MOST_COLUMNS = 300
_OUTPUT, _COMMENT = re.compile(r"\{\{.*?\}\}", re.DOTALL), re.compile(r"\{#.*?#\}", re.DOTALL)
#: A template that begins a statement, after blanks and comments.
_LEADING = re.compile(r"(\A\s*|;\s*|(?:\A|;|\n)\s*(?:--[^\n]*\n\s*|/\*.*?\*/\s*)+)(\{\{.*?\}\})", re.DOTALL)
#: What stands for a template: a letter, and underscores up to the length of the template.
_STAND_IN = re.compile(r"j_{3,}")
#: What the tokenizer of sqlglot says of a text that does not end: the mark, the line, and the place at which it starts.
_OPEN = re.compile(r"Missing (\S+) from \d+:(\d+)")
#: What a subscript may follow.
_WORD = re.compile(r"""(?:\w+|[\])"'])\Z""")
#: How the parser of sqlglot names the end.
_TOKEN = re.compile(r"<Token token_type: TokenType\.SENTINEL.*?>(?=$|\W)")
#: A parameter as psycopg2 has it.
_PYFORMAT = re.compile(r"%\(\w+\)s")
#: By table and column: the tables and columns that the value comes from.
Sources = Mapping[str, Mapping[str, list[tuple[str, str]]]]


class SqlError(PacelineError):
    """The SQL of a task is not valid. `line` counts from 1 in the text."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True)
class Statement:
    """One statement: its text, its tree, the table that it writes, and the other tables that it reads."""

    text: str
    tree: Expr
    target: str | None
    reads: tuple[str, ...]
    #: The names of its parameters.
    parameters: frozenset[str] = field(default_factory=frozenset)

    @property
    def writes(self) -> tuple[str, ...]:
        """The tables of the catalog that it changes: DROP TABLE may name several."""
        from sqlglot import exp

        if self.target is None:
            return ()
        return (self.target, *self.reads) if isinstance(self.tree, exp.Drop) else (self.target,)

    @property
    def is_query(self) -> bool:
        """Whether it returns rows and changes nothing."""
        from sqlglot import exp

        return isinstance(self.tree, exp.Query)


@dataclass(frozen=True)
class Script:
    """The statements of a text, with the tables that they write, and those that they read and do not write."""

    statements: tuple[Statement, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(name for one in self.statements for name in one.parameters)


def without_templates(text: str, stand_in: Callable[[str], str] | None = None) -> str | None:
    """The text with a name of equal length in place of each `{{ }}`. None with `{% %}`, as only its result is SQL."""
    if "{%" in text:
        return None
    put = stand_in or _name_for
    return _OUTPUT.sub(lambda found: put(found[0]), _COMMENT.sub(lambda found: _blank(found[0]), text))


def _name_for(template: str) -> str:
    first, newline, rest = template.partition("\n")
    return "j" + "_" * (max(len(first), 4) - 1) + newline + _blank(rest)


def _number_for(template: str) -> str:
    first, newline, rest = template.partition("\n")
    return "1" * len(first) + newline + _blank(rest)


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def parse_template(text: str, dialect: str) -> Script | None:
    """The script of a text with `{{ }}`, as far as it is known; None with `{% %}`. SqlError if it cannot be valid.

    A name stands for each template. If that is not valid, a template that begins a statement is left out, then a number stands for
    each other one, then all are left out.
    """
    first = without_templates(text)
    if first is None:
        return None
    try:
        return parse(first, dialect)
    except SqlError:
        begun = _LEADING.sub(lambda found: f"{found[1]}{_blank(found[2])}", text)
        others = [without_templates(begun), without_templates(begun, _number_for), without_templates(text, _blank)]
        for other in others if _OUTPUT.search(text) else []:
            with suppress(SqlError):
                return parse(other or "", dialect)
        raise


def line_of(text: str, parameter: str) -> int:
    """The line in which a parameter is first named, as `:name` or `$name`."""
    found = re.search(rf"[:$]{re.escape(parameter)}\b", text)
    return 1 if found is None else text.count("\n", 0, found.start()) + 1


def parse(text: str, dialect: str) -> Script:
    """The script of a text in a dialect of sqlglot. SqlError with the line if it is not valid, or has no statement.

    A parameter is `:name`; for DuckDB, the statements have `$name` in its place, which has the same length.
    """
    from sqlglot import Dialect, exp

    text = text.removeprefix(BYTE_ORDER_MARK)
    tokens = _tokens(text, dialect)
    if dialect == "duckdb":
        text, tokens = _with_dollars(text, tokens)
    with _quiet(), _as_sql_error(text):
        parsed = Dialect.get_or_raise(dialect).parser().parse(tokens, text)
    texts = list(_texts(text, tokens))
    trees = [tree for tree in parsed if tree is not None and not isinstance(tree, exp.Semicolon)]
    if not trees:
        raise SqlError("it has no statement.", 1)
    elsewhere = frozenset(_attached(trees))
    statements = tuple(_statement(tree, *place, elsewhere) for tree, place in zip(trees, texts, strict=False))
    writes = dict.fromkeys(name for one in statements for name in one.writes)
    reads = dict.fromkeys(name for one in statements for name in one.reads if name not in writes)
    return Script(statements, tuple(reads), tuple(writes))


def split(text: str, dialect: str) -> list[str]:
    """The statements of a text, which need not be known to sqlglot. SqlError for an open quote, or without a statement."""
    found = [one for one, _ in _texts(text, _tokens(text, dialect))]
    if not found:
        raise SqlError("it has no statement.", 1)
    return found


def _with_dollars(text: str, tokens: list[Any]) -> tuple[str, list[Any]]:
    """The text and its tokens with `$name` in place of each `:name`. Of `$a,$b`, the tokenizer of sqlglot would make one text."""
    from sqlglot import Token, TokenType

    dollars = dict[int, Any]()
    for colon, _ in _places(text, tokens):
        dollars[colon.start] = Token(TokenType.PARAMETER, "$", colon.line, colon.col, colon.start, colon.end)
    for start in dollars:
        text = f"{text[:start]}${text[start + 1 :]}"
    return text, [dollars.get(one.start, one) for one in tokens]


def _places(text: str, tokens: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The colon and the name of each parameter `:name`: it follows a blank, a comma, a bracket or an operator.

    In `list[:name]`, the colon is that of a slice; in `[:name]` and `array[:name]`, it is that of a parameter.
    """
    from sqlglot import TokenType

    for colon, name in pairwise(tokens):
        if colon.token_type is not TokenType.COLON or name.start != colon.end + 1 or not text[name.start].isidentifier():
            continue
        before = text[colon.start - 1 : colon.start]
        if not before or before.isspace() or before in "(,=<>+-*/%|~&^!@#?;" or (before == "[" and _is_list(text, colon.start - 1)):
            yield colon, name


def _is_list(text: str, bracket: int) -> bool:
    """Whether a bracket begins a list, and is no subscript of what stands before it."""
    before = _WORD.search(text[:bracket])
    return before is None or before[0].lower() == "array"


def _tokens(text: str, dialect: str) -> list[Any]:
    from sqlglot import tokenize

    with _as_sql_error(text):
        return list(tokenize(text, read=dialect))


@contextmanager
def _as_sql_error(text: str) -> Iterator[None]:
    from sqlglot.errors import ParseError, SqlglotError

    try:
        yield
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        near = f"{first.get('start_context') or ''}{first.get('highlight') or ''}".splitlines()[-1:] or [""]
        problem = _TOKEN.sub("the end of the statement", str(first.get("description") or error)).rstrip(".")
        raise SqlError(f"{problem}, at {near[0].strip()[-60:]!r}.", first.get("line") or 1) from None
    except SqlglotError as error:
        open_at = _OPEN.search(str(error.__cause__))
        if open_at is None:
            raise SqlError("something is not closed, such as a comment or a text.", text.count("\n") + 1) from None
        line = text.count("\n", 0, int(open_at[2])) + 1
        raise SqlError(f"there is no closing {open_at[1]}.", line) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning about a statement that sqlglot only knows by its first word, such as CALL; it is still run."""
    log = logging.getLogger("sqlglot")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _texts(text: str, tokens: list[Any]) -> Iterator[tuple[str, int]]:
    """The text of each statement that is not empty, and its first line."""
    from sqlglot import TokenType

    group: list[Any] = []
    for token in [*tokens, None]:
        if token is not None and token.token_type is not TokenType.SEMICOLON:
            group.append(token)
        elif group:
            yield text[group[0].start : group[-1].end + 1], group[0].line
            group = []


def _attached(trees: Iterable[Expr]) -> Iterator[str]:
    """The names of the databases that statements attach, in lower case: their tables are not of the catalog."""
    from sqlglot import exp

    for tree in trees:
        if isinstance(tree, exp.Attach):
            yield (tree.this.alias or PurePath(tree.this.name).stem).lower()


def _statement(tree: Expr, text: str, line: int, elsewhere: frozenset[str] = frozenset()) -> Statement:
    from sqlglot import exp

    if isinstance(tree, exp.Column | exp.Alias | exp.Literal | exp.Binary | exp.Func | exp.Identifier):
        raise SqlError(f"{text.strip()[:60]!r} is not a statement.", line)
    target = _target(tree)
    names = dict.fromkeys(_name(table, elsewhere) for table in tree.find_all(exp.Table) if table is not target)
    own = None if target is None else _name(target, elsewhere)
    return Statement(text, tree, own, tuple(name for name in names if name is not None), parameters_of(tree))


def parameters_of(tree: Any) -> frozenset[str]:
    """The names of the parameters in a statement, or in a part of one."""
    from sqlglot import exp

    return frozenset(one.name for one in tree.find_all(exp.Placeholder, exp.Parameter) if one.name)


def _target(tree: Expr) -> Any:
    """The node of the table that a statement changes."""
    from sqlglot import exp

    written = (exp.Insert, exp.Create, exp.Merge, exp.Delete, exp.Update, exp.Drop, exp.Alter, exp.TruncateTable)
    if not isinstance(tree, written) or tree.args.get("kind") not in (None, "TABLE"):
        return None
    node = tree.this if tree.args.get("this") else next(iter(tree.args.get("expressions") or tree.args.get("tables") or []), None)
    return node.this if isinstance(node, exp.Schema) else node


def _name(table: Any, elsewhere: frozenset[str] = frozenset()) -> str | None:
    """The name of a table with its namespace; None for the name of a subquery, a function, or a part that a template has.

    None also for a table in one of the databases `elsewhere`.
    """
    from sqlglot import exp

    if not isinstance(table, exp.Table) or not all(isinstance(part, exp.Identifier) for part in table.parts):
        return None
    parts = [part.name for part in table.parts]
    if len(parts) > 2 and parts[0].lower() == CATALOG:
        parts = parts[1:]
    if parts[0].lower() in elsewhere:
        return None
    return None if len(parts) < 2 or any(_STAND_IN.search(part) for part in parts) else ".".join(parts)


def names_in(trees: Iterable[Expr]) -> set[str] | None:
    """In lower case, all names in statements, among which their columns are; None if something else may stand for columns.

    That is a `*`, the name of a table, a template, a list of names for the columns of a table, or what sqlglot does not know.
    """
    found: set[str] = set()
    for tree in trees:
        names = _names_in(tree)
        if names is None:
            return None
        found |= names
    return found


def _names_in(tree: Expr) -> set[str] | None:
    from sqlglot import exp

    tables = {name.alias_or_name.lower() for name in tree.find_all(exp.Table)}
    names = {name.name.lower() for name in tree.find_all(exp.Identifier)}
    unclear = (
        tree.find(exp.Columns, exp.Command, exp.Describe, exp.Pivot, exp.PositionalColumn, exp.Summarize) is not None
        or any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star))
        or any(join.args.get("method") == "NATURAL" for join in tree.find_all(exp.Join))
        or any(column.name.lower() in tables for column in tree.find_all(exp.Column))
        or any(alias.columns and isinstance(alias.parent, exp.Table) for alias in tree.find_all(exp.TableAlias))
        or any(_STAND_IN.search(name) for name in names)
    )
    return None if unclear else names


def names_beside(statements: Iterable[Statement], table: str) -> set[str] | None:
    """All names in those statements that read a table without a namespace, as `names_in` has them; empty if none reads it."""
    from sqlglot import exp

    return names_in(
        one.tree
        for one in statements
        if any(not name.db and name.name.lower() == table.lower() for name in one.tree.find_all(exp.Table))
    )


def columns(script: Script, dialect: str) -> Sources:
    """What each column that a query writes comes from, as far as the text alone shows it: not through `*`."""
    from sqlglot import exp

    found: dict[str, dict[str, list[tuple[str, str]]]] = {}
    for one in script.statements:
        if one.target is not None and isinstance(one.tree, exp.Insert | exp.Create):
            for column, sources in _columns(one.tree, dialect):
                known = found.setdefault(one.target, {}).setdefault(column, [])
                # In one order, because they are part of the version of a DAG.
                known[:] = sorted({*known, *sources})
    return found


def _columns(tree: Any, dialect: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage
    from sqlglot.optimizer.scope import build_scope

    query = query_of(tree)
    if query is None:
        return
    try:
        qualified = _qualified(query, dialect)
        scope = build_scope(qualified)
    except SqlglotError:
        return
    names = [one.alias_or_name for one in qualified.selects][:MOST_COLUMNS]
    given = [one.name for one in tree.this.expressions] if isinstance(tree.this, exp.Schema) else names
    for name, written in zip(names, given, strict=False):
        if not name or name == "*" or _STAND_IN.search(name):
            continue
        with suppress(SqlglotError, ValueError):
            nodes = list(lineage(name, qualified, schema={}, dialect=dialect, scope=scope).walk())
            sources = [(_name(node.expression), node.name.rpartition(".")[2].strip('`"')) for node in nodes if not node.downstream]
            yield written, [(table, column) for table, column in sources if table is not None and column != "*"]


def _qualified(query: Any, dialect: str) -> Any:
    """A query, which changes, with the table of each column that the text alone shows, without conditions. SqlglotError.

    No value comes from a condition. A column without its table in a subquery may be of the query around it, and then sqlglot
    resolves no column at all: a value of such a subquery has no source, and the other columns have theirs.
    """
    from sqlglot import exp
    from sqlglot.errors import OptimizeError
    from sqlglot.optimizer.qualify import qualify

    for select in list(query.find_all(exp.Select)):
        for condition in ("where", "having", "qualify"):
            select.set(condition, None)
    options: dict[str, Any] = {"dialect": dialect, "validate_qualify_columns": False, "identify": False}
    try:
        return qualify(query.copy(), **options)
    except OptimizeError:
        values = [column for select in query.find_all(exp.Select) for column in select.expressions]
        for subquery in [one for value in values for one in value.find_all(exp.Query)]:
            subquery.replace(exp.Null())
        return qualify(query, **options)


def query_of(tree: Any) -> Any:
    """The query of INSERT and CREATE TABLE AS, with the WITH before it; None without one."""
    from sqlglot import exp

    query = tree.args.get("expression")
    if not isinstance(query, exp.Query | exp.Values):
        return None
    query = query.copy()
    if before := tree.args.get("with_"):
        query.set("with_", before.copy())
    return query


def bound(text: str, names: Collection[str]) -> tuple[str, frozenset[str]]:
    """A text for PostgreSQL with `%(name)s` in place of each `:name`, and the names that it uses.

    A colon in a string, in a comment or in `::` stays. A text that has `%(name)s` already stays as it is.
    """
    if given := _PYFORMAT.findall(text):
        return text, frozenset(one[2:-2] for one in given)
    parts, used, place = list[str](), set[str](), 0
    for colon, name in _places(text, _tokens(text, "postgres")):
        word = text[name.start : name.end + 1]
        if word in names:
            parts += [text[place : colon.start].replace("%", "%%"), f"%({word})s"]
            used.add(word)
            place = name.end + 1
    return ("".join([*parts, text[place:].replace("%", "%%")]), frozenset(used)) if used else (text, frozenset())
