"""All settings of Paceline: their sources, types, defaults and checks."""

from scheduler.settings.model import Core, Scheduler, Settings, Waiter, Worker
from scheduler.settings.sections import Paths, Retention

__all__ = ["Core", "Paths", "Retention", "Scheduler", "Settings", "Waiter", "Worker"]
