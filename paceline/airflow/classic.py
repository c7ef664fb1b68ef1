"""Names of Airflow that exist only here: DAG and @dag with the arguments of Airflow 2, and helpers of its `utils` modules."""

import inspect
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeVar

from paceline.airflow import timezone
from paceline.authoring import dag as dags
from paceline.authoring.arguments import NO_EFFECT, RENAMED
from paceline.operators import python
from paceline.sensors.base import DeferrableSensor
from paceline.sensors.times import DateTimeSensor, TimeDeltaSensor, TimeSensor
from paceline.states import TaskState

F = TypeVar("F", bound=Callable[..., Any])
version = "3.3.2"


class PythonOperator(python.PythonOperator):
    """A PythonOperator that ignores each entry of op_kwargs for which its function has no parameter, as in Airflow."""

    def __init__(self, *, python_callable: Callable[..., Any], op_kwargs: Any = None, **kwargs: Any) -> None:
        super().__init__(python_callable=python_callable, op_kwargs=_accepted(python_callable, op_kwargs), **kwargs)


def _accepted(function: Callable[..., Any], given: Any) -> Any:
    if not isinstance(given, Mapping) or not callable(function):
        return given
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return given
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return given if takes_all else {name: value for name, value in given.items() if name in parameters}


class ArgNotSet:
    """The type of NOTSET."""


#: The value of an argument that was not given.
NOTSET = ArgNotSet()


class DAG(dags.DAG):
    """A DAG that also takes the arguments of Airflow 2, such as schedule_interval."""

    def __init__(self, dag_id: str, **given: Any) -> None:
        super().__init__(dag_id, **translated(given))


def dag(dag_id: Any = None, /, **arguments: Any) -> Any:
    """As @dag; it also takes the arguments of Airflow 2."""
    return dags.dag(dag_id, **translated(arguments))


def translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a DAG with the names of Airflow 3. Those that have no effect any more are left out."""
    return {RENAMED.get(name, name): value for name, value in given.items() if name not in NO_EFFECT}


#: The results of the instances of a mapped task come as a list.
LazyXComAccess = LazyXComSelectSequence = list


#: The states of task instances and DAG runs in one place, as in Airflow 2.
State = SimpleNamespace(**{**TaskState.__members__, "NONE": None})


class DagRunType(StrEnum):
    """The way in which a run was created."""

    BACKFILL_JOB = "backfill"
    SCHEDULED = "scheduled"
    MANUAL = "manual"
    ASSET_TRIGGERED = "asset_triggered"


#: The days of the week; Monday is 1.
WeekDay = IntEnum("WeekDay", "MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY")


class LoggingMixin:
    """A base class with a logger, `log`."""

    @cached_property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")


def apply_defaults(function: F) -> F:
    """The function as it is: operators always apply default_args."""
    return function


def days_ago(n: int, hour: int = 0, minute: int = 0, second: int = 0, microsecond: int = 0) -> datetime:
    """The moment `n` days ago at that time of day, in UTC. It moves with the clock: a fixed start_date is better."""
    today = datetime.now(UTC).replace(hour=hour, minute=minute, second=second, microsecond=microsecond)
    return today - timedelta(days=n)


parse_execution_date = timezone.parse


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
