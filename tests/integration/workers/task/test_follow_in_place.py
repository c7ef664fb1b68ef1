"""In-place follow: a report moves the next task instance straight to running; and known failures of mini-schedulers."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from support.scenario import Scenario, chain, dag, pool_process

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import mark
from scheduler.store.db.database import transact
from scheduler.store.read import history
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from workers.supervision.running_tasks import RunningTasks
from workers.task.follow import DatabaseStore

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
        found = transact(scenario.engine, history.events, first.dag_run_id)
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
    transact(scenario.engine, mark.mark, Runs(dag_id="d"), Tasks(task_ids=("t000",)), S.FAILED)

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


#: Everything that is easily written in another order: sets, dicts, groups, mapped tasks, params.
FILE = """
from paceline import DAG, Asset, Param, TaskGroup, task
from paceline.operators import EmptyOperator

names = {{f"t{{number}}" for number in range(12)}}
with DAG("d", schedule={schedule}, tags=names, params={{name: Param(1) for name in sorted(names)}}):
    with TaskGroup("g"):
        made = {{name: EmptyOperator(task_id=name, outlets=[Asset(other) for other in names]) for name in sorted(names)}}
    end = EmptyOperator(task_id="end")
    for name in names:
        made[name] >> end

    @task
    def each(one):
        return one

    each.partial().expand(one=sorted(names))
"""
PARSE = """
import json, sys
from pathlib import Path
from scheduler.dagfiles.fork_server import Work, parse
from scheduler.settings import Core, Scheduler
print(parse("d.py", Work(Path(sys.argv[1]), Core(), Scheduler()))["dags"][0]["content_hash"])
"""
PROCESSES = 8


def claims(scenario: Scenario) -> dict[tuple[str, int], Claim]:
    found = [scenario.claim(message) for message in scenario.messages()]
    return {(one.task_id, one.map_index): one for one in found if one is not None}


def test_upstream_tasks_that_are_not_below_the_ended_task_are_seen(scenario: Scenario) -> None:
    rules = {"any": "one_success", "fine": "none_failed", "one": "one_done"}
    scenario.start(dag("d", {"a": [], "b": [], "any": ["a", "b"], "fine": ["a", "b"], "one": ["a", "b"]}, rules=rules))
    running = claims(scenario)

    assert scenario.follower.report(running["a", -1], Ending(TaskState.SKIPPED)).is_stored
    assert {scenario.states()[name] for name in rules} == {"none"}
    assert scenario.follower.report(running["b", -1], Ending(TaskState.SUCCESS)).is_stored

    scenario.turn()
    assert {scenario.states()[name] for name in rules} == {"queued"}


def test_every_instance_of_a_mapped_task_is_seen(scenario: Scenario) -> None:
    spec = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}
    scenario.start(dag("d", {"each": [], "after": ["each"]}, options={"each": spec}))
    running = claims(scenario)

    for index in (0, 1):
        assert scenario.follower.report(running["each", index], Ending(TaskState.SUCCESS)).is_stored
        assert scenario.states()["after"] == "none"
    assert scenario.follower.report(running["each", 2], Ending(TaskState.SUCCESS)).is_stored

    assert scenario.states()["after"] == "queued"


def test_following_does_not_wait_for_a_reader_of_the_run(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": [], "join": ["a", "b"]}))
    running = claims(scenario)

    with scenario.engine.begin() as another_scheduler:
        another_scheduler.exec_driver_sql("select 1 from dag_run where id = %s for no key update", (run,))
        for one in running.values():
            # A lock that it waited for would end this with an error after 30 s.
            assert scenario.follower.report(one, Ending(TaskState.SUCCESS)).is_stored

        assert scenario.states()["join"] == "queued"


def test_a_file_has_one_version_with_any_order_of_its_sets(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(FILE.format(schedule='[Asset("b"), Asset("a")]'), encoding="utf-8")

    def parse(_: int) -> str:
        command = [sys.executable, "-P", "-c", PARSE, str(tmp_path)]
        environment = os.environ | {"PYTHONHASHSEED": "random"}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(parse, range(PROCESSES)))) == 1
