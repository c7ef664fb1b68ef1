"""Deadlines of DAG runs: `deadline=DeadlineAlert(reference=..., interval=..., callback=...)`, or a list of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from paceline.authoring import source
from paceline.authoring.arguments import Arguments

DEFAULT_MAX_RUNS = 10


@dataclass(frozen=True, slots=True)
class Reference:
    """The moment from which a deadline counts; see `DeadlineReference`."""

    kind: str
    at: datetime | None = None
    max_runs: int | None = None
    min_runs: int | None = None


class DeadlineReference:
    """The moments from which a deadline can count."""

    #: The logical date of the run; a run without one gets no deadline.
    DAGRUN_LOGICAL_DATE = Reference("dagrun_logical_date")
    #: When the run was queued: when it was created or last cleared.
    DAGRUN_QUEUED_AT = Reference("dagrun_queued_at")

    @staticmethod
    def FIXED_DATETIME(dt: datetime) -> Reference:
        """The same moment for every run: a datetime with a time zone."""
        return Reference("fixed_datetime", at=_checks().moment("DeadlineReference.FIXED_DATETIME", dt))

    @staticmethod
    def AVERAGE_RUNTIME(max_runs: int = 0, min_runs: int | None = None) -> Reference:
        """When the run was queued, plus the mean duration of the last `max_runs` (0: 10) successful runs.

        There is no deadline with fewer than `min_runs` successful runs; `min_runs` defaults to `max_runs`.
        """
        checks = _checks()
        most = checks.integer("max_runs", max_runs, least=0) or DEFAULT_MAX_RUNS
        least = most if min_runs is None else checks.integer("min_runs", min_runs, least=1)
        if least > most:
            raise checks.refuse(f"min_runs is {least} and must not be more than max_runs, {most}.")
        return Reference("average_runtime", max_runs=most, min_runs=least)


class SyncCallback:
    """A callback with arguments: the function `callback_callable` is called with `kwargs` and with `context`."""

    def __init__(self, callback_callable: Callable[..., Any], kwargs: Mapping[str, Any] | None = None) -> None:
        if not callable(callback_callable):
            raise _checks().refuse(f"a callback must be a function, not {callback_callable!r}; pass the function, not its path.")
        self.callback_callable = callback_callable
        self.kwargs = dict(kwargs or {})


class AsyncCallback(SyncCallback):
    """A SyncCallback for an `async def` function."""


@dataclass(eq=False)
class DeadlineAlert:
    """Calls `callback` once for each run that has not succeeded by `interval` (may be negative) after `reference`.

    `callback` is a function that takes the context, or a SyncCallback. `name` distinguishes the alerts of a DAG. DagError if an
    argument is wrong.
    """

    reference: Reference
    interval: timedelta
    callback: Callable[..., Any] | SyncCallback
    name: str | None = None

    def __post_init__(self) -> None:
        checks = _checks()
        if not isinstance(self.reference, Reference):
            raise checks.refuse(f"reference must be a DeadlineReference, such as DAGRUN_QUEUED_AT, not {self.reference!r}.")
        if not isinstance(self.interval, timedelta):
            raise checks.refuse(f"interval must be a timedelta such as timedelta(minutes=5), not {self.interval!r}.")
        if not callable(self.callback) and not isinstance(self.callback, SyncCallback):
            raise checks.refuse(f"callback must be a function that takes the context, or a SyncCallback, not {self.callback!r}.")

    def to_spec(self) -> dict[str, Any]:
        """The deadline as data; its callback stays in the DAG file."""
        return {
            "reference": self.reference.kind,
            "interval_s": self.interval.total_seconds(),
            "at": self.reference.at.isoformat() if self.reference.at else None,
            "max_runs": self.reference.max_runs,
            "min_runs": self.reference.min_runs,
            "name": self.name,
        }


def alerts(checks: Arguments, _name: str, value: object) -> tuple[DeadlineAlert, ...]:
    """The checked argument `deadline` of a DAG: None, one alert, or a list."""
    given = () if value is None else (value,) if isinstance(value, DeadlineAlert) else value
    if not isinstance(given, list | tuple) or not all(isinstance(alert, DeadlineAlert) for alert in given):
        raise checks.refuse(f"deadline must be a DeadlineAlert or a list of them, not {value!r}.")
    return tuple(given)


def _checks() -> Arguments:
    return Arguments("A deadline", source.here())
