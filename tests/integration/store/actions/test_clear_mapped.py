"""Clearing mapped tasks: instances that stay, that are deleted, and that are expanded again."""

import pytest
from support.run_actions import brief, clear_, end, push, running
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.store.runs.selection import Tasks

S = TaskState
MAPPED = dag(
    "d",
    {"source": [], "each": ["source"], "after": ["each"]},
    options={"each": {"expand": {"kind": "product", "inputs": [{"task": "source", "key": "return_value"}]}}},
)


def mapped(scenario: Scenario, value: str) -> None:
    scenario.add(MAPPED)
    scenario.trigger("d", run_id="r")
    push(scenario, running(scenario), value)
    scenario.run_to_end()


def each(scenario: Scenario) -> dict[int, str]:
    return dict(scenario.rows("select map_index, coalesce(state, 'none') from task_instance where task_id = 'each' order by 1"))


def test_one_map_index_is_cleared_alone(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    assert brief(clear_(scenario, Tasks(task_ids=("each",), map_index=1))) == [("each", 1, "success", "none")]

    scenario.run_to_end()
    tries = scenario.rows("select map_index, try_number from task_instance where task_id = 'each' order by 1")
    assert tries == [(0, 1), (1, 2), (2, 1)]


def test_a_mapped_task_cleared_with_its_source_is_expanded_again(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    changes = clear_(scenario, Tasks(task_ids=("source",), downstream=True))

    assert [one[:2] + one[3:] for one in brief(changes)] == [
        ("source", -1, "none"), ("each", 0, "none"), ("each", 1, "none"), ("each", 2, "none"), ("after", -1, "none"),
    ]  # fmt: skip
    push(scenario, running(scenario), "[1, 2]")
    scenario.run_to_end()
    assert each(scenario) == {0: "success", 1: "success", 2: "removed"}
    assert scenario.states()["after"] == "success"
    tries = scenario.rows("select try_number from task_instance where task_id = 'each' order by map_index")
    assert tries == [(2,), (2,), (1,)]


def test_a_source_that_returns_nothing_now_leaves_the_old_instances_removed_until_it_returns_something(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    clear_(scenario, Tasks(task_ids=("source",), downstream=True))
    push(scenario, running(scenario), "[]")
    scenario.run_to_end()

    assert each(scenario) == {-1: "skipped", 0: "removed", 1: "removed", 2: "removed"}
    assert (scenario.states()["after"], scenario.rows("select state from dag_run")) == ("skipped", [("success",)])
    tries = "select count(*) from task_try o join task_instance t on t.id = o.task_instance_id where t.task_id = 'each'"
    assert scenario.rows(tries) == [(3,)], "what ran is still told"

    clear_(scenario)
    push(scenario, running(scenario), "[1, 2, 3, 4]")
    scenario.run_to_end()
    assert each(scenario) == dict.fromkeys(range(4), "success")


def test_a_source_that_fails_now_leaves_the_old_instances_removed(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    clear_(scenario, Tasks(task_ids=("source",), downstream=True))
    scenario.run_to_end(outcome=lambda claim: S.FAILED)

    assert each(scenario) == {-1: "upstream_failed", 0: "removed", 1: "removed", 2: "removed"}
    assert scenario.rows("select state from dag_run") == [("failed",)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_instance_is_removed_if_there_is_nothing_at_its_index_any_more(scenario: Scenario, order: tuple[int, int]) -> None:
    mapped(scenario, "[1, 2, 3]")
    for one in order:
        clear_(scenario, (Tasks(task_ids=("source",)), Tasks(task_ids=("each",), map_index=2))[one])
    assert each(scenario) == {-1: "none", 0: "success", 1: "success", 2: "none"}

    push(scenario, running(scenario), "[1, 2]")
    scenario.run_to_end()

    assert each(scenario) == {0: "success", 1: "success", 2: "removed"}


def test_instances_that_run_are_stopped_before_a_mapped_task_is_expanded_again(scenario: Scenario) -> None:
    scenario.add(MAPPED)
    scenario.trigger("d", run_id="r")
    push(scenario, running(scenario), "[1, 2, 3, 4]")
    scenario.turn()
    claims = {claim.map_index: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    push(scenario, claims.pop(0))

    changes = clear_(scenario, Tasks(task_ids=("source",), downstream=True))

    assert [one[1:] for one in brief(changes) if one[0] == "each"] == [
        (0, "success", "none"), (1, "running", "shutdown"), (2, "running", "shutdown"), (3, "running", "shutdown"),
    ]  # fmt: skip
    push(scenario, running(scenario), "[1, 2]")
    scenario.turn()
    for index in (1, 3):
        assert not end(scenario, claims[index])
        scenario.turn()
        assert not scenario.messages(), "one of the old instances is still being stopped"
    assert not end(scenario, claims[2])
    scenario.run_to_end()
    assert each(scenario) == {0: "success", 1: "success", 2: "removed", 3: "removed"}
    assert scenario.states()["after"] == "success"


def test_a_mapped_task_cleared_without_its_source_keeps_its_instances(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    clear_(scenario, Tasks(task_ids=("each",)))

    assert list(each(scenario)) == [0, 1, 2]
    scenario.run_to_end()
    assert set(scenario.states().values()) == {"success"}
