"""The sources of bundles that schedulers read: which are due, which are being read, and what the last reading found."""

from collections.abc import Collection
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Connection


def enter(connection: Connection, names: list[str]) -> None:
    """Make the bundles whose sources are in the settings, and forget the sources of the others."""
    connection.exec_driver_sql("insert into bundle (name) select * from unnest(%s::text[]) on conflict do nothing", (names,))
    connection.exec_driver_sql(
        """
        with gone as (select name from bundle where source is not null and name <> all(%s) order by name for no key update)
        update bundle b set source = null, problem = null, read_at = null, read_until = null from gone where b.name = gone.name
        """,
        (names,),
    )


def claim(connection: Connection, names: Collection[str], *, interval_s: float, lease_s: float) -> dict[str, dict[str, Any]]:
    """Claim those of these bundles whose source was not read for `interval_s` and is not being read now.

    Returns what `done` stored after the last reading of each. A claim expires after `lease_s` seconds.
    """
    rows = connection.exec_driver_sql(
        """
        with due as materialized (
            select name from bundle
             where name = any(%(names)s) and (read_until is null or read_until <= statement_timestamp())
               and (read_at is null or read_at <= statement_timestamp() - make_interval(secs => %(interval)s))
             order by name for no key update skip locked)
        update bundle b set read_until = statement_timestamp() + make_interval(secs => %(lease)s) from due where b.name = due.name
        returning b.name, b.source
        """,
        {"names": list(names), "interval": interval_s, "lease": lease_s},
    )
    return {name: source or {} for name, source in rows}


def done(connection: Connection, bundle: str, source: dict[str, Any], problem: str | None) -> None:
    """Store what a reading of the source found, or why it cannot be read. Ends the claim."""
    connection.exec_driver_sql(
        "update bundle set source = %s, problem = %s, read_at = statement_timestamp(), read_until = null where name = %s",
        (Json(source), problem, bundle),
    )


def problems(connection: Connection) -> list[tuple[str, str]]:
    """The bundles whose source cannot be read, each with the reason."""
    rows = connection.exec_driver_sql("select name, problem from bundle where problem is not null order by name")
    return [(name, problem) for name, problem in rows]
