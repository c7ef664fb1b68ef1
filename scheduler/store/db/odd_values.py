"""Reads stored values that Python cannot hold: a task can write any time and any JSON into the rows of its worker's role.

Such a row must not keep people from reading the others.
"""

import json
from datetime import UTC, datetime
from typing import Any

from psycopg2 import extensions, extras

TIMESTAMPTZ = 1184
#: A day from the ends of Python's calendar, so that any time zone can show them.
EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
UNREADABLE = "(JSON that cannot be read)"


def accept(connection: extensions.connection) -> extensions.connection:
    """Let this connection read such a time as EARLIEST or LATEST, and such JSON as UNREADABLE."""
    extensions.register_type(_MOMENT, connection)
    extras.register_default_json(connection, loads=_loads)
    extras.register_default_jsonb(connection, loads=_loads)
    return connection


def _moment(text: str | bytes | None, cursor: extensions.cursor) -> datetime | None:
    if not isinstance(text, str):
        return None
    if text == "-infinity" or text.endswith("BC"):
        return EARLIEST
    try:
        moment: datetime = extensions.PYDATETIMETZ(text, cursor)
    except (ValueError, OverflowError):
        return LATEST
    return min(max(moment, EARLIEST), LATEST)


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return UNREADABLE


_MOMENT = extensions.new_type((TIMESTAMPTZ,), "moment", _moment)
