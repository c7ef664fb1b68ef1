"""What a scheduler's parts show of themselves, and what that says about the scheduler."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.process.health import Complaint, Contact, Health, Pulse
from scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """The loop beats at each service it turns; a turn that hangs in one of them beats no more."""

    loop: Pulse
    heartbeat: Pulse
    database: Contact
    broker: Contact

    def health(self, process: Callable[[], str], dag_files: Complaint, settings: Complaint = lambda _: None) -> Health:
        """A broker that is away keeps nobody from deciding: what is queued meanwhile is sent once it is back."""
        vital: dict[str, Complaint] = {
            "loop": self.loop,
            "heartbeat": self.heartbeat,
            "database": self.database,
            "dag_files": dag_files,
        }
        return Health("scheduler", process, vital, {"broker": self.broker, "settings": settings})


def of(settings: Settings) -> SchedulerHealth:
    """Those of a loop that is about to turn. It is unwell before the other schedulers take it for dead."""
    dead_s = settings.scheduler.scheduler_health_check_threshold
    return SchedulerHealth(
        loop=Pulse("The loop has not turned", dead_s * 2 / 3),
        heartbeat=Pulse("Its sign of life did not reach the database", dead_s),
        database=Contact(),
        broker=Contact(),
    )
