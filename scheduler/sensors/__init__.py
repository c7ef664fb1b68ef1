"""The sensors that DAG files import."""

from scheduler.operators.sensor import BaseSensorOperator, PokeReturnValue, PythonSensor
from scheduler.sensors.bash import BashSensor
from scheduler.sensors.external import ExternalTaskMarker, ExternalTaskSensor
from scheduler.sensors.file import FileSensor
from scheduler.sensors.times import DateTimeSensor, DayOfWeekSensor, TimeDeltaSensor, TimeSensor, WaitSensor

__all__ = [
    "BaseSensorOperator", "BashSensor", "DateTimeSensor", "DayOfWeekSensor", "ExternalTaskMarker", "ExternalTaskSensor",
    "FileSensor", "PokeReturnValue", "PythonSensor", "TimeDeltaSensor", "TimeSensor", "WaitSensor",
]  # fmt: skip
