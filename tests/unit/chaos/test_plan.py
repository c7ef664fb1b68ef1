"""The plan of a chaos run, and the DAG files that are written from it."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from chaos.dag_files import files
from chaos.faults import MEASURED, UNMEASURED
from chaos.plan import PlannedDag, PlannedTask, Schedule
from chaos.recovery import Recovery, figures
from chaos.run import FaultSchedule
from chaos.shapes import PAST_RUNS, plan
from support.ledger import Ledger

from paceline.authoring.dag import DAG
from scheduler.dagfiles.load import load

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("seed", range(3))
def test_the_dag_files_contain_the_plan(seed: int, tmp_path: Path) -> None:
    planned = plan(seed, start=NOON, seconds=60)
    found: dict[str, DAG] = {}
    for name, source in files(planned, Ledger("postgresql://nowhere")).items():
        (tmp_path / name).write_text(source)
        found |= load(tmp_path, name)

    assert found.keys() == planned.dags.keys()
    for dag in planned.dags.values():
        tasks = found[dag.dag_id].task_dict
        assert tasks.keys() == dag.task.keys()
        for task in dag.tasks:
            assert set(tasks[task.task_id].upstream_task_ids) == set(task.upstream), task
            assert (str(tasks[task.task_id].trigger_rule), tasks[task.task_id].retries) == (task.rule, task.retries)


def test_the_same_seed_plans_the_same_dags() -> None:
    assert plan(7, start=NOON, seconds=60) == plan(7, start=NOON, seconds=60)
    assert plan(7, start=NOON, seconds=60) != plan(8, start=NOON, seconds=60)


def test_the_last_scheduled_run_is_due_when_the_faults_end() -> None:
    schedule = plan(1, start=NOON, seconds=60).dags["c21_catchup"].schedule
    assert schedule is not None

    assert len(schedule.dates) == PAST_RUNS + 3
    assert schedule.dates[-1] + schedule.interval == NOON + timedelta(seconds=60)


def test_a_mapped_task_whose_list_does_not_exist_stays_one_instance() -> None:
    dag = PlannedDag(
        dag_id="d",
        tasks=(PlannedTask(task_id="make", does="lists", count=2), PlannedTask(task_id="one", does="item", count=2, over="make")),
    )

    assert dag.instances({"make": "success"}) == {("make", -1), ("one", 0), ("one", 1)}
    assert dag.instances({"make": "failed"}) == {("make", -1), ("one", -1)}


def test_dates_of_a_schedule_include_both_ends() -> None:
    one = Schedule(start=NOON, end=NOON + timedelta(minutes=1), interval=timedelta(seconds=30))

    assert one.dates == [NOON, NOON + timedelta(seconds=30), NOON + timedelta(seconds=60)]


def test_every_second_draw_is_a_fault_whose_recovery_is_measured() -> None:
    schedule = FaultSchedule(UNMEASURED, MEASURED, seed=1)
    drawn = [schedule.draw() for _ in range(60)]

    assert all(len(one) == 1 and one[0] in MEASURED for one in drawn[1::2])
    others = Counter(fault for one in drawn[::2] for fault in one)
    assert set(others) <= set(UNMEASURED)
    assert set(others) == set(UNMEASURED), "each comes before any comes much more often"
    assert FaultSchedule((), MEASURED, seed=1).draw()[0] in MEASURED
    assert FaultSchedule((), (), seed=1).draw() == []


def test_a_recovery_has_the_number_of_its_samples() -> None:
    found = figures([Recovery("worker", [1.0, 3.0]), Recovery("worker", [2.0]), Recovery("redis", [])])

    assert found["worker"] == {"p50": 2.0, "max": 3.0, "samples": 3}
    assert found["redis"] == {"p50": None, "max": None, "samples": 0}
