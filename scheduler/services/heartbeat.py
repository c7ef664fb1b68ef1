"""heartbeat: registers this scheduler, renews its heartbeat, and registers it again if it was declared lost."""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine

from scheduler.process import measures
from scheduler.process.health import Complaint, Health, ServerHealth, StepHealth
from scheduler.process.pidfile import Pidfile
from scheduler.services.service import Result, Service
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import Listener, Renewal
from scheduler.store.upkeep.processes import Registration


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """The health of the parts of a scheduler. `loop` is updated before each service, so it shows a service that hangs."""

    loop: StepHealth
    heartbeat: StepHealth
    database: ServerHealth
    broker: ServerHealth

    def combined(
        self,
        process: Callable[[], str],
        dag_files: Complaint,
        settings: Complaint = lambda _: None,
        bundles: Complaint = lambda _: None,
    ) -> Health:
        """The health of the process. The broker is not vital: without it, a scheduler decides, and sends messages later."""
        vital: dict[str, Complaint] = {
            "loop": self.loop,
            "heartbeat": self.heartbeat,
            "database": self.database,
            "dag_files": dag_files,
            "bundles": bundles,
        }
        return Health("scheduler", process, vital, {"broker": self.broker, "settings": settings})


def initial_health(settings: Settings) -> SchedulerHealth:
    """The initial health of a scheduler. A hanging one is unhealthy before other schedulers declare it lost."""
    lost_s = settings.scheduler.scheduler_health_check_threshold
    return SchedulerHealth(
        loop=StepHealth("The loop has not run a service", lost_s * 2 / 3),
        heartbeat=StepHealth("Its heartbeat did not reach the database", lost_s),
        database=ServerHealth(),
        broker=ServerHealth(),
    )


log = logging.getLogger("paceline.scheduler")


class Heartbeat(Service, Listener):
    """Keeps the entry of one scheduler in the registry.

    After `start`, a thread renews the entry. Without it, each pass does. The thread pauses while `is_wanted` returns false, so
    that the entry of a scheduler with a hung loop expires. `renewed` is called after each renewal.
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
        self._is_wanted, self._renewed = is_wanted, renewed
        silent_s = config.scheduler_health_check_threshold
        self.interval_s = config.scheduler_heartbeat_sec
        self.registration = Registration(
            engine, settings, kind="scheduler", name=scheduler or f"scheduler@{socket.gethostname()}", silent_s=silent_s, log=log,
            pidfile=pidfile,
        )  # fmt: skip
        self._register()
        self._renewal = Renewal(
            settings, self, process_id=lambda: self.scheduler_id, interval_s=self.interval_s, timeout_s=silent_s,
            application="paceline scheduler",
        )  # fmt: skip

    @property
    def scheduler_id(self) -> str:
        """The ID under which this scheduler is registered now."""
        return self.registration.id

    def start(self) -> None:
        self._renewal.start()

    def is_wanted(self) -> bool:
        return self._is_wanted()

    def renewed(self, process_id: str, sent_at: float) -> None:
        self._renewed()

    def run_once(self) -> Result:
        measures.count("scheduler_heartbeat")
        if not self._is_registered():
            log.warning("%s was declared lost and registers again", self.scheduler_id)
            measures.count("{job_name}_heartbeat_failure", job_name="schedulerjob")
            self._register()
        self.registration.expire_former()
        self.registration.compare_settings()
        return Result()

    def close(self) -> None:
        self._renewal.end()
        self.registration.leave()

    def _is_registered(self) -> bool:
        if self._renewal.is_alive():
            return not self._renewal.is_refused(self.scheduler_id)
        registered = transact(self._engine, processes.heartbeat, self.scheduler_id)
        self._renewed()
        return registered

    def _register(self) -> None:
        self.registration.enter()
        transact(self._engine, processes.record_events, self._settings.core.record_events)
