"""All settings of Paceline: their sources, types, defaults and checks."""

from scheduler.settings.model import (
    Core,
    Paths,
    Retention,
    Scheduler,
    Settings,
    Waiter,
    Worker,
    allowed,
    environment_names,
    keys,
    layout,
    masked,
    section_type,
    shown,
    sources,
)

__all__ = [
    "Core",
    "Paths",
    "Retention",
    "Scheduler",
    "Settings",
    "Waiter",
    "Worker",
    "allowed",
    "environment_names",
    "keys",
    "layout",
    "masked",
    "section_type",
    "shown",
    "sources",
]
