"""The entry of one scheduler, worker or waiter in the registry: made at its start, again if it was declared lost, and ended."""

import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json
from sqlalchemy import Connection, Engine

from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings
from scheduler.store.db.clock import ALIVE
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes

#: Seconds between two comparisons.
LOOK_S = 30.0
#: The number of processes and settings that one message names.
NAMED = 3


class Registration:
    """The entry of this process as a `kind` ("scheduler", "worker" or "waiter"), which counts as lost after `silent_s` seconds
    without a heartbeat.
    """

    def __init__(
        self, engine: Engine, settings: Settings, *, kind: str, name: str, silent_s: float, log: logging.Logger,
        pidfile: Pidfile | None = None, queues: Sequence[str] = (), concurrency: int = 0,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._kind = kind
        self._name = name
        self._pidfile = pidfile
        self._queues = queues
        self._concurrency = concurrency
        #: The ID of the newest entry.
        self.id = ""
        #: Called with each ID before `id` has it.
        self.entered: Callable[[str], object] = lambda _: None
        self.settings_drift = SettingsDrift(engine, settings, log.warning, silent_s)

    def enter(self) -> str:
        """Register under a new ID and return it. The settings are compared with those of other processes."""
        process_id = processes.register(
            self._engine, kind=self._kind, name=self._name, host=socket.gethostname(), pid=os.getpid(), queues=self._queues,
            concurrency=self._concurrency,
        )  # fmt: skip
        self.entered(process_id)
        self.id = process_id
        if self._pidfile is not None:
            self._pidfile.note(process_id)
        self.settings_drift.enter(process_id)
        return process_id

    def compare_settings(self) -> None:
        """Compare the settings with those of other live processes, if the last comparison is some time ago."""
        self.settings_drift.look(self.id)

    def expire_former(self) -> list[int]:
        """Declare earlier processes of this kind on this machine lost that have ended, without waiting for their heartbeats to
        expire. Returns the changed runs.
        """
        ended = self._pidfile.take_ended() if self._pidfile is not None else []
        return transact(self._engine, processes.expire, ended, why="is gone from its machine") if ended else []

    def leave(self) -> int:
        """Record that the process has shut down, so that no other process waits for its heartbeat to expire.

        Returns the number of triggers that it released.
        """
        return transact(self._engine, processes.stop, self.id)


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
        found = transact(self._engine, settings_differences, silent_s=self._silent_s)
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


def settings_differences(connection: Connection, *, silent_s: float) -> list[Difference]:
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
