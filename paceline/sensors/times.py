"""Sensors on a moment. With `deferrable=True` they wait without a worker."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import Any, Unpack

from paceline.authoring import zones
from paceline.authoring.arguments import Arguments
from paceline.authoring.params import DagParam
from paceline.authoring.triggers import DateTimeTrigger
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import FailTask
from paceline.operators.branch import moment_of, weekdays, zone_of
from paceline.sensors.base import BaseSensorOperator, DeferrableArguments, DeferrableSensor, SensorArguments


class _MomentSensor(DeferrableSensor):
    """Waits until `moment`. `start_from_trigger`, `end_from_trigger` and `trigger_kwargs` are accepted and have no effect."""

    def __init__(
        self,
        *,
        start_from_trigger: bool = False,
        end_from_trigger: bool = False,
        trigger_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Unpack[DeferrableArguments],
    ) -> None:
        super().__init__(**kwargs)

    @abstractmethod
    def moment(self, context: Mapping[str, Any]) -> datetime:
        """The moment at which the sensor is done."""

    def poke(self, context: Mapping[str, Any]) -> bool:
        now: datetime = context["ti"].now()
        return now >= self.moment(context)

    def trigger(self, context: Mapping[str, Any]) -> DateTimeTrigger:
        return DateTimeTrigger(self.moment(context))


class DateTimeSensor(_MomentSensor):
    """Waits until `target_time`, a datetime or ISO text, which can be a template.

    Text without an offset is in the default time zone, core.default_timezone.
    """

    template_fields: Sequence[str] = ("target_time",)

    def __init__(self, *, target_time: datetime | str | XComArg, **kwargs: Unpack[DeferrableArguments]) -> None:
        super().__init__(**kwargs)
        if not isinstance(target_time, datetime | str | XComArg | DagParam):
            raise self.argument_checks().refuse(f"target_time must be a datetime or ISO text, not {target_time!r}.")
        self.target_time: Any = target_time.isoformat() if isinstance(target_time, datetime) else target_time

    def moment(self, context: Mapping[str, Any]) -> datetime:
        try:
            target = datetime.fromisoformat(str(self.target_time))
        except ValueError:
            raise FailTask(f"target_time {self.target_time!r} must be an ISO time such as 2026-01-01T06:00:00+00:00.") from None
        return target if target.utcoffset() is not None else target.replace(tzinfo=zones.load(zones.default_name()))


class TimeSensor(_MomentSensor):
    """Waits until `target_time` (a datetime.time) on the day on which the try starts, in the time zone of the DAG."""

    def __init__(self, *, target_time: time, **kwargs: Unpack[DeferrableArguments]) -> None:
        super().__init__(**kwargs)
        if not isinstance(target_time, time):
            raise self.argument_checks().refuse(f"target_time must be a datetime.time, not {target_time!r}.")
        self.target_time = target_time

    def moment(self, context: Mapping[str, Any]) -> datetime:
        zone = self.target_time.tzinfo or zone_of(self)
        today = context["ti"].start_date.astimezone(zone).date()
        return datetime.combine(today, self.target_time.replace(tzinfo=None), zone).astimezone(UTC)


class TimeDeltaSensor(_MomentSensor):
    """Waits until `delta`, a timedelta or a number of minutes, after the end of the data interval of the run."""

    template_fields: Sequence[str] = ("delta",)

    def __init__(self, *, delta: timedelta | int | str | XComArg, **kwargs: Unpack[DeferrableArguments]) -> None:
        super().__init__(**kwargs)
        self.delta = _span(self.argument_checks(), "delta", delta)

    def moment(self, context: Mapping[str, Any]) -> datetime:
        start: datetime = context["data_interval_end"] or context["dag_run"].run_after
        return start + _minutes(self.delta, "delta")


class WaitSensor(_MomentSensor):
    """Waits for `time_to_wait`, a timedelta or a number of minutes, from the start of the try."""

    template_fields: Sequence[str] = ("time_to_wait",)

    def __init__(self, *, time_to_wait: timedelta | int | str | XComArg, **kwargs: Unpack[DeferrableArguments]) -> None:
        super().__init__(**kwargs)
        self.time_to_wait = _span(self.argument_checks(), "time_to_wait", time_to_wait)

    def moment(self, context: Mapping[str, Any]) -> datetime:
        start: datetime = context["ti"].start_date
        return start + _minutes(self.time_to_wait, "time_to_wait")


def _span(checks: Arguments, name: str, given: Any) -> Any:
    """A checked timedelta, for which an int is minutes as in Airflow. A template or the result of a task stays as it is."""
    if isinstance(given, str | XComArg | DagParam):
        return given
    span = timedelta(minutes=given) if isinstance(given, int) and not isinstance(given, bool) else given
    return checks.duration(name, span, seconds_allowed=False, zero_allowed=True)


def _minutes(value: Any, name: str) -> timedelta:
    """The timedelta, or that of a rendered number of minutes."""
    try:
        return value if isinstance(value, timedelta) else timedelta(minutes=int(value))
    except (TypeError, ValueError, OverflowError):
        raise FailTask(f"{name} {value!r} must be a timedelta or a number of minutes.") from None


class DayOfWeekSensor(BaseSensorOperator):
    """Waits until today is one of the days `week_day`, a name such as "monday" or a list of names.

    Today is in the time zone of the DAG, or is the logical date of the run with `use_task_logical_date`.
    """

    def __init__(
        self, *, week_day: str | Enum | Iterable[str | Enum], use_task_logical_date: bool = False, **kwargs: Unpack[SensorArguments]
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.week_day = weekdays(checks, week_day)
        self.use_task_logical_date = checks.boolean("use_task_logical_date", use_task_logical_date)

    def poke(self, context: Mapping[str, Any]) -> bool:
        today = moment_of(context, logical=self.use_task_logical_date).astimezone(zone_of(self))
        return today.weekday() in self.week_day
