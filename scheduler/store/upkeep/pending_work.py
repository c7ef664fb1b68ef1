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

from sqlalchemy import Connection

from scheduler.settings import Settings

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
    # Planning it would cost more than running it.
    prepared: dict[tuple[str, ...], str] = connection.info.setdefault("pending_work", {})
    name = prepared.get(key := tuple(conditions))
    if name is None:
        name, asked = f"pending_work_{len(prepared)}", ", ".join(conditions.values())
        connection.exec_driver_sql(f"prepare {name} (float8, float8) as select clock_timestamp(), {asked}")
        prepared[key] = name
    now, *answers = connection.exec_driver_sql(f"execute {name} (%s, %s)", (soon_s, silent_s)).one()
    return now, frozenset(name for name, is_pending in zip(conditions, answers, strict=True) if is_pending)
