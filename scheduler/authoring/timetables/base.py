"""What every timetable answers: which run comes next, which ones lie in a range, and the newest that is due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.authoring.asset import Condition


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The times of one scheduled run, in UTC; it may be made once `run_after` has come."""

    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    run_after: datetime


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of Timetable.next_run."""

    last: datetime | None
    start: datetime | None
    end: datetime | None
    catchup: bool
    now: datetime
    covered: datetime | None


class Timetable(ABC):
    """A schedule. Frozen, and equal if its spec is."""

    __slots__ = ()

    def next_run(
        self,
        *,
        last: datetime | None,
        start: datetime | None,
        end: datetime | None,
        catchup: bool,
        now: datetime,
        covered: datetime | None = None,
    ) -> RunTimes | None:
        """The run after that of logical date `last` (None: the first), which may lie in the future; None if none follows.

        `covered` is the end of that last run's data interval, if it is known: another timetable may have made the run.
        Without `catchup` it is the newest one that is due, however many were missed before it. Always later than
        `last`, never before `start` nor after `end`. Without `start` the schedule begins with the newest one that is due.
        """
        return self._following(Asked(last, start, end, catchup, now, covered))

    @abstractmethod
    def _following(self, asked: Asked) -> RunTimes | None:
        """What `next_run` answers."""

    @abstractmethod
    def to_spec(self) -> dict[str, Any]:
        """JSON that `from_spec` reads."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """The schedule as people read it."""

    @property
    def is_periodic(self) -> bool:
        """Whether its runs lie at moments known beforehand, so that a backfill can make them."""
        return False

    @property
    def is_continuous(self) -> bool:
        """Whether a run follows as soon as the one before has ended; its times are those of its making."""
        return False

    @property
    def condition(self) -> Condition | None:
        """The updates of assets that make a run, if any do."""
        return None

    def runs_between(self, first: datetime, last: datetime, *, anchor: datetime | None = None) -> Iterator[RunTimes]:
        """The runs of logical dates from `first` to `last`, both included, in order; none unless it is periodic.

        A timedelta counts from `anchor`, the DAG's start_date, else from `first`.
        """
        return iter(())

    def latest(self, now: datetime, *, anchor: datetime | None = None) -> RunTimes | None:
        """The newest run that is due. `anchor` is the logical date of any of its runs: a timedelta counts from there, and has
        no answer without it.
        """
        if not self.is_periodic:
            return None
        run = self.next_run(last=None, start=anchor, end=None, catchup=False, now=now)
        return run if run is not None and run.run_after <= now else None

    def manual_interval(self, moment: datetime) -> tuple[datetime, datetime]:
        """The data interval of a run that a person makes for `moment`."""
        return moment, moment


def exact(moment: datetime) -> RunTimes:
    """A run of one moment, with a data interval of no length."""
    moment = moment.astimezone(UTC)
    return RunTimes(moment, moment, moment, moment)


def of_interval(start: datetime, end: datetime) -> RunTimes:
    """A run of a data interval, due when it is over."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    return RunTimes(start, start, end, end)
