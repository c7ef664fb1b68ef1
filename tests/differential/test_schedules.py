"""Random schedules give the runs that Airflow's timetables give."""

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dateutil.relativedelta import relativedelta

from scheduler import timetables
from scheduler.authoring.timetables.base import Timetable

SCHEDULES, RUNS = 200, 200
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago")
CRONS = (
    "0 0 * * *", "30 2 * * *", "15 2,3 * * *", "0 */2 * * *", "*/20 * * * *", "0 * * * *", "45 1 * * 0", "0 9 1 * *",
    "0,30 1-3 * * *", "@midnight", "30 2 * * 0,3",
)  # fmt: skip
MINUTES = (7, 30, 60, 90, 1440, 10080)
#: A day of a change of the clocks in each zone.
CHANGES = {
    "UTC": datetime(2026, 6, 1, tzinfo=UTC), "Europe/Berlin": datetime(2026, 10, 25, tzinfo=UTC),
    "America/New_York": datetime(2026, 11, 1, tzinfo=UTC), "Australia/Lord_Howe": datetime(2026, 4, 5, tzinfo=UTC),
    "America/Santiago": datetime(2026, 4, 5, tzinfo=UTC),
}  # fmt: skip
Case = dict[str, Any]

#: Prints for each case its runs as [[start, end], ...] of their data intervals, or the error.
PROGRAM = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from datetime import UTC, datetime, timedelta
from pathlib import Path
import pendulum
from dateutil.relativedelta import relativedelta
import airflow.timetables.interval as interval
import airflow.timetables.trigger as trigger
from airflow.timetables.base import TimeRestriction

clock = []
class Clock:
    @staticmethod
    def time(): return clock[0].timestamp()
interval.utcnow = trigger.utcnow = lambda: pendulum.instance(clock[0])
trigger.time = Clock

def moment(text): return None if text is None else pendulum.instance(datetime.fromisoformat(text))
def made(case):
    kind, zone = case["kind"], case["zone"]
    span = timedelta(minutes=case["interval"])
    if kind == "cron": return trigger.CronTriggerTimetable(case["crons"][0], timezone=zone, interval=span)
    if kind == "immediately":
        value = case["immediately"]
        value = timedelta(hours=3) if value == "3 hours" else value
        return trigger.CronTriggerTimetable(case["crons"][0], timezone=zone, run_immediately=value)
    if kind == "several": return trigger.MultipleCronTriggerTimetable(*case["crons"], timezone=zone)
    if kind == "intervals": return interval.CronDataIntervalTimetable(case["crons"][0], zone)
    if kind == "delta": return trigger.DeltaTriggerTimetable(timedelta(minutes=case["minutes"]), interval=span)
    if kind == "delta_intervals": return interval.DeltaDataIntervalTimetable(timedelta(minutes=case["minutes"]))
    return trigger.DeltaTriggerTimetable(relativedelta(months=case["months"]))

def runs(case, count):
    timetable = made(case)
    now, late = moment(case["now"]), timedelta(seconds=case["late"])
    clock[:] = [now]
    restriction = TimeRestriction(moment(case["start"]), None, case["catchup"])
    info = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=restriction)
    found = []
    for _ in range(count):
        if info is None:
            break
        span = info.data_interval
        found.append([one.in_timezone("UTC").replace(microsecond=0).isoformat() for one in (span.start, span.end)])
        clock[0] = max(clock[0], info.run_after + late)
        info = timetable.next_dagrun_info(last_automated_data_interval=span, restriction=restriction)
    return found

answers = []
for case in json.loads(Path(sys.argv[1]).read_text()):
    try:
        answers.append(runs(case, int(sys.argv[2])))
    except AssertionError:
        answers.append("AssertionError")
print(json.dumps(answers))
"""


def random_case(dice: random.Random) -> Case:
    zone = dice.choice(ZONES)
    change = CHANGES[zone] - timedelta(days=210 if dice.random() < 0.4 else 0)
    now = change + timedelta(minutes=dice.randrange(-4000, 3000), seconds=dice.choice((0, 0, 17.25)))
    starts = (
        None, now - timedelta(minutes=dice.randrange(9000)), now - timedelta(days=40, minutes=10),
        now + timedelta(minutes=dice.randrange(4000)),
    )  # fmt: skip
    start = dice.choice(starts)
    return {
        "kind": dice.choice(("cron", "several", "intervals", "delta", "delta_intervals", "months", "immediately")),
        "crons": dice.sample(CRONS, 2),
        "zone": zone,
        "interval": dice.choice((0, 0, 60)),
        "immediately": dice.choice((True, False, "3 hours", None)),
        "minutes": dice.choice(MINUTES),
        "months": dice.choice((1, 2)),
        "start": None if start is None else start.replace(microsecond=0).isoformat(),
        "now": now.isoformat(),
        "catchup": dice.random() < 0.5,
        "late": dice.choice((0, 0.3)),
    }


def made(case: Case) -> Timetable:
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


def runs(case: Case) -> list[list[str]]:
    timetable = made(case)
    start = None if case["start"] is None else datetime.fromisoformat(case["start"])
    now, late = datetime.fromisoformat(case["now"]), timedelta(seconds=case["late"])
    last = covered = None
    found = []
    for _ in range(RUNS):
        run = timetable.next_run(last=last, start=start, end=None, catchup=case["catchup"], now=now, covered=covered)
        if run is None:
            break
        found.append(
            [one.astimezone(UTC).replace(microsecond=0).isoformat() for one in (run.data_interval_start, run.data_interval_end)]
        )
        now = max(now, run.run_after + late)
        last, covered = run.logical_date, run.data_interval_end
    return found


def _known(case: Case, theirs: Any) -> str | None:
    """The difference on the parity page to which a schedule belongs as a whole; None if it must be equal."""
    if theirs == "AssertionError":
        return "Clock changes"
    if case["kind"] in {"intervals", "delta_intervals"} and case["catchup"] and case["start"] is None:
        return "Data intervals with catchup and without start_date"
    if case["kind"] == "months":
        return "Months"
    return None


def _at_a_change(case: Case, run: list[str]) -> bool:
    """Whether the clocks of the zone change within two days of a run: the class "Clock changes"."""
    from zoneinfo import ZoneInfo

    zone, moment = ZoneInfo(case["zone"]), datetime.fromisoformat(run[0])
    days = (timedelta(days=-2), timedelta(days=2))
    return len({(moment + day).astimezone(zone).utcoffset() for day in days}) > 1


def test_random_schedules_have_the_same_runs(ask_airflow: Callable[..., Any], tmp_path: Path) -> None:
    seed = os.environ.get("SEED") or str(random.randrange(10**9))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    cases = [random_case(dice) for _ in range(SCHEDULES)]
    (tmp_path / "cases.json").write_text(json.dumps(cases))

    theirs = ask_airflow(PROGRAM, str(tmp_path / "cases.json"), str(RUNS))

    different, classes = [], dict[str, int]()
    for case, answer in zip(cases, theirs, strict=True):
        ours = runs(case)
        if ours == answer:
            continue
        known = _known(case, answer)
        place = next((at for at, pair in enumerate(zip(ours, answer, strict=False)) if pair[0] != pair[1]), None)
        if known is None and place is not None and _at_a_change(case, answer[place]):
            known = "Clock changes"
        if known is None:
            shown = (None, len(ours), len(answer)) if place is None else (place, ours[place], answer[place])
            different.append((case, shown))
        else:
            classes[known] = classes.get(known, 0) + 1
    print(json.dumps(classes))
    assert different == [], f"SEED={seed}"
