"""Schedules as data, and the runs that they give: compared with those of Airflow's timetables."""

from datetime import UTC, datetime, timedelta
from typing import Any

from dateutil.relativedelta import relativedelta

from paceline import timetables
from paceline.authoring.timetables.base import Timetable

Case = dict[str, Any]


def made(case: Case) -> Timetable:
    """The timetable of a case."""
    span, zone, (first, *_) = timedelta(minutes=case["interval"]), case["zone"], case["crons"]
    match case["kind"]:
        case "cron":
            return timetables.CronTriggerTimetable(first, timezone=zone, interval=span)
        case "immediately":
            value = timedelta(hours=3) if case["immediately"] == "3 hours" else case["immediately"]
            return timetables.CronTriggerTimetable(first, timezone=zone, run_immediately=value)
        case "several":
            return timetables.MultipleCronTriggerTimetable(*case["crons"], timezone=zone)
        case "intervals":
            return timetables.CronDataIntervalTimetable(first, zone)
        case "delta":
            return timetables.DeltaTriggerTimetable(timedelta(minutes=case["minutes"]), interval=span)
        case "delta_intervals":
            return timetables.DeltaDataIntervalTimetable(timedelta(minutes=case["minutes"]))
    return timetables.DeltaTriggerTimetable(relativedelta(months=case["months"]))  # type: ignore[arg-type]


def runs(case: Case, count: int) -> list[list[str]]:
    """The start and end of the data intervals of its first runs, to the second."""
    timetable = made(case)
    start = None if case["start"] is None else datetime.fromisoformat(case["start"])
    now, late = datetime.fromisoformat(case["now"]), timedelta(seconds=case["late"])
    last = covered = None
    found = []
    for _ in range(count):
        run = timetable.next_run(last=last, start=start, end=None, catchup=case["catchup"], now=now, covered=covered)
        if run is None:
            break
        found.append(
            [one.astimezone(UTC).replace(microsecond=0).isoformat() for one in (run.data_interval_start, run.data_interval_end)]
        )
        now = max(now, run.run_after + late)
        last, covered = run.logical_date, run.data_interval_end
    return found
