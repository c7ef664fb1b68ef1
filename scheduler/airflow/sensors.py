"""The sensors that Airflow has in two classes, the second of which waits without a worker."""

from typing import Any

from scheduler.sensors import DateTimeSensor, TimeDeltaSensor, TimeSensor


class DateTimeSensorAsync(DateTimeSensor):
    """DateTimeSensor with deferrable=True."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": True, **kwargs})


class TimeSensorAsync(TimeSensor):
    """TimeSensor with deferrable=True."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": True, **kwargs})


class TimeDeltaSensorAsync(TimeDeltaSensor):
    """TimeDeltaSensor with deferrable=True."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"deferrable": True, **kwargs})
