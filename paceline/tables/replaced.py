"""Which rows a repeated run replaces: those of its task instance, or those of its data interval."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.authoring import zones
from paceline.exceptions import PacelineError

#: The column with the task instance that wrote a row, as a hash of its DAG, run, task and map index.
SOURCE = "paceline_source"
_PERIODS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


def source_of(ti: Any) -> int:
    """The number of a task instance in the column `paceline_source`; the same for each of its tries, and after a clear."""
    name = "\x1f".join((ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index)))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


def required(column: str | None, name: str) -> str:
    if column is None:
        raise PacelineError(f"The table {name} does not exist, so the column with the date is not known; pass column=.")
    return column


def bounds(values: Any, kind: str, transform: str) -> tuple[Any, Any]:
    """The first moment of the run's interval and the first one after it, as values of a column of the Iceberg type `kind`."""
    if kind not in {"date", "timestamp", "timestamptz"}:
        raise PacelineError(f"The column has the type {kind}; overwrite_by_logical_date() needs a date, timestamp or timestamptz.")
    start, end = values["data_interval_start"], values["data_interval_end"]
    if start is None or end is None:
        raise PacelineError("The run has no logical date, so there is no interval to replace; trigger it with --logical-date.")
    zone = zones.load(values["dag"].timezone) if kind == "date" else UTC
    first, last = (datetime.fromtimestamp(one.timestamp(), zone) for one in (start, end))
    if first == last:
        first, last = _period(first, "day" if kind == "date" and transform in {"", "identity"} else transform)
    if kind == "date":
        if (first.hour, first.minute, last.hour, last.minute) != (0, 0, 0, 0):
            raise PacelineError(f"The interval {first} to {last} is not one of whole days; use a column with a time.")
        return first.date(), last.date()
    return (first, last) if kind == "timestamptz" else (first.replace(tzinfo=None), last.replace(tzinfo=None))


def _period(moment: datetime, transform: str) -> tuple[datetime, datetime]:
    """The partition that has a moment."""
    first = moment.replace(minute=0, second=0, microsecond=0)
    if transform == "hour":
        return first, first + _PERIODS["hour"]
    first = first.replace(hour=0)
    if transform == "day":
        return first, first + _PERIODS["day"]
    if transform in {"month", "year"}:
        first = first.replace(day=1, month=1 if transform == "year" else first.month)
        return first, (first + timedelta(days=32 if transform == "month" else 366)).replace(day=1)
    raise PacelineError(
        "The interval of the run is empty, and the table has no partitions of an hour, day, month or year; add them."
    )
