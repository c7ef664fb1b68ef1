"""`tasks why --history` on a real database: past waits of a task instance, derived from the dispatches of that time.

The waits are made longer afterwards, in the events, so that no test waits.
"""

import re
from typing import Any

import pytest
from support.rest import Rest
from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.store.db.database import transact
from scheduler.store.read import history
from scheduler.store.worker.claims import Ending

from .conftest import Cli

LATER = "interval '40 s'"


class Past:
    """Runs of `d`, whose task `first` holds something that `second` waits for."""

    def __init__(self, cli: Cli, rest: Rest, scenario: Scenario) -> None:
        self.cli = cli
        self.rest = rest
        self.scenario = scenario

    def run(self, **options: Any) -> int:
        """`first` has run and ended while `second` was scheduled; then `second` ran."""
        own = options.pop("options", {})
        run = self.scenario.start(
            dag("d", {"first": [], "second": []}, options={"first": {"priority_weight": 9}, **own}, **options), run_id="one"
        )
        waiting = self.scenario.messages()
        for message in waiting:
            claim = self.scenario.claim(message)
            assert claim is not None
            assert self.scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
        self.scenario.run_to_end()
        assert set(self.scenario.states(run).values()) == {"success"}
        return run

    def stretch(self) -> None:
        """Let `second` have been scheduled 40 s earlier, and `first` have been queued and running before that."""
        second = "(select id from task_instance where task_id = 'second')"
        first = "(select id from task_instance where task_id = 'first')"
        self.scenario.sql(f"update event set at = at - {LATER} where to_state = 'scheduled' and task_instance_id in {second}")
        self.scenario.sql(
            f"update event set queued_at = queued_at - 2 * {LATER}, started_at = started_at - 2 * {LATER}"
            f" where queued_at is not null and task_instance_id in {first}"
        )
        self.scenario.sql("update process set started_at = started_at - interval '1 hour'")

    def steps(self, task_id: str = "second") -> list[str]:
        answer = self.cli.json("tasks", "why", "d", "one", task_id)
        text = self.cli("tasks", "why", "d", "one", task_id, "--history").stdout
        texts = [step["text"] for step in answer["history"]]
        assert all(one in text for one in texts)
        history = self.rest.get(f"/dags/d/dagRuns/one/taskInstances/{task_id}/why", map_index=answer["map_index"])["history"]
        assert [step["text"] for step in history] == texts
        return texts


@pytest.fixture
def past(cli: Cli, rest: Rest, scenario: Scenario) -> Past:
    return Past(cli, rest, scenario)


def waited(texts: list[str]) -> str:
    """The step with the longer wait, as if the machine had taken no time besides."""
    (found,) = [text for text in texts if re.match(r"Waited 4\d s ", text)]
    return re.sub(r"^Waited 4\d s", "Waited 40 s", found)


@pytest.mark.parametrize(
    ("state", "include_deferred", "text"),
    [
        ("deferred", True, "for pool 'db' with 1 of 1 slot in use by d.first of run 'one'"),
        ("deferred", False, "in line"),
        ("running", False, "for pool 'db' with 1 of 1 slot in use by d.first of run 'one'"),
    ],
    ids=["deferred", "deferred without its slot", "resumed"],
)
def test_a_pool_whose_slot_a_task_held_between_two_dispatches(past: Past, state: str, include_deferred: bool, text: str) -> None:
    past.scenario.pool("db", 1)
    past.run(task={"pool": "db"})
    past.stretch()
    past.scenario.sql("update pool set include_deferred = %s where name = 'db'", include_deferred)
    past.scenario.sql("update event set queued_at = null, started_at = null where task_instance_id in (select id from task_instance"
                      " where task_id = 'first')")  # fmt: skip
    past.scenario.sql(
        "insert into event (at, dag_run_id, task_instance_id, from_state, to_state, actor)"
        f" select now() - 2 * {LATER}, dag_run_id, id, 'queued', %s, 'w' from task_instance where task_id = 'first'",
        state,
    )

    assert waited(past.steps()).startswith(f"Waited 40 s {text}, then queued by ")


def test_the_whole_story_of_a_task_that_was_tried_twice(past: Past) -> None:
    scenario = past.scenario
    run = scenario.triggered(dag("d", {"first": [], "second": ["first"]}, options={"second": {"retries": 1}}), run_id="one")
    tries = iter([TaskState.SUCCESS, TaskState.UP_FOR_RETRY, TaskState.SUCCESS])
    scenario.run_to_end(outcome=lambda claim: next(tries))
    assert scenario.states(run)["second"] == "success"

    texts = past.steps()
    assert [text.partition(" ")[0] for text in texts if text.startswith(("Started", "Failed", "Succeeded"))] == [
        "Started", "Failed", "Started", "Succeeded",
    ]  # fmt: skip
    assert "try 2" in texts[-2]
    scenario.sql("delete from event")
    assert past.steps() == []


@pytest.mark.parametrize("at_first", [1, 16], ids=["one version", "a new version lowers the limit"])
def test_a_run_that_waited_for_another_run(scenario: Scenario, at_first: int) -> None:
    scenario.triggered(dag("d", {"first": []}, max_active_runs=at_first), run_id="zero")
    scenario.trigger("d", run_id="one")
    if at_first > 1:
        scenario.add(dag("d", {"first": []}, max_active_runs=1))
    scenario.run_to_end()
    scenario.sql(
        f"update event set at = at - {LATER} where task_instance_id is null and to_state = 'queued'"
        " and dag_run_id = (select id from dag_run where run_id = 'one')"
    )
    scenario.sql(
        f"update dag_run set started_at = started_at - 2 * {LATER} where run_id = 'zero'",
    )
    # The run that was in the way ended just before the other one started.
    texts = [step["text"] for step in transact(scenario.engine, history.of_dag_run, "d", "one")]

    assert texts[0].startswith("Created as queued by ")
    assert waited(texts) == re.sub(r"4\d s", "40 s", texts[1])
    assert waited(texts).startswith("Waited 40 s for max_active_runs: 1 of 1 runs were running, then started by ")
    assert texts[2].startswith("Ended as success")
