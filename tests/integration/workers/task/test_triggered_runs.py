"""The runs of other DAGs that a task triggers, over its tries: each try continues with the run of an earlier one."""

from collections.abc import Collection
from typing import Any

import pytest
from support.scenario import Scenario, dag

from paceline.exceptions import ConflictError, StaleTryError
from paceline.states import TaskState as S
from scheduler.store.actions import clear
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker import claims
from scheduler.store.worker.claims import Claim, Ending
from workers.task import triggered_runs


@pytest.fixture
def first(scenario: Scenario) -> Claim:
    """The first try of a task with retries, beside a DAG that it can trigger."""
    scenario.add(dag("child", {"c": []}))
    scenario.triggered(dag("parent", {"t": []}, task={"retries": 5}), run_id="p")
    return claimed(scenario)


def claimed(scenario: Scenario) -> Claim:
    scenario.turn()
    [claim] = [claim for message in scenario.messages() if (claim := scenario.claim(message)) and claim.dag_id == "parent"]
    return claim


def retried(scenario: Scenario, claim: Claim) -> Claim:
    """The try after one that has failed, or whose worker was lost."""
    assert scenario.follower.report(claim, Ending(S.UP_FOR_RETRY, delay_s=0.0)).is_stored
    return claimed(scenario)


def trigger(
    scenario: Scenario, claim: Claim, run_id: str | None = None, *, adopt_unless: Collection[str] | None = ("failed",), **more: Any
) -> str:
    return triggered_runs.trigger(
        scenario.settings, "child", run_id=run_id, claim=claim, now=scenario.hot.now, patient=lambda ask: ask(),
        adopt_unless=adopt_unless, **{"logical_date": None, "conf": {}, "reset": False, **more},
    )  # fmt: skip


def children(scenario: Scenario) -> list[tuple[Any, ...]]:
    return scenario.rows("select run_id, state, conf from dag_run where dag_id = 'child' order by id")


def ended(scenario: Scenario, state: str) -> None:
    scenario.sql("update dag_run set state = %s, started_at = now(), ended_at = now() where dag_id = 'child'", state)
    scenario.sql(
        "update task_instance set state = %s, ended_at = now(), dispatch_id = null"
        " where dag_run_id in (select id from dag_run where dag_id = 'child')",
        state,
    )


@pytest.mark.parametrize("run_id", [None, "fixed"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_retry_continues_with_the_run_of_the_earlier_try(
    scenario: Scenario, first: Claim, run_id: str | None, reset: bool
) -> None:
    made = trigger(scenario, first, run_id, reset=reset)
    second = retried(scenario, first)

    assert trigger(scenario, second, run_id, reset=reset) == made
    assert len(children(scenario)) == 1
    ended(scenario, "success")
    assert trigger(scenario, retried(scenario, second), run_id, reset=reset) == made
    assert children(scenario) == [(made, "success", {})], "it was not cleared either"


def test_a_retry_after_a_failed_run_creates_another(scenario: Scenario, first: Claim) -> None:
    made = trigger(scenario, first)
    ended(scenario, "failed")
    second = retried(scenario, first)

    again = trigger(scenario, second)

    assert [run_id for run_id, *_ in children(scenario)] == [made, again] and again != made
    assert trigger(scenario, retried(scenario, second)) == again


def test_a_retry_after_a_failed_run_clears_it_if_there_can_be_no_other(scenario: Scenario, first: Claim) -> None:
    trigger(scenario, first, "fixed")
    ended(scenario, "failed")

    assert trigger(scenario, retried(scenario, first), "fixed") == "fixed"
    assert [state for _, state, _ in children(scenario)] == ["queued"]


def test_the_run_of_another_author_is_a_conflict_in_every_try(scenario: Scenario, first: Claim) -> None:
    scenario.trigger("child", run_id="fixed")
    with pytest.raises(ConflictError):
        trigger(scenario, first, "fixed")

    second = retried(scenario, first)
    with pytest.raises(ConflictError):
        trigger(scenario, second, "fixed")


def test_a_cleared_task_triggers_again(scenario: Scenario, first: Claim) -> None:
    made = trigger(scenario, first)
    assert scenario.follower.report(first, Ending(S.SUCCESS)).is_stored
    clear.clear(scenario.engine, Runs(dag_id="parent", run_id="p"), Tasks(), core=scenario.settings.core)

    assert trigger(scenario, claimed(scenario)) != made
    assert len(children(scenario)) == 2


def test_without_adoption_each_call_triggers(scenario: Scenario, first: Claim) -> None:
    made = [trigger(scenario, first, run_id, adopt_unless=None) for run_id in ("one", "two")]

    assert [run_id for run_id, *_ in children(scenario)] == made == ["one", "two"]


def test_a_reset_gives_the_run_the_conf_of_the_task_if_it_has_one(scenario: Scenario, first: Claim) -> None:
    scenario.trigger("child", run_id="fixed", conf={"a": 1})

    trigger(scenario, first, "fixed", reset=True, adopt_unless=None)
    assert children(scenario) == [("fixed", "queued", {"a": 1})]
    trigger(scenario, first, "fixed", reset=True, conf={"a": 2}, adopt_unless=None)
    assert children(scenario) == [("fixed", "queued", {"a": 2})]


def test_the_first_start_is_that_of_the_first_try_since_a_clear(scenario: Scenario, first: Claim) -> None:
    def first_start(claim: Claim) -> Any:
        return claims.first_start(scenario.hot, claim, claim.max_tries - 5 + 1)

    third = retried(scenario, retried(scenario, first))
    assert (first_start(first), first_start(third)) == (first.started_at, first.started_at)
    assert scenario.follower.report(third, Ending(S.SUCCESS)).is_stored
    clear.clear(scenario.engine, Runs(dag_id="parent", run_id="p"), Tasks(), core=scenario.settings.core)
    cleared = claimed(scenario)
    assert first_start(cleared) == cleared.started_at
    assert first_start(retried(scenario, cleared)) == cleared.started_at


def test_a_stale_try_changes_and_remembers_nothing(scenario: Scenario, first: Claim) -> None:
    scenario.trigger("child", run_id="fixed", conf={"a": 1})
    second = retried(scenario, first)

    with pytest.raises(StaleTryError):
        transact(scenario.engine, manual_runs.replace_conf, "child", "fixed", {"a": 2}, first.writer)
    with pytest.raises(StaleTryError):
        transact(scenario.engine, manual_runs.remember_child, first.writer, "child", "fixed", max_tries=first.max_tries)

    assert [conf for *_, conf in children(scenario)] == [{"a": 1}]
    assert transact(scenario.engine, manual_runs.child, second.writer, "child", max_tries=second.max_tries) is None
