"""The health of a scheduler: the health of its parts."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.process.health import Complaint, Contact, Health, Pulse
from scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """The health of the parts of a scheduler. The loop updates its pulse before each service, so a hanging service shows."""

    loop: Pulse
    heartbeat: Pulse
    database: Contact
    broker: Contact

    def health(self, process: Callable[[], str], dag_files: Complaint, settings: Complaint = lambda _: None) -> Health:
        """The health report. The broker is not vital: a scheduler decides without it, and sends messages when it is back."""
        vital: dict[str, Complaint] = {
            "loop": self.loop,
            "heartbeat": self.heartbeat,
            "database": self.database,
            "dag_files": dag_files,
        }
        return Health("scheduler", process, vital, {"broker": self.broker, "settings": settings})


def of(settings: Settings) -> SchedulerHealth:
    """The initial health of a scheduler. A hanging one is unhealthy before other schedulers declare it lost."""
    lost_s = settings.scheduler.scheduler_health_check_threshold
    return SchedulerHealth(
        loop=Pulse("The loop has not run a service", lost_s * 2 / 3),
        heartbeat=Pulse("Its heartbeat did not reach the database", lost_s),
        database=Contact(),
        broker=Contact(),
    )
