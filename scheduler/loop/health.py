"""The health of a scheduler, made of the health of its parts."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.process.health import Complaint, Contact, Health, Pulse
from scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """The loop beats before each service; while a service hangs, it does not."""

    loop: Pulse
    heartbeat: Pulse
    database: Contact
    broker: Contact

    def health(self, process: Callable[[], str], dag_files: Complaint, settings: Complaint = lambda _: None) -> Health:
        """Without the broker a scheduler still decides: what it queues is sent once the broker is back."""
        vital: dict[str, Complaint] = {
            "loop": self.loop,
            "heartbeat": self.heartbeat,
            "database": self.database,
            "dag_files": dag_files,
        }
        return Health("scheduler", process, vital, {"broker": self.broker, "settings": settings})


def of(settings: Settings) -> SchedulerHealth:
    """The parts of a scheduler that starts. It is unhealthy before the other schedulers declare it lost."""
    dead_s = settings.scheduler.scheduler_health_check_threshold
    return SchedulerHealth(
        loop=Pulse("The loop has not turned", dead_s * 2 / 3),
        heartbeat=Pulse("Its sign of life did not reach the database", dead_s),
        database=Contact(),
        broker=Contact(),
    )
