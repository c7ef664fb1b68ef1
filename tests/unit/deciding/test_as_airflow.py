"""Small DAGs recorded from the scheduler of Apache Airflow 3.3.2: Paceline ends them in the same states.

A line of airflow_states.jsonl is a DAG, how each of its tasks ends, which running task instance ends next (the `first` or the
`last` in the order of the file), and the states that Airflow came to. record_airflow_states.py recorded it.
"""

import json
from pathlib import Path

import pytest
from support.airflow_cases import by_task, ended, named

CASES = [json.loads(line) for line in Path(__file__).with_name("airflow_states.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("part", range(8))
def test_small_dags_end_as_in_airflow(part: int) -> None:
    for case in CASES[part::8]:
        run = ended(case)

        assert (by_task(named(run)), str(run.state)) == (by_task(case["states"]), case["run"]), case["tasks"]


def test_the_recording_has_every_rule() -> None:
    rules = {one.get("rule", "all_success") for case in CASES for one in case["tasks"]}

    assert len(CASES) > 300
    assert len(rules) == 12


def test_a_successful_teardown_does_not_hide_a_failure() -> None:
    """Not even with on_failure_fail_dagrun. In Airflow this run succeeds."""
    up, work = {"id": "up", "setup": True, "up": []}, {"id": "work", "out": "failed", "up": ["up"]}
    down = {"id": "down", "teardown": True, "fail_dagrun": True, "up": ["up", "work"]}

    run = ended({"tasks": [up, work, down], "order": "first"})

    assert (named(run), str(run.state)) == ({"up": "success", "work": "failed", "down": "success"}, "failed")
