"""The owner of stored state of tasks and assets: after a clear, between runs, and after the end of a run."""

from typing import Any

from support.run_actions import clear_
from support.scenario import Scenario, chain

from paceline.states import TaskState
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Claim, Ending

URI = "s3://lake"


def claimed(scenario: Scenario) -> Claim:
    scenario.turn()
    (claim,) = [one for message in scenario.messages() if (one := scenario.claim(message)) is not None]
    return claim


def test_the_values_of_a_task_outlive_a_clear_and_those_of_an_asset_its_run(scenario: Scenario) -> None:
    """As in Airflow 3.3.2, which keeps both when a task instance is cleared, and deletes those of a task with its run."""

    def get(claim: Claim, uri: str | None) -> Any:
        return xcoms.get(scenario.hot, claim, uri, "k", default="none")

    scenario.triggered(chain("c", 1), run_id="r1")
    first = claimed(scenario)
    for uri in (None, URI):
        xcoms.put(scenario.hot, first, uri, "k", '{"id": 7}', expires_in_s=None)
    assert scenario.follower.report(first, Ending(TaskState.SUCCESS)).is_stored
    scenario.run_to_end()

    clear_(scenario, dag_id="c", run_id="r1")
    again = claimed(scenario)
    assert (get(again, None), get(again, URI)) == ({"id": 7}, {"id": 7})
    assert scenario.follower.report(again, Ending(TaskState.SUCCESS)).is_stored
    scenario.run_to_end()

    scenario.trigger("c", run_id="r2")
    other = claimed(scenario)
    assert (get(other, None), get(other, URI)) == ("none", {"id": 7})
    assert scenario.rows("select uri, key, dag_id, run_id, task_id, map_index from asset_state") == [
        (URI, "k", "c", "r1", first.task_id, -1)
    ]
    scenario.sql("delete from dag_run where run_id = 'r1'")
    assert scenario.rows("select * from task_state") == []
    assert get(other, URI) == {"id": 7}


def test_a_value_that_has_expired_is_not_read_and_a_new_value_replaces_it(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 1), run_id="r1")
    claim = claimed(scenario)
    for seconds, value in ((1e-6, "none"), (3600.0, 1), (None, 1)):
        xcoms.put(scenario.hot, claim, None, "k", "1", expires_in_s=seconds)
        assert xcoms.get(scenario.hot, claim, None, "k", default="none") == value
