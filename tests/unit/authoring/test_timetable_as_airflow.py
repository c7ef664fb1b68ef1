"""Schedules recorded from the timetables of Apache Airflow 3.3.2: Paceline creates the same runs.

A line of airflow_schedules.jsonl is a schedule with the runs that Airflow gave. tests/differential/test_schedules.py records
them, and adds each new difference, made small.
"""

import json
from pathlib import Path

from support.airflow_schedules import runs

CASES = [json.loads(line) for line in Path(__file__).with_name("airflow_schedules.jsonl").read_text().splitlines()]


def test_schedules_have_the_runs_of_airflow() -> None:
    different = [case for case in CASES if runs(case, len(case["runs"])) != case["runs"]]

    assert different == []


def test_the_recording_has_every_kind() -> None:
    assert {case["kind"] for case in CASES} == {
        "cron", "several", "intervals", "delta", "delta_intervals", "months", "immediately"
    }  # fmt: skip
