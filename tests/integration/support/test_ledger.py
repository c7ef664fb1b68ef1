"""The check of the ledger finds each kind of violation, each provoked once."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.ledger import Ledger
from support.scenario import Scenario, dag

from paceline.states import TaskState

ENTER = """
insert into ledger (execution, dag_id, run_id, task_id, map_index, try_number, dispatch_id, worker_pid, backend_pid, started_at,
                    ended_at, outcome, beside)
select gen_random_uuid(), 'd', 'r', 't', -1, %s, 'x', 1, 1, now() + %s * interval '1 s', now() + %s * interval '1 s', %s,
       case when %s then array(select execution from ledger) else '{}' end
"""
Enter = Callable[..., None]


@pytest.fixture
def enter(ledger: Ledger) -> Enter:
    def enter(number: int, begun: float, ended: float | None, *, beside: bool = False) -> None:
        ledger.rows(ENTER, number, begun, ended, None if ended is None else "done", beside)

    return enter


@pytest.fixture
def ended(scenario: Scenario) -> Scenario:
    """One run of one task that succeeded in its only try."""
    Ledger.witness(scenario.settings.database_url)
    one = dag("d", {"t": []}, task={"retries": 1})
    scenario.add(replace(one, tasks=tuple(replace(task, runtime="python") for task in one.tasks)))
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()
    return scenario


def test_a_task_that_ran_once_is_correct(ended: Scenario, ledger: Ledger, enter: Enter) -> None:
    enter(1, 0, 1)

    verdict = ledger.check(ended.settings.database_url)

    assert verdict.ok
    assert verdict.counts == {"tis": 1, "executions": 1, "lost": 0, "stuck": 0, "double_running": 0, "double_success": 0}


def test_a_success_that_never_ran_or_did_not_end_is_lost(ended: Scenario, ledger: Ledger, enter: Enter) -> None:
    assert ledger.check(ended.settings.database_url).lost == ["d.t (run r): try 1 is a success that ran 0 times"]
    enter(1, 0, None)

    assert ledger.check(ended.settings.database_url).lost == ["d.t (run r): try 1 is a success that ran 0 times"]


def test_a_task_that_the_database_does_not_have_is_lost(ended: Scenario, ledger: Ledger, enter: Enter) -> None:
    enter(1, 0, 1)
    ledger.rows("update ledger set task_id = 'other'")

    assert "d.other (run r) ran and is unknown" in ledger.check(ended.settings.database_url).lost


def test_one_try_twice_is_double_running(ended: Scenario, ledger: Ledger, enter: Enter) -> None:
    enter(1, 0, None)
    enter(1, 5, 6)

    assert ledger.check(ended.settings.database_url).double_running == ["d.t (run r): try 1 ran twice"]


@pytest.mark.parametrize(("ended_at", "beside"), [(3, False), (None, True)])
def test_two_tries_at_a_time_are_double_running_unless_the_first_was_declared_lost(
    ended: Scenario, ledger: Ledger, enter: Enter, ended_at: float | None, beside: bool
) -> None:
    enter(1, 0, ended_at)
    enter(2, 2, 4, beside=beside)
    text = "d.t (run r): try 1 was still there when try 2 began"
    assert ledger.check(ended.settings.database_url).double_running == [text]
    ended.sql(
        "insert into task_try (task_instance_id, try_number, state, reason)"
        " select id, 1, 'failed', 'worker w sent no heartbeat for 10 s' from task_instance"
    )
    ended.sql("update task_instance set try_number = 2")

    verdict = ledger.check(ended.settings.database_url)

    assert (verdict.double_running, verdict.overtaken) == ([], [text])


def test_tries_one_after_the_other_are_correct(ended: Scenario, ledger: Ledger, enter: Enter) -> None:
    enter(1, 0, 2)
    enter(2, 2, 4)

    assert ledger.check(ended.settings.database_url).double_running == []


def test_a_run_that_has_not_ended_is_stuck(scenario: Scenario, ledger: Ledger) -> None:
    scenario.start(dag("d", {"t": []}), run_id="r")

    assert ledger.check(scenario.settings.database_url).stuck == ["d.t (run r) is queued in a run that is running"]


def test_a_success_that_is_undone_and_comes_again_is_double(ended: Scenario, ledger: Ledger) -> None:
    ended.sql("update task_instance set state = 'running'")
    ended.sql("update task_instance set state = %s", TaskState.SUCCESS.value)

    assert len(ledger.check(ended.settings.database_url).double_success) == 1


def test_two_successful_tries_are_a_double_success(ended: Scenario, ledger: Ledger) -> None:
    ended.sql("insert into task_try (task_instance_id, try_number, state) select id, 1, 'success' from task_instance")
    ended.sql("update task_instance set try_number = 2")

    assert ledger.check(ended.settings.database_url).double_success == ["d.t (run r) has 2 successful tries"]
