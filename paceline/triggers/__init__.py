"""The triggers that DAG files import, and the base classes of their own triggers."""

from paceline.authoring.deferral import BaseTrigger, TaskDeferred, TriggerEvent
from paceline.authoring.triggers import (
    BaseEventTrigger,
    DateTimeTrigger,
    DirectoryFileDeleteTrigger,
    ExternalTrigger,
    FileDeleteTrigger,
    FileTrigger,
    TimeDeltaTrigger,
)

__all__ = [
    "BaseEventTrigger", "BaseTrigger", "DateTimeTrigger", "DirectoryFileDeleteTrigger", "ExternalTrigger", "FileDeleteTrigger",
    "FileTrigger", "TaskDeferred", "TimeDeltaTrigger", "TriggerEvent",
]  # fmt: skip
