"""In-place follow: a report moves the next task instance straight to running, for the process that reports."""

from typing import Any, ClassVar
from uuid import uuid4

import pytest
from support.scenario import Scenario, chain, dag, pool_process

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import mark
from scheduler.store.read import history
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from workers.supervision.running_tasks import RunningTasks
from workers.task.database_store import DatabaseStore

S = TaskState
SUCCESS = Ending(S.SUCCESS)


def next_in_place() -> NextInPlace:
    return NextInPlace(str(uuid4()))


def start(scenario: Scenario, plan: SerializedDag, **options: Any) -> Claim:
    """Trigger it, and claim its first task instance."""
    scenario.add(plan)
    scenario.trigger(plan.dag_id, **options)
    scenario.turn()
    claim = scenario.claim(scenario.messages()[0])
    assert claim is not None
    return claim


def claimed_as(scenario: Scenario, claim: Claim) -> Claim:
    """The result of a claim of the same row."""
    scenario.sql("update task_instance set state = 'queued' where id = %s", claim.id)
    again = scenario.claim((claim.id, claim.dispatch_id))
    assert again is not None
    return again


def test_the_report_returns_the_claim_of_the_successor(scenario: Scenario) -> None:
    first = start(scenario, chain("d", 3), conf={"a": 1})
    next_one = next_in_place()

    answer = scenario.follower.report(first, SUCCESS, next_one)
    assert answer.is_stored

    assert scenario.states() == {"t000": "success", "t001": "running", "t002": "none"}
    assert scenario.messages() == []
    found = answer.continues
    assert found is not None and found.dispatch_id == next_one.dispatch_id and found.conf == {"a": 1}
    again = claimed_as(scenario, found)
    assert found == Claim(**{name: getattr(again, name) for name in Claim.__slots__} | {"started_at": found.started_at})


def test_a_task_in_place_has_the_events_and_the_queuing_process_of_a_task_that_went_by_message(scenario: Scenario) -> None:
    def trail(dag_id: str, next_one: NextInPlace | None) -> list[tuple[Any, ...]]:
        first = start(scenario, chain(dag_id, 2))
        answer = scenario.follower.report(first, SUCCESS, next_one)
        second = scenario.claim(scenario.messages()[0]) if next_one is None else answer.continues
        assert second is not None
        scenario.follower.report(second, SUCCESS)
        with scenario.engine.begin() as connection:
            found = history.events(connection, first.dag_run_id)
        return [(e["task_id"], e["from_state"], e["to_state"], e["actor"]) for e in found if e["task_id"] == "t001"]

    by_message = trail("sent", None)
    in_place = trail("continued", next_in_place())

    assert in_place == by_message
    assert scenario.rows("select count(*) from task_instance where queued_by = %s and worker = %s and queued_at <= started_at",
                         scenario.worker_id, scenario.worker_id) == [(2,)]  # fmt: skip


def test_an_execution_in_place_has_its_notice(scenario: Scenario) -> None:
    first = start(scenario, chain("d", 2, options={"t001": {"notify": ("on_execute",)}}))

    scenario.follower.report(first, SUCCESS, next_in_place())

    assert scenario.rows("select kind from notice") == [("on_execute",)]


@pytest.mark.parametrize("state", [S.SUCCESS, S.SKIPPED])
def test_decisions_of_a_report_keep_their_reasons(scenario: Scenario, state: TaskState) -> None:
    edges, rules = {"a": [], "failed": ["a"], "succeeded": ["a"]}, {"failed": "all_failed"}
    by_message, in_place = (start(scenario, dag(dag_id, edges, rules=rules)) for dag_id in ("sent", "continued"))

    assert scenario.follower.report(by_message, Ending(state)).is_stored
    assert scenario.follower.report(in_place, Ending(state), next_in_place()).is_stored

    expected, found = (
        scenario.rows("select task_id, reason from task_instance where dag_run_id = %s and state = 'skipped' and task_no > 0"
                      " order by 1", claim.dag_run_id)
        for claim in (by_message, in_place)
    )  # fmt: skip
    assert found == expected
    assert found and all(reason for _, reason in found)


def test_a_repeated_report_after_a_lost_response_returns_the_task_to_continue_with(scenario: Scenario) -> None:
    first = start(scenario, chain("d", 3))
    next_one = next_in_place()
    stored = scenario.follower.report(first, SUCCESS, next_one)
    assert stored.is_stored

    repeated = scenario.follower.report(first, SUCCESS, next_one)

    assert repeated.is_stored
    assert repeated.continues == stored.continues is not None
    assert scenario.states() == {"t000": "success", "t001": "running", "t002": "none"}


def test_a_lost_answer_is_found_even_if_the_task_that_ended_was_marked_in_between(scenario: Scenario) -> None:
    first = start(scenario, chain("d", 3))
    next_one = next_in_place()
    stored = scenario.follower.report(first, SUCCESS, next_one)
    assert stored.is_stored
    mark.mark(scenario.engine, Runs(dag_id="d"), Tasks(task_ids=("t000",)), S.FAILED)

    repeated = scenario.follower.report(first, SUCCESS, next_one)

    assert not repeated.is_stored
    assert repeated.continues == stored.continues is not None


def test_a_report_after_a_lost_response_does_not_take_a_task_that_went_by_message(scenario: Scenario) -> None:
    first = start(scenario, chain("d", 3))
    scenario.follower.report(first, SUCCESS, None)

    repeated = scenario.follower.report(first, SUCCESS, next_in_place())

    assert repeated.is_stored
    assert repeated.continues is None


class Watched(DatabaseStore):
    """A store that notes at each report which dispatches the heartbeat of the worker confirms."""

    running = RunningTasks(1)
    confirmed: ClassVar[list[dict[str, int]]] = []

    def report(self, claim: Claim, ending: Ending, following: NextInPlace | None = None) -> Reported | Refused:
        self.confirmed.append(self.running.claimed())
        return super().report(claim, ending, following)


def test_heartbeats_cover_a_task_in_place_whose_report_waits(scenario: Scenario) -> None:
    scenario.start(chain("d", 3))
    Watched.running.worker_id = scenario.worker_id
    process = pool_process(scenario, in_place_seconds=60, running=Watched.running)
    process.store = Watched(scenario.settings, scenario.hot, scenario.follower)

    process.run(*scenario.messages()[0])

    ran = scenario.rows("select dispatch_id::text, id from task_instance order by id")
    assert Watched.confirmed == [{dispatch_id: ti_id} for dispatch_id, ti_id in ran]
    assert Watched.running.claimed() == {}


WRITTEN = """
create table written (task_instance_id bigint);
create function note_written() returns trigger language plpgsql security definer as
    'begin insert into written values (new.id); return null; end';
create trigger note_written after update on task_instance for each row execute function note_written();
"""


def test_a_task_in_place_takes_two_row_versions(scenario: Scenario) -> None:
    scenario.start(chain("d", 4))
    scenario.sql(WRITTEN)

    pool_process(scenario, in_place_seconds=60).run(*scenario.messages()[0])

    # The first one has been scheduled and queued before.
    counts = scenario.rows("select count(*) from written group by task_instance_id order by task_instance_id")
    assert counts == [(2,)] * 4
    assert set(scenario.states().values()) == {"success"}
