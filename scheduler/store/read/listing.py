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

from paceline.exceptions import NotFoundError, UsageError
from scheduler.store.db import rows

Row = dict[str, Any]
#: Beside a cursor, more entries than this are not counted.
MOST_COUNTED = 10_000
#: The text for any value, as in Airflow.
ANY = "~"


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list: `limit` entries after `offset`, or after the place that `cursor` names ("" is the start).

    With an offset, no more than `count_limit` entries are counted, or all.
    """

    limit: int = 50
    offset: int = 0
    order_by: tuple[str, ...] = ()
    cursor: str | None = None
    count_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Entries:
    """A page of a list. `total` counts all entries, or with a `total_limit` at most so many of them."""

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
        parts = [part.strip() for part in pattern.split("|") if part.strip()]
        patterns = [part if "%" in part else f"%{part}%" for part in parts]
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

    def like_each(self, patterns: Iterable[tuple[str, str | None, str | None]]) -> "Filters":
        """`like` for each name, pattern and prefix."""
        for name, pattern, prefix in patterns:
            self.like(name, pattern, prefix)
        return self

    def between(self, name: str, bounds: Mapping[str, Any]) -> "Filters":
        """`bounds` by the name of their comparison: gte, gt, lte, lt."""
        for comparison, sign in (("gte", ">="), ("gt", ">"), ("lte", "<="), ("lt", "<")):
            if bounds.get(comparison) is not None:
                self.where(f"{self.columns[name]} {sign} {self.parameter(bounds[comparison])}")
        return self

    def in_ranges(self, ranges: Mapping[str, Mapping[str, Any]]) -> "Filters":
        """`between` for each column that `ranges` names."""
        for name, bounds in ranges.items():
            self.between(name, bounds)
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


class Ordered(NamedTuple):
    """A column of an order."""

    column: str
    descending: bool


Order = list[Ordered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list that clients read page by page: its columns and tables in SQL."""

    columns: str
    tables: str
    #: By alias: further tables, which only add columns to a row. A query that needs none of them leaves them out.
    joins: Mapping[str, str] = field(default_factory=dict)
    #: The column of each order that a client may choose. A client can filter by these, too.
    orders: Mapping[str, str]
    #: The columns of the filters that are no order.
    filtered: Mapping[str, str] = field(default_factory=dict)
    default_order: tuple[str, ...]
    #: A unique column, which breaks ties.
    key: str

    @property
    def source(self) -> str:
        """All tables."""
        return " ".join([self.tables, *self.joins.values()])

    def source_for(self, sql: str) -> str:
        """The tables for these conditions and this order. A join may need those before it."""
        joins: list[str] = []
        for alias, join in reversed(list(self.joins.items())):
            if re.search(rf"\b{alias}\.", " ".join([sql, *joins])):
                joins.insert(0, join)
        return " ".join([self.tables, *joins])

    def filters(self) -> Filters:
        """No condition yet."""
        return Filters({**self.filtered, **self.orders})

    def page(self, connection: Connection, filters: Filters, page: Page) -> Entries:
        """One page of the list. UsageError for an unknown order or cursor."""
        order = _order(page.order_by or self.default_order, self.orders, self.key)
        if page.cursor is not None:
            return self._after_cursor(connection, filters, page=page, order=order)
        chosen = f"{filters.sql} order by {_sql(order)} limit %(page_limit)s offset %(page_offset)s"
        if self.joins:  # joined for the rows of the page only, not for all that are sorted
            keys = f"select {self.key} from {self.source_for(chosen)} {chosen}"
            chosen = f"where {self.key} = any(array({keys})) order by {_sql(order)}"
        found = rows.dicts(
            connection.exec_driver_sql(
                f"select {self.columns} from {self.source} {chosen}",
                filters.parameters | {"page_limit": page.limit, "page_offset": page.offset},
            )
        )
        if found and len(found) < page.limit:
            return Entries(found, page.offset + len(found))
        return Entries(found, self.count(connection, filters, page.count_limit), page.count_limit)

    def first(self, connection: Connection, filters: Filters) -> Row | None:
        """The only row, or None."""
        statement = f"select {self.columns} from {self.source} {filters.sql} limit 1"
        return rows.first_dict(connection.exec_driver_sql(statement, filters.parameters))

    def one(self, connection: Connection, filters: Filters, missing: str) -> Row:
        """The only row. NotFoundError with the message `missing`."""
        found = self.first(connection, filters)
        if found is None:
            raise NotFoundError(missing)
        return found

    def by_keys(self, connection: Connection, keys: Collection[int]) -> list[Row]:
        """The rows whose `key` column has these values, in the default order."""
        if not keys:
            return []
        order = _sql(_order(self.default_order, self.orders, self.key))
        statement = f"select {self.columns} from {self.source} where {self.key} = any(%s) order by {order}"
        return rows.dicts(connection.exec_driver_sql(statement, (list(keys),)))

    def count(self, connection: Connection, filters: Filters, most: int | None = None) -> int:
        """The number of all entries, or of the first `most`."""
        counted: int = connection.exec_driver_sql(
            f"select count(*) from (select from {self.source_for(filters.sql)} {filters.sql} limit %(most)s) c",
            filters.parameters | {"most": most},
        ).scalar_one()
        return counted

    def _after_cursor(self, connection: Connection, filters: Filters, *, page: Page, order: Order) -> Entries:
        backward, place = _read_cursor(page.cursor or "", len(order))
        direction = [Ordered(column, descending != backward) for column, descending in order]
        parameters = dict(filters.parameters)
        conditions = list(filters.conditions)
        if place is not None:
            parameters |= {f"c{number}": value for number, value in enumerate(place)}
            conditions.append(_beyond(direction, place))
        where = f"where {' and '.join(conditions)}" if conditions else ""
        columns = ", ".join(f"{column} as cursor_{number}" for number, (column, _) in enumerate(order))
        try:
            result = connection.exec_driver_sql(
                f"select {self.columns}, {columns} from {self.source} {where} order by {_sql(direction)} limit %(page_limit)s",
                parameters | {"page_limit": page.limit + 1},
            )
        except (DataError, ProgrammingError) as error:  # a value of another type than its column
            if place is None:
                raise
            raise _bad_cursor() from error
        found = rows.dicts(result)
        more = len(found) > page.limit
        found = found[: page.limit]
        if backward:
            found.reverse()
        places = [[row.pop(f"cursor_{number}") for number in range(len(order))] for row in found]
        has_next, has_previous = (True, more) if backward else (more, place is not None)
        return Entries(
            found,
            self.count(connection, filters, MOST_COUNTED),
            MOST_COUNTED,
            next_cursor=_cursor("n", places[-1]) if places and has_next else None,
            previous_cursor=_cursor("p", places[0]) if places and has_previous else None,
        )


def in_memory(entries: Iterable[Row], page: Page, *, orders: Collection[str], default: Sequence[str]) -> Entries:
    """One page of rows that are all there. Values of None come last."""
    found = list(entries)
    for name in reversed(page.order_by or tuple(default)):
        column, descending = name.removeprefix("-"), name.startswith("-")
        if column not in orders:
            raise _no_order(column, orders)
        if any(row[column] is None for row in found):
            found.sort(key=lambda row: (row[column] is None, str(row[column])), reverse=descending)
        else:
            found.sort(key=lambda row: row[column], reverse=descending)
    return Entries(found[page.offset : page.offset + page.limit], len(found))


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


def key(column: str) -> str:
    """SQL: a number for a text that identifies a row, as JSON clients can read it (53 bits)."""
    return f"(hashtextextended({column}, 0) & 9007199254740991)"
