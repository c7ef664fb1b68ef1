"""The sensors that DAG files import."""

from scheduler.operators.sensors.base import BaseSensorOperator, PokeReturnValue, PythonSensor
from scheduler.operators.sensors.bash import BashSensor
from scheduler.operators.sensors.external import ExternalTaskMarker, ExternalTaskSensor
from scheduler.operators.sensors.file import FileSensor
from scheduler.operators.sensors.times import DateTimeSensor, DayOfWeekSensor, TimeDeltaSensor, TimeSensor, WaitSensor

__all__ = [
    "BaseSensorOperator", "BashSensor", "DateTimeSensor", "DayOfWeekSensor", "ExternalTaskMarker", "ExternalTaskSensor",
    "FileSensor", "PokeReturnValue", "PythonSensor", "TimeDeltaSensor", "TimeSensor", "WaitSensor",
]  # fmt: skip
