"""heartbeat: registers this scheduler, renews its heartbeat, and registers it again if it was declared lost."""

import logging
import os
import socket
from collections.abc import Callable

from sqlalchemy import Engine

from scheduler.process import measures
from scheduler.process.pidfile import Pidfile
from scheduler.services.service import Result, Service
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.queries import events
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import Renewal
from scheduler.store.upkeep.settings_drift import SettingsDrift

log = logging.getLogger("paceline.scheduler")


class Heartbeat(Service):
    """The entry of one scheduler in the registry. After `start` a thread renews it; before, each pass does.

    While `is_wanted` is false, the thread does not renew it, so that the entry of a hung loop expires. `renewed` is called
    after each renewal.
    """

    name = "heartbeat"

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        scheduler: str | None,
        pidfile: Pidfile | None,
        is_wanted: Callable[[], bool],
        renewed: Callable[[], object],
    ) -> None:
        super().__init__(engine, settings)
        config = settings.scheduler
        self._scheduler = scheduler
        self._pidfile = pidfile
        self._renewed = renewed
        #: Schedulers of this machine that ended without leaving the registry.
        self._left_behind: list[str] = []
        self.interval_s = config.scheduler_heartbeat_sec
        self.drift = SettingsDrift(engine, settings, log.warning, config.scheduler_health_check_threshold)
        #: Called with each new ID after the first.
        self.on_new_id: Callable[[str], None] = lambda _: None
        self.scheduler_id = self._register()
        self._renewal = Renewal(
            settings, process_id=lambda: self.scheduler_id, interval_s=self.interval_s,
            timeout_s=config.scheduler_health_check_threshold, application="paceline scheduler", wanted=is_wanted,
            renewed=lambda *_: renewed(),
        )  # fmt: skip

    def start(self) -> None:
        self._renewal.start()

    def run_once(self) -> Result:
        measures.count("scheduler_heartbeat")
        if not self._is_registered():
            log.warning("%s was declared lost and registers again", self.scheduler_id)
            measures.count("{job_name}_heartbeat_failure", job_name="schedulerjob")
            self.scheduler_id = self._register()
            self.on_new_id(self.scheduler_id)
        left_behind, self._left_behind = self._left_behind, []
        if left_behind:
            transact(self._engine, processes.expire, left_behind, why="is gone from this machine")
        self.drift.look(self.scheduler_id)
        return Result()

    def close(self) -> None:
        """Leave the registry, so that no other process waits for this heartbeat to expire."""
        self._renewal.end()
        transact(self._engine, processes.stop, self.scheduler_id)

    def _is_registered(self) -> bool:
        if self._renewal.is_alive():
            return not self._renewal.is_refused(self.scheduler_id)
        registered = transact(self._engine, processes.heartbeat, self.scheduler_id)
        self._renewed()
        return registered

    def _register(self) -> str:
        host = socket.gethostname()
        scheduler_id = processes.register(
            self._engine, kind="scheduler", name=self._scheduler or f"scheduler@{host}", host=host, pid=os.getpid()
        )
        transact(self._engine, events.record, self._settings.core.record_events)
        self.drift.enter(scheduler_id)
        if self._pidfile is not None:
            self._pidfile.note(scheduler_id)
            self._left_behind += self._pidfile.take_ended()
        return scheduler_id
