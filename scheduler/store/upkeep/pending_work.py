"""Pending work: one statement that finds which services may have something to do, so that an idle scheduler needs no other.

A service declares an SQL condition, which is next to the first statement of the service. All conditions use indexes over open
rows, or small tables. A condition may use two parameters:

- `$1`: seconds until the next check. A row due before the next check already counts as pending, so its service can schedule a
  pass for that moment.
- `$2`: seconds without a heartbeat after which a process may be lost.

INVARIANT: a condition is true whenever the first statement of its service would find a row, now or before the next check. A service
runs regardless of its condition after a wakeup, at a time that it requested, and at least twice a minute.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import cache

from sqlalchemy import Connection

from scheduler.settings import Settings
from scheduler.store.db import prepared
from scheduler.store.db.prepared import Prepared

#: The number of intervals that `$1` covers; checks are at most 1.1 intervals apart.
LOOKS_AHEAD = 3


def look(connection: Connection, settings: Settings, conditions: Mapping[str, str]) -> tuple[datetime, frozenset[str]]:
    """Evaluate the conditions, by the name of the service, in one round trip. A process asks for few sets of conditions.

    Returns the time by the database's clock, and the services that may have something to do.
    """
    soon_s = LOOKS_AHEAD * settings.scheduler.scheduler_idle_sleep_time
    silent_s = min(
        settings.worker.heartbeat_timeout, settings.waiter.heartbeat_timeout, settings.scheduler.scheduler_health_check_threshold
    )
    statement = _statement(tuple(conditions), ", ".join(conditions.values()))
    now: datetime
    answers: list[bool]
    now, *answers = prepared.execute(connection, statement, {"soon_s": soon_s, "silent_s": silent_s}).one()
    return now, frozenset(name for name, is_pending in zip(conditions, answers, strict=True) if is_pending)


@cache
def _statement(names: tuple[str, ...], asked: str) -> Prepared:
    parameters = {name: "float8" for name, number in (("soon_s", "$1"), ("silent_s", "$2")) if number in asked}
    text = asked.replace("$1", "%(soon_s)s").replace("$2", "%(silent_s)s")
    return prepared.of("pending_" + "_".join(names)[:50], parameters, f"select clock_timestamp(), {text}")
