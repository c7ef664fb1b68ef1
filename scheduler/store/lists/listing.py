"""One page of a list: filters, order, offset or cursor, and the number of all entries.

INVARIANT: names of columns come from this package only. Values from a client are parameters, or keys of an `orders` table.
"""

import base64
import binascii
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, ProgrammingError

from scheduler.exceptions import UsageError

Row = dict[str, Any]
#: Beside a cursor, more entries than this are not counted.
MOST_COUNTED = 10_000
#: The text for any value, as in Airflow.
ANY = "~"


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: `limit` entries after `offset`, or after the place that `cursor` names ("" is the start)."""

    limit: int = 50
    offset: int = 0
    order_by: tuple[str, ...] = ()
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Entries:
    """A page of a list. `total` counts all entries; beside a cursor, at most `total_limit` of them."""

    rows: list[Row]
    total: int
    total_limit: int | None = None
    next_cursor: str | None = None
    previous_cursor: str | None = None


@dataclass(slots=True)
class Filters:
    """Conditions of a list, all of which must hold, on columns that `columns` names. A value of None is no condition."""

    columns: Mapping[str, str]
    conditions: list[str] = field(default_factory=list)
    parameters: Row = field(default_factory=dict)

    def equals(self, name: str, value: Any) -> "Filters":
        return self if value is None else self.where(f"{self.columns[name]} = {self.parameter(value)}")

    def one_of(self, name: str, values: Collection[Any] | None, *, null: str | None = None) -> "Filters":
        """`null` is the value that stands for NULL."""
        if not values or ANY in values:
            return self
        known = [value for value in values if value is not None and value != null]
        condition = f"{self.columns[name]} = any({self.parameter(known)})"
        return self.where(f"({condition} or {self.columns[name]} is null)" if len(known) < len(values) else condition)

    def none_of(self, name: str, values: Collection[Any] | None) -> "Filters":
        return self.where(f"{self.columns[name]} <> all({self.parameter(list(values))})") if values else self

    def is_set(self, name: str) -> "Filters":
        return self.where(f"{self.columns[name]} is not null")

    def matches(self, name: str, pattern: str | None) -> "Filters":
        """An SQL LIKE pattern that ignores case, or several with | between them; % is added on both sides if it has none."""
        if not pattern or pattern == ANY:
            return self
        one_of = [one.strip() for one in pattern.split("|") if one.strip()]
        patterns = [one if "%" in one else f"%{one}%" for one in one_of]
        return self.where(f"{self.columns[name]} ilike any({self.parameter(patterns)})")

    def starts_with(self, name: str, prefix: str | None) -> "Filters":
        """A text, or several with | between them."""
        if not prefix or prefix == ANY:
            return self
        prefixes = self.parameter([one for one in prefix.split("|") if one])
        return self.where(f"exists (select from unnest({prefixes}::text[]) p (p) where starts_with({self.columns[name]}, p))")

    def like(self, name: str, pattern: str | None, prefix: str | None) -> "Filters":
        """Both `matches` and `starts_with`."""
        return self.matches(name, pattern).starts_with(name, prefix)

    def between(self, name: str, bounds: Mapping[str, Any]) -> "Filters":
        """`bounds` by the name of their comparison: gte, gt, lte, lt."""
        for comparison, sign in (("gte", ">="), ("gt", ">"), ("lte", "<="), ("lt", "<")):
            if bounds.get(comparison) is not None:
                self.where(f"{self.columns[name]} {sign} {self.parameter(bounds[comparison])}")
        return self

    def visible(self, tags: Collection[str] | None) -> "Filters":
        """Only rows of DAGs that have one of these tags; None is all DAGs."""
        if tags is None:
            return self
        return self.where(
            f"exists (select from dag vd join dag_version vv on vv.id = vd.version_id where vd.dag_id = {self.columns['dag_id']}"
            f" and vv.data->'tags' ?| {self.parameter(list(tags))}::text[])"
        )

    def nothing(self) -> "Filters":
        """No row: the filter is about something that Paceline does not have."""
        return self.where("false")

    def where(self, condition: str) -> "Filters":
        """For this package only: add a condition in SQL, whose values are a `parameter` each."""
        self.conditions.append(condition)
        return self

    def parameter(self, value: Any) -> str:
        """For this package only: the placeholder of a value."""
        name = f"f{len(self.parameters)}"
        self.parameters[name] = value
        return f"%({name})s"

    @property
    def sql(self) -> str:
        return f"where {' and '.join(self.conditions)}" if self.conditions else ""


@dataclass(frozen=True, slots=True)
class Source:
    """The tables of a list. `joins`, by alias, only add columns to a row: a query that needs none of them leaves them out."""

    tables: str
    joins: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join([self.tables, *self.joins.values()])

    def of(self, *used: str) -> str:
        """The tables for these pieces of SQL."""
        return " ".join([self.tables, *(join for alias, join in self.joins.items() if re.search(rf"\b{alias}\.", " ".join(used)))])


def entries(
    connection: Connection,
    select: str,
    source: str | Source,
    filters: Filters,
    page: Page,
    *,
    orders: Mapping[str, str],
    default: Sequence[str],
    key: str,
) -> Entries:
    """One page of `select ... from source`.

    `orders` maps what a client may order by to columns, `default` is the order otherwise, and `key` is a unique column, which
    breaks ties. UsageError for an unknown order or cursor.
    """
    order = _order(page.order_by or tuple(default), orders, key)
    if page.cursor is not None:
        return _after_cursor(connection, select, source, filters, page=page, order=order)
    chosen = f"{filters.sql} order by {_sql(order)} limit %(page_limit)s offset %(page_offset)s"
    if isinstance(source, Source):  # joined for the rows of the page only, not for all that are sorted
        keys = f"select {key} from {source.of(chosen)} {chosen}"
        chosen = f"where {key} = any(array({keys})) order by {_sql(order)}"
    rows = connection.exec_driver_sql(
        f"select {select} from {source} {chosen}",
        filters.parameters | {"page_limit": page.limit, "page_offset": page.offset},
    )
    found = [dict(row) for row in rows.mappings()]
    if found and len(found) < page.limit:
        return Entries(found, page.offset + len(found))
    return Entries(found, _count(connection, source, filters))


def _count(connection: Connection, source: str | Source, filters: Filters, most: int | None = None) -> int:
    """The number of all entries, or of the first `most`."""
    tables = source.of(filters.sql) if isinstance(source, Source) else source
    counted: int = connection.exec_driver_sql(
        f"select count(*) from (select from {tables} {filters.sql} limit %(most)s) c", filters.parameters | {"most": most}
    ).scalar_one()
    return counted


def first(connection: Connection, select: str, source: str | Source, filters: Filters) -> Row | None:
    """The only row, or None."""
    row = connection.exec_driver_sql(f"select {select} from {source} {filters.sql} limit 1", filters.parameters).mappings().first()
    return None if row is None else dict(row)


def in_memory(rows: Iterable[Row], page: Page, *, orders: Collection[str], default: Sequence[str]) -> Entries:
    """One page of rows that are all there. Values of None come last."""
    found = list(rows)
    for name in reversed(page.order_by or tuple(default)):
        column, descending = name.removeprefix("-"), name.startswith("-")
        if column not in orders:
            raise _no_order(column, orders)
        found.sort(key=lambda row: row[column], reverse=descending) if all(
            row[column] is not None for row in found
        ) else found.sort(key=lambda row: (row[column] is None, str(row[column])), reverse=descending)
    return Entries(found[page.offset : page.offset + page.limit], len(found))


class Ordered(NamedTuple):
    """A column of an order."""

    column: str
    descending: bool


Order = list[Ordered]


def _order(names: Sequence[str], orders: Mapping[str, str], key: str) -> Order:
    order: Order = []
    for name in names:
        column = name.removeprefix("-").removeprefix("+")
        if column not in orders:
            raise _no_order(column, orders)
        order.append(Ordered(orders[column], name.startswith("-")))
    if key not in {column for column, _ in order}:
        order.append(Ordered(key, order[-1].descending if order else False))
    return order


def _sql(order: Order) -> str:
    return ", ".join(f"{column} desc" if descending else column for column, descending in order)


def _after_cursor(
    connection: Connection, select: str, source: str | Source, filters: Filters, *, page: Page, order: Order
) -> Entries:
    backward, place = _read_cursor(page.cursor or "", len(order))
    direction = [Ordered(column, descending != backward) for column, descending in order]
    parameters = dict(filters.parameters)
    conditions = list(filters.conditions)
    if place is not None:
        names = {f"c{number}": value for number, value in enumerate(place)}
        parameters |= names
        conditions.append(_beyond(direction, place))
    where = f"where {' and '.join(conditions)}" if conditions else ""
    columns = ", ".join(f"{column} as cursor_{number}" for number, (column, _) in enumerate(order))
    try:
        rows = connection.exec_driver_sql(
            f"select {select}, {columns} from {source} {where} order by {_sql(direction)} limit %(page_limit)s",
            parameters | {"page_limit": page.limit + 1},
        )
    except (DataError, ProgrammingError) as error:  # a value of another type than its column
        if place is None:
            raise
        raise _bad_cursor() from error
    found = [dict(row) for row in rows.mappings()]
    more = len(found) > page.limit
    found = found[: page.limit]
    if backward:
        found.reverse()
    places = [[row.pop(f"cursor_{number}") for number in range(len(order))] for row in found]
    has_next, has_previous = (True, more) if backward else (more, place is not None)
    return Entries(
        found,
        _count(connection, source, filters, MOST_COUNTED),
        MOST_COUNTED,
        next_cursor=_cursor("n", places[-1]) if places and has_next else None,
        previous_cursor=_cursor("p", places[0]) if places and has_previous else None,
    )


def _beyond(order: Order, place: Sequence[Any]) -> str:
    """SQL: the row comes after this place. PostgreSQL orders NULL as the largest value."""
    cases = []
    for number, (column, descending) in enumerate(order):
        value = place[number]
        if descending:
            after = f"{column} is not null" if value is None else f"{column} < %(c{number})s"
        else:
            after = "false" if value is None else f"({column} > %(c{number})s or {column} is null)"
        equal = [f"{order[before].column} is not distinct from %(c{before})s" for before in range(number)]
        cases.append(" and ".join([*equal, after]))
    return f"({' or '.join(f'({case})' for case in cases)})"


def _cursor(direction: str, place: Sequence[Any]) -> str:
    values = [{"t": value.isoformat()} if isinstance(value, datetime) else value for value in place]
    text = json.dumps([direction, values], separators=(",", ":"), default=str)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_cursor(cursor: str, columns: int) -> tuple[bool, list[Any] | None]:
    if not cursor:
        return False, None
    try:
        direction, values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        place = [datetime.fromisoformat(value["t"]) if isinstance(value, dict) else value for value in values]
        if direction not in {"n", "p"} or len(place) != columns or any(isinstance(value, list) for value in place):
            raise ValueError(direction)
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError):
        raise _bad_cursor() from None
    return direction == "p", place


def _bad_cursor() -> UsageError:
    return UsageError("The cursor is not one that this list returned: start with an empty cursor.")


def _no_order(column: str, orders: Collection[str]) -> UsageError:
    return UsageError(f"order_by {column[:100]!r} is not possible here: choose {', '.join(sorted(orders))}.")
