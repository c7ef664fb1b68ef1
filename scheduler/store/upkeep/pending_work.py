"""Pending work: one statement that tells which services may find something to do, so that an idle scheduler asks nothing else.

Each service names its question, an SQL condition that stands beside the first statement of the service. All of them ask indexes of
the little that is open, or tables that stay small. A question may use two parameters:

- `$1`: seconds until the next look. A service that runs may name the time at which its next row is due, so a row that is due before
  the next look is pending work already.
- `$2`: seconds of silence after which a process may be lost.

INVARIANT: each answer is true whenever the first statement of its service would find a row, now or before the next look. A service
runs whatever the answer when it is woken, when it has named a time itself, and at least twice a minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from scheduler.settings import Settings

#: Looks are one interval and a tenth apart.
LOOKS_AHEAD = 3
EXECUTE = "execute pending_work (%s, %s)"


@dataclass(frozen=True, slots=True)
class PendingWork:
    """What a look found: the database's clock, and the services that may have something to do."""

    now: datetime
    services: frozenset[str]


def look(connection: Connection, settings: Settings, questions: Mapping[str, str]) -> PendingWork:
    """Ask the questions of all services, by the name of the service, in one round trip. A process asks the same ones each time."""
    soon_s = LOOKS_AHEAD * settings.scheduler.scheduler_idle_sleep_time
    silent_s = min(
        settings.worker.heartbeat_timeout, settings.waiter.heartbeat_timeout, settings.scheduler.scheduler_health_check_threshold
    )
    # Planning it would cost more than running it.
    if not connection.info.get("pending_work"):
        asked = ", ".join(questions.values())
        connection.exec_driver_sql(f"prepare pending_work (float8, float8) as select clock_timestamp(), {asked}")
        connection.info["pending_work"] = True
    now, *answers = connection.exec_driver_sql(EXECUTE, (soon_s, silent_s)).one()
    return PendingWork(now, frozenset(name for name, is_pending in zip(questions, answers, strict=True) if is_pending))
