"""Views of a catalog for DuckDB: the SQL of each in its dialect, with the full names of the tables and views that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.exceptions import PacelineError
from paceline.tables import sql

if TYPE_CHECKING:
    from pyiceberg.view import View

#: The property in which Spark keeps the names that the columns have in the query of a view, if the view has others.
_QUERY_COLUMNS = "spark.query-column-names"


@dataclass(frozen=True)
class ViewQuery:
    """The query of a view in the dialect of DuckDB, and the names and types of its columns."""

    name: str
    tree: Any
    text: str
    reads: tuple[str, ...]
    #: The name in the query, the name in the view, and the type of Iceberg. Without names in the query, columns go by position.
    columns: tuple[tuple[str | None, str, str], ...]


class Found(NamedTuple):
    """The tables, and the views, each after those that it reads."""

    tables: list[str]
    views: list[ViewQuery]


def found(catalog: Any, names: Iterable[str]) -> Found:
    """The tables and views among these names, and those that the views read. PacelineError.

    A name that the catalog does not know is left out, unless a view reads it.
    """
    tables: dict[str, None] = {}
    views: dict[str, ViewQuery] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise PacelineError(f"The view {name} reads itself: {' -> '.join((*path[path.index(name) :], name))}.")
        if name in tables or name in views:
            return
        if catalog.table_exists(name):
            tables[name] = None
        elif _view_exists(catalog, name):
            query = _query(name, catalog.load_view(name))
            for other in query.reads:
                visit(other, (*path, name))
            views[name] = query
        elif path:
            raise PacelineError(f"The view {path[-1]} reads {name}, which is no table or view of the catalog.")

    for name in names:
        visit(name, ())
    return Found(list(tables), list(views.values()))


def _view_exists(catalog: Any, name: str) -> bool:
    try:
        return bool(catalog.view_exists(name))
    except NotImplementedError:  # the catalog has no views
        return False


def _query(name: str, view: View) -> ViewQuery:
    """The query of the current version: that for DuckDB if there is one, else that of Spark in its dialect."""
    from sqlglot import ErrorLevel, exp, parse_one
    from sqlglot.errors import SqlglotError

    version = view.current_version()
    texts = {one.root.dialect.lower(): one.root.sql for one in version.representations}
    dialect = next((one for one in ("duckdb", "spark") if one in texts), None)
    if dialect is None:
        raise _unreadable(name, f"it has SQL for {', '.join(sorted(texts))} alone")
    try:
        tree = parse_one(texts[dialect], read=dialect)
        if not isinstance(tree, exp.Query):
            raise _unreadable(name, "its SQL is no query")
        reads = dict.fromkeys(_named(name, tree, version))
        text = tree.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise _unreadable(name, str(error).partition("\n")[0].rstrip(".")) from None
    return ViewQuery(name, tree, text, tuple(reads), tuple(_columns(view)))


def _named(view: str, tree: Any, version: Any) -> Iterator[str]:
    """The full name of each table and view in a query, which they get in the query too."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    for scope in traverse_scope(tree):
        for table in scope.tables:
            if not all(isinstance(part, exp.Identifier) for part in table.parts) or _is_local(table, scope):
                continue
            parts = [part.name for part in table.parts]
            catalog = version.default_catalog or sql.CATALOG
            if len(parts) == 1:
                parts = [*version.default_namespace, *parts]
            elif len(parts) > 2 and parts[0].lower() == sql.CATALOG:
                catalog, parts = sql.CATALOG, parts[1:]
            if catalog.lower() != sql.CATALOG or len(parts) < 2:
                raise _unreadable(view, f"it reads {'.'.join(parts)} of the catalog {catalog}")
            namespace = ".".join(parts[:-1])
            for key, value in (("this", parts[-1]), ("db", namespace), ("catalog", None)):
                table.set(key, None if value is None else exp.to_identifier(value, quoted=True))
            yield f"{namespace}.{parts[-1]}"


def _is_local(table: Any, scope: Any) -> bool:
    """Whether the name of a table is that of a WITH before it."""
    return not table.db and table.name in scope.cte_sources


def _columns(view: View) -> Iterator[tuple[str | None, str, str]]:
    fields = view.schema().fields
    given: list[str | None] = [*(view.metadata.properties.get(_QUERY_COLUMNS) or "").split(",")]
    names = given if len(given) == len(fields) and all(given) and len({*given}) == len(given) else [None] * len(fields)
    for name, one in zip(names, fields, strict=True):
        yield name, one.name, str(one.field_type)


def _unreadable(name: str, reason: str) -> PacelineError:
    return PacelineError(
        f"DuckDB cannot read the view {name}: {reason}; use engine='spark', or give the view SQL for the dialect duckdb."
    )


def refused(name: str, reason: str) -> PacelineError:
    """The error for a view whose query DuckDB refuses."""
    return _unreadable(name, reason.partition("\n")[0].rstrip("."))
