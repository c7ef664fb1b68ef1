"""Tasks mapped over the result of another task, while the DAG changes and its runs are cleared."""

from typing import Any

import pytest
from support.run_actions import brief, clear_, push, running
from support.scenario import Scenario, dag, of, product

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.runs.selection import Tasks
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Ending

S = TaskState
FREE = {"disable_bundle_versioning": True}


def mapped(ref: dict[str, Any] | None = None, **options: Any) -> SerializedDag:
    """source returns a list, each is mapped over it, after comes after all of each."""
    edges: dict[str, list[str]] = {"source": [], "each": ["source"], "after": ["each"]}
    return dag("d", edges, options={"each": product(ref or of("source"))}, **options)


def returning(result: str) -> Any:
    return lambda claim: Ending(S.SUCCESS, result=result if claim.task_id == "source" else None)


REFS = [
    of("source"),
    {"zip": [of("source"), {"literal": 5}], "longest": False},
    {"zip": [of("source"), {"literal": 2}], "longest": True},
    {"concat": [of("source"), {"concat": [of("source")]}]},
]


@pytest.mark.parametrize("ref", REFS, ids=["result", "zip", "zip_longest", "concat"])
def test_an_open_run_continues_after_an_edit_of_its_unpinned_dag(scenario: Scenario, ref: dict[str, Any]) -> None:
    scenario.add(mapped(ref, **FREE))
    run = scenario.trigger("d", run_id="r")
    push(scenario, running(scenario), "[1, 2]")
    scenario.turn()
    scenario.add(mapped(ref, description="edited", **FREE))

    scenario.sql("update task_instance set state = 'scheduled' where state = 'queued'")  # their messages go astray
    scenario.run_to_end(turns=10)

    assert scenario.run_state(run) == "success"
    assert scenario.rows("select max(v.number) from dag_run r join dag_version v on v.id = r.version_id") == [(2,)]


@pytest.mark.parametrize("ref", REFS, ids=["result", "zip", "zip_longest", "concat"])
def test_clearing_with_the_latest_version_after_an_edit_keeps_the_mapped_result(scenario: Scenario, ref: dict[str, Any]) -> None:
    scenario.add(mapped(ref))
    run = scenario.trigger("d", run_id="r")
    scenario.run_to_end(outcome=returning("[1, 2]"))
    before = scenario.states()
    scenario.add(mapped(ref, description="edited"))

    changes = clear_(scenario, Tasks(task_ids=("after",)), latest=True)

    assert brief(changes) == [("after", -1, "success", "none")]
    scenario.run_to_end()
    assert scenario.states() == before
    assert scenario.run_state(run) == "success"


def test_a_process_splits_a_result_once_until_it_changes(scenario: Scenario) -> None:
    scenario.add(mapped())
    scenario.trigger("d", run_id="r")
    source = running(scenario)
    over = xcoms.MappedOver()

    def entries(key: str = "return_value") -> Any:
        return over.entries(scenario.hot, source.dag_run_id, source.task_no, key)

    assert entries() is None
    xcoms.push(scenario.hot, source, "return_value", '[1, {"a": [2]}]')
    first = entries()
    assert (first, entries() is first) == (["1", '{"a": [2]}'], True)

    xcoms.push(scenario.hot, source, "return_value", "[3]")
    xcoms.push(scenario.hot, source, "other", '{"b": "\u00e9"}')

    assert [entries(), entries("other"), entries()] == [["3"], ['["b", "\u00e9"]'], ["3"]]
    xcoms.clear(scenario.hot, source)
    assert entries() is None


def test_an_instance_does_not_see_changes_of_another_to_its_entry(scenario: Scenario) -> None:
    scenario.add(mapped())
    scenario.trigger("d", run_id="r")
    source = running(scenario)
    xcoms.push(scenario.hot, source, "return_value", "[[1]]")
    over = xcoms.MappedOver()

    def entry() -> Any:
        found = xcoms.entry(scenario.hot, source.dag_run_id, source.task_no, "return_value", 0, is_mapped=False, over=over)
        return found[0]

    entry().append(2)

    assert entry() == [1]
