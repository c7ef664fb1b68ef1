"""Converts the rows of a result to dataclasses by column name, so that no code depends on the order of columns."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from operator import itemgetter
from typing import Any, Protocol, TypeVar, get_type_hints

from sqlalchemy import Connection, CursorResult

T = TypeVar("T")
Parameters = Sequence[Any] | Mapping[str, Any]


class Cursor(Protocol):
    """What is used of a psycopg2 cursor with a result."""

    @property
    def description(self) -> Sequence[Any] | None: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Reader(Protocol):
    """The connection of a worker, or of an engine as EngineReader."""

    def objects(self, kind: type[T], statement: str, parameters: Parameters) -> list[T]:
        """The rows of a statement as dataclasses."""

    def value(self, statement: str, parameters: Parameters, default: Any = None) -> Any:
        """The one value of a statement, `default` without a row."""


@dataclass(frozen=True, slots=True)
class EngineReader:
    """Reads over a connection of an engine, for functions that workers call too."""

    connection: Connection

    def objects(self, kind: type[T], statement: str, parameters: Parameters) -> list[T]:
        return of_result(kind, self._run(statement, parameters))

    def value(self, statement: str, parameters: Parameters, default: Any = None) -> Any:
        return next((value for (value,) in self._run(statement, parameters)), default)

    def _run(self, statement: str, parameters: Parameters) -> CursorResult[Any]:
        # SQLAlchemy would take a list for the parameters of several executions.
        return self.connection.exec_driver_sql(
            statement, dict(parameters) if isinstance(parameters, Mapping) else tuple(parameters)
        )


def of_cursor(kind: type[T], cursor: Cursor) -> list[T]:
    """All rows of a psycopg2 cursor; see `objects`."""
    return objects(kind, [column.name for column in cursor.description or ()], cursor.fetchall())


def of_result(kind: type[T], result: CursorResult[Any]) -> list[T]:
    """All rows of an SQLAlchemy result; see `objects`."""
    return objects(kind, list(result.keys()), result)


def first(kind: type[T], result: CursorResult[Any]) -> T | None:
    """The first row of an SQLAlchemy result; None if it has none. See `objects`."""
    return next(iter(of_result(kind, result)), None)


def dicts(result: CursorResult[Any]) -> list[dict[str, Any]]:
    """All rows of an SQLAlchemy result as dicts, for --json."""
    return [dict(row) for row in result.mappings()]


def first_dict(result: CursorResult[Any]) -> dict[str, Any] | None:
    """The first row of an SQLAlchemy result as a dict; None if it has none."""
    row = result.mappings().first()
    return None if row is None else dict(row)


def objects(kind: type[T], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[T]:
    """Each row as an object of `kind`. TypeError if a field has no column or several.

    Text becomes an enum member if the field is an enum; NULL stays None.
    """
    make: Callable[[Sequence[Any]], T] = _maker(kind, tuple(columns))  # type: ignore[arg-type]  # a class is hashable
    return [make(row) for row in rows]


@functools.cache
def _maker(kind: type[T], columns: tuple[str, ...]) -> Callable[[Sequence[Any]], T]:
    wanted = [one for one in fields(kind) if one.init]  # type: ignore[arg-type]  # a dataclass
    names = [one.name for one in wanted if one.name in columns or (one.default is MISSING and one.default_factory is MISSING)]
    wrong = [name for name in names if columns.count(name) != 1]
    if wrong:
        raise TypeError(f"A row with the columns {', '.join(columns)} is no {kind.__name__}: {', '.join(wrong)}.")
    places = [columns.index(name) for name in names]
    hints = get_type_hints(kind)
    enums = {name: hints[name] for name in names if isinstance(hints[name], type) and issubclass(hints[name], Enum)}
    members = [(names.index(name), enum, {one.value: one for one in enum}) for name, enum in enums.items()]
    pick = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
    # Arguments by position are twice as fast.
    if names == [one.name for one in wanted if not one.kw_only][: len(names)]:
        build: Callable[[Sequence[Any]], T] = lambda values: kind(*values)  # noqa: E731
    else:
        build = lambda values: kind(**dict(zip(names, values, strict=True)))  # noqa: E731
    if not members:
        return lambda row: build(pick(row))

    def make(row: Sequence[Any]) -> T:
        values = list(pick(row))
        for place, enum, by_value in members:
            if values[place] is not None:
                values[place] = by_value.get(values[place]) or enum(values[place])
        return build(values)

    return make


def array_literal(values: Iterable[str | int | None]) -> str:
    """The literal of a one-dimensional array, to send as one parameter and to cast to the type of its elements."""
    return "{" + ",".join(["NULL" if one is None else str(one) if isinstance(one, int) else _quoted(one) for one in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
