"""All settings of Paceline: their sources, types, defaults and checks."""

from scheduler.settings.model import Core, Paths, Retention, Scheduler, Settings, Waiter, Worker

__all__ = ["Core", "Paths", "Retention", "Scheduler", "Settings", "Waiter", "Worker"]
