"""The sensors that Airflow has in two classes, the second of which waits without a worker."""

from typing import Any

from paceline.sensors.base import DeferrableSensor
from paceline.sensors.times import DateTimeSensor, TimeDeltaSensor, TimeSensor


class _Deferred(DeferrableSensor):
    """A sensor with deferrable=True."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": True, **kwargs})


class DateTimeSensorAsync(_Deferred, DateTimeSensor):
    """DateTimeSensor with deferrable=True."""


class TimeSensorAsync(_Deferred, TimeSensor):
    """TimeSensor with deferrable=True."""


class TimeDeltaSensorAsync(_Deferred, TimeDeltaSensor):
    """TimeDeltaSensor with deferrable=True."""
