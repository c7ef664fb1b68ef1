"""The sensors that DAG files import."""

from paceline.sensors.base import BaseSensorOperator, BashSensor, FileSensor, PokeReturnValue, PythonSensor
from paceline.sensors.external import ExternalTaskMarker, ExternalTaskSensor
from paceline.sensors.times import DateTimeSensor, DayOfWeekSensor, TimeDeltaSensor, TimeSensor, WaitSensor

__all__ = [
    "BaseSensorOperator", "BashSensor", "DateTimeSensor", "DayOfWeekSensor", "ExternalTaskMarker", "ExternalTaskSensor",
    "FileSensor", "PokeReturnValue", "PythonSensor", "TimeDeltaSensor", "TimeSensor", "WaitSensor",
]  # fmt: skip
