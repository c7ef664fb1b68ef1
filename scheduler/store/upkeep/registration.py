"""The entry of one scheduler, worker or waiter in the registry: made at its start, again if it was declared lost, and ended."""

import logging
import os
import socket
from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from scheduler.process.pidfile import Pidfile
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.settings_drift import SettingsDrift


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
