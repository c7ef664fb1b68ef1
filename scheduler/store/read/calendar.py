"""The runs of a DAG by day and by hour of the day in a time zone, and the runs that its schedule plans."""

from collections import Counter
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from paceline.exceptions import UsageError
from scheduler.store.dags import schedules
from scheduler.store.db import rows

Row = dict[str, Any]
#: Planned runs are those of the next days, and the first of many.
PLANNED_DAYS, MOST_PLANNED = 7, 400


def days_and_hours(connection: Connection, dag_id: str, *, days: int, zone: str) -> tuple[list[Row], list[Row]]:
    """The number of runs by day and state, and by hour of the day and state: of the last `days` days. UsageError."""
    zone_of(zone)
    try:
        found = connection.exec_driver_sql(
            """
            select day, hour, state, count(*) as count
              from (select (l.at)::date as day, extract(hour from l.at)::int as hour, r.state from dag_run r
                     cross join lateral (select coalesce(r.logical_date, r.run_after) at time zone %(zone)s as at) l
                     where r.dag_id = %(dag_id)s and r.run_after >= statement_timestamp() - make_interval(days => %(days)s)) r
             group by grouping sets ((day, state), (hour, state)) order by 1, 2
            """,
            {"dag_id": dag_id, "days": days, "zone": zone},
        )
    except DataError as error:
        raise _no_zone(zone) from error
    counted = rows.dicts(found)
    return [row for row in counted if row["day"] is not None], [row for row in counted if row["hour"] is not None]


def planned(connection: Connection, dag_id: str, *, zone: str) -> tuple[list[Row], bool]:
    """The number of planned runs of each day, and whether there are too many to count. UsageError, NotFoundError."""
    here = zone_of(zone)
    due = schedules.upcoming(connection, dag_id, count=MOST_PLANNED, within=timedelta(days=PLANNED_DAYS))
    by_day = Counter(run.run_after.astimezone(here).date() for run in due)
    return [{"day": day, "count": count} for day, count in sorted(by_day.items())], len(due) == MOST_PLANNED


def zone_of(name: str) -> ZoneInfo:
    """The time zone with this name. UsageError."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise _no_zone(name) from error


def _no_zone(name: str) -> UsageError:
    return UsageError(f"There is no time zone {name[:100]!r}: give a name such as Europe/Berlin.")
