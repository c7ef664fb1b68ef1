"""The health of a scheduler: the health of its parts."""

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.process.health import Complaint, Health, ServerHealth, StepHealth
from scheduler.settings import Settings


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """The health of the parts of a scheduler. `loop` is updated before each service, so it shows a service that hangs."""

    loop: StepHealth
    heartbeat: StepHealth
    database: ServerHealth
    broker: ServerHealth

    def combined(self, process: Callable[[], str], dag_files: Complaint, settings: Complaint = lambda _: None) -> Health:
        """The health of the process. The broker is not vital: without it, a scheduler decides, and sends messages later."""
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
        loop=StepHealth("The loop has not run a service", lost_s * 2 / 3),
        heartbeat=StepHealth("Its heartbeat did not reach the database", lost_s),
        database=ServerHealth(),
        broker=ServerHealth(),
    )
