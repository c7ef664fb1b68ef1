"""Random schedules give the runs that Airflow's timetables give. A new difference is reduced and kept as a test."""

import json
import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.airflow_differences import Difference
from support.airflow_schedules import Case, runs

SCHEDULES, RUNS = 200, 200
MOST_FOUND = 3
#: The cases of `make test`.
KEPT = Path(__file__).parents[1] / "unit" / "authoring" / "airflow_schedules.jsonl"
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
    except ValueError as error:
        if "did not advance" not in str(error):
            raise
        answers.append("ValueError")
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


def _known(case: Case, theirs: Any) -> Difference | None:
    """The class of differences to which a schedule belongs as a whole; None if it must be equal."""
    if isinstance(theirs, str):
        return Difference.CLOCK_CHANGES
    if case["kind"] in {"intervals", "delta_intervals"} and case["catchup"] and case["start"] is None:
        return Difference.DATA_INTERVALS
    if case["kind"] == "months":
        return Difference.MONTHS
    return None


def _at_a_change(case: Case, run: list[str]) -> bool:
    """Whether the clocks of the zone change within two days of a run: the class CLOCK_CHANGES."""
    from zoneinfo import ZoneInfo

    zone, moment = ZoneInfo(case["zone"]), datetime.fromisoformat(run[0])
    days = (timedelta(days=-2), timedelta(days=2))
    return len({(moment + day).astimezone(zone).utcoffset() for day in days}) > 1


def _place(case: Case, theirs: Any) -> int | None:
    """The number of the first run that differs and belongs to no class of differences; None if there is none."""
    ours = runs(case, RUNS)
    if ours == theirs or _known(case, theirs) is not None:
        return None
    pairs = zip(ours, theirs, strict=False)
    place = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), min(len(ours), len(theirs)))
    return None if place < len(theirs) and _at_a_change(case, theirs[place]) else place


def _smaller(case: Case) -> Iterator[Case]:
    """The case with one value set to its default."""
    now = datetime.fromisoformat(case["now"])
    simple = {
        "late": 0, "interval": 0, "zone": "UTC", "start": None, "catchup": False, "immediately": None, "minutes": 1440, "months": 1,
        "now": now.replace(hour=0, minute=0, second=0, microsecond=0).isoformat(), "crons": ["0 0 * * *", "0 9 1 * *"],
    }  # fmt: skip
    for name, value in simple.items():
        if case[name] != value:
            yield case | {name: value}


def _smallest(case: Case, ask: Callable[[list[Case]], Any]) -> Case:
    """A case that keeps a difference, and keeps none with one more default; with Airflow's runs up to it."""
    while True:
        cases = [case, *_smaller(case)]
        (answer, *answers) = ask(cases)
        found = next((one for one, theirs in zip(cases[1:], answers, strict=True) if _place(one, theirs) is not None), None)
        if found is None:
            return case | {"runs": answer[: (_place(case, answer) or 0) + 1]}
        case = found


def test_random_schedules_have_the_same_runs(ask_airflow: Callable[..., Any], figures: dict[str, Any], tmp_path: Path) -> None:
    seed = os.environ.get("SEED") or str(random.randrange(10**9))
    dice = random.Random(seed)
    cases = [random_case(dice) for _ in range(SCHEDULES)]

    def ask(asked: list[Case]) -> Any:
        (tmp_path / "cases.json").write_text(json.dumps(asked))
        return ask_airflow(PROGRAM, str(tmp_path / "cases.json"), str(RUNS))

    answers = ask(cases)

    different = [case for case, theirs in zip(cases, answers, strict=True) if _place(case, theirs) is not None]
    unequal = sum(runs(case, RUNS) != theirs for case, theirs in zip(cases, answers, strict=True))
    figures["random schedules"] = {
        "seed": seed, "runs of each": RUNS, "equal": len(cases) - unequal, "of known classes": unequal - len(different),
        "new": len(different),
    }  # fmt: skip
    found = [_smallest(case, ask) for case in different[:MOST_FOUND]]
    if found:
        with KEPT.open("a") as file:
            file.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in found)
    assert found == [], f"SEED={seed}; these are in {KEPT.name} now"
