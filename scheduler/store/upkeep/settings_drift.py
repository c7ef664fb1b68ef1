"""Settings that must be equal in all processes: each process stores its own, and reports those that differ in others."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Connection, Engine

from scheduler.settings import Settings
from scheduler.store.db.clock import ALIVE
from scheduler.store.db.database import transact

#: Seconds between two comparisons.
LOOK_S = 30.0
#: The number of processes and settings that one message names.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting with different values as JSON, and the processes that have each."""

    key: str
    values: dict[str, list[str]]

    def __str__(self) -> str:
        each = (f"{value} for {_some(names)}" for value, names in sorted(self.values.items()))
        return f"{self.key} is {' and '.join(each)}"


class SettingsDrift:
    """The comparison for one process. It is a part of its health (process/health.py), and logs changes."""

    def __init__(self, engine: Engine, settings: Settings, say: Callable[[str], object], silent_s: float) -> None:
        self._engine = engine
        self._settings = settings
        self._say = say
        self._silent_s = silent_s
        self._looked_at = 0.0
        self._complaint: str | None = None

    def enter(self, process_id: str) -> None:
        """Store the settings of this process, which has just registered, and compare them."""
        transact(self._engine, _store, process_id, self._settings.agreed())
        self._looked_at = 0.0
        self.look(process_id)

    def look(self, process_id: str) -> None:
        """Compare with other live processes, at most every LOOK_S seconds."""
        if time.monotonic() - self._looked_at < LOOK_S and self._looked_at:
            return
        self._looked_at = time.monotonic()
        found = transact(self._engine, differences, silent_s=self._silent_s)
        ours = [each for each in found if any(process_id in names for names in each.values.values())]
        complaint = None
        if ours:
            more = f" and {len(ours) - NAMED} more" if len(ours) > NAMED else ""
            complaint = f"Settings differ between processes: {'; '.join(map(str, ours[:NAMED]))}{more}. Set them to equal values."
        if complaint != self._complaint:
            self._say(complaint or "The settings of all processes are equal again.")
        self._complaint = complaint

    def __call__(self, now: float) -> str | None:
        return self._complaint


def differences(connection: Connection, *, silent_s: float) -> list[Difference]:
    """The settings that live processes have otherwise than others, by key.

    A task can write anything into the row of its worker. That must not keep other processes from starting.
    """
    rows = connection.exec_driver_sql(
        f"""
        select s.key, left(s.value::text, 200), p.id
          from process p cross join jsonb_each(case jsonb_typeof(p.settings) when 'object' then p.settings end) s
         where {ALIVE}
         order by s.key, p.id
        """,
        {"silent": silent_s},
    )
    values: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
    for key, value, process_id in rows:
        values[key].setdefault(value, []).append(process_id)
    return [Difference(key, by_value) for key, by_value in sorted(values.items()) if len(by_value) > 1]


def _store(connection: Connection, process_id: str, settings: dict[str, Any]) -> None:
    connection.exec_driver_sql("update process set settings = %s where id = %s", (Json(settings), process_id))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
