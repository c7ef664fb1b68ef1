"""A run that switches to another version of its DAG while a statement of a worker waits, or while a task runs.

The number of a task is valid in one version. So is the plan of a report.
"""

import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.run_actions import push, running
from support.scenario import Scenario, dag, of, pool_process, product
from support.waiting import eventually

from paceline.authoring.triggers import Target
from paceline.states import TaskState as S
from scheduler.dagfiles.load import load
from scheduler.messaging import wakeups
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.runs import integrity
from scheduler.store.upkeep import processes
from scheduler.store.worker import external_runs
from scheduler.store.worker.claims import Claim, Ending, NextInPlace
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import DatabaseStore

R = TypeVar("R")
FREE = {"disable_bundle_versioning": True}
WAITS = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


def switch(scenario: Scenario, run: int) -> None:
    with scenario.engine.begin() as connection:
        assert integrity.follow_newest(connection, run, Versions(), default_queue="default") is not None


def overtaken_by_a_switch(scenario: Scenario, run: int, call: Callable[[], R]) -> R:
    """The result of `call`, which waits until the run has switched to the newest version."""
    has_locks = threading.Event()

    def switch_slowly() -> None:
        with scenario.engine.begin() as connection:
            assert integrity.follow_newest(connection, run, Versions(), default_queue="default") is not None
            has_locks.set()
            eventually(lambda: scenario.rows(WAITS), timeout=20)

    with ThreadPoolExecutor(1) as threads:
        switching = threads.submit(switch_slowly)
        assert has_locks.wait(20)
        result = call()
        switching.result()
    return result


@pytest.mark.parametrize("in_place", [False, True])
def test_a_report_does_not_follow_the_edges_of_the_former_version(scenario: Scenario, in_place: bool) -> None:
    run = scenario.triggered(dag("d", {"a": [], "c": ["a"]}, **FREE), run_id="r")
    claim = running(scenario)
    scenario.sql("update pool set passes_slots_on = true")
    scenario.add(dag("d", {"a": [], "b": ["a"], "c": ["b"]}, **FREE))
    following = NextInPlace(str(uuid.uuid4())) if in_place else None
    scenario.broker.delete(wakeups.KEY)
    answer = overtaken_by_a_switch(scenario, run, lambda: scenario.follower.report(claim, Ending(S.SUCCESS), following))
    assert answer.is_stored
    assert scenario.states() == {"a": "success", "b": "none", "c": "none"}
    assert answer.continues is None
    woken = scenario.broker.zrange(wakeups.KEY, 0, -1)
    assert f"run:{run}".encode() in woken, "a scheduler decides what the report could not"


def test_a_report_whose_answer_was_lost_continues_with_the_number_of_the_present_version(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "c": ["a"]}, **FREE), run_id="r")
    claim = running(scenario)
    scenario.sql("update pool set passes_slots_on = true")
    following = NextInPlace(str(uuid.uuid4()))
    answer = scenario.follower.report(claim, Ending(S.SUCCESS), following)
    assert answer.is_stored and answer.continues is not None
    newer = scenario.add(dag("d", {"new": [], "a": [], "c": ["a"]}, **FREE))
    switch(scenario, run)
    answer = scenario.follower.report(claim, Ending(S.SUCCESS), following)
    assert answer.is_stored
    ours = answer.continues
    assert ours is not None
    assert (scenario.hot.dag(ours.version_id).content_hash, newer.tasks[ours.task_no].task_id) == (newer.content_hash, "c")


def test_the_version_and_the_number_of_a_claim_belong_together(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "c": ["a"]}, **FREE), run_id="r")
    (message,) = scenario.messages()
    scenario.add(dag("d", {"new": [], "a": ["new"], "c": ["a"]}, **FREE))
    claim = overtaken_by_a_switch(scenario, run, lambda: scenario.claim(message))
    assert claim is not None
    assert scenario.hot.dag(claim.version_id).tasks[claim.task_no].task_id == claim.task_id == "a"


OLD = """
from paceline import DAG, task
from paceline.operators import EmptyOperator
with DAG("d", schedule=None, disable_bundle_versioning=True):
    @task
    def work():
        import pathlib
        pathlib.Path({path!r}).touch()
    work() >> EmptyOperator(task_id="end")
"""
NEW = OLD.replace("    work() >>", '    EmptyOperator(task_id="new") >> work() >>')


def test_a_task_whose_number_was_that_of_an_empty_operator_runs(scenario: Scenario, tmp_path: Path) -> None:
    settings, ran = scenario.settings, tmp_path / "ran"

    def store(source: str) -> None:
        (settings.dags_folder / "d.py").write_text(source.format(path=str(ran)))
        for one in load(settings.dags_folder, "d.py").values():
            scenario.add(from_dag(one, file="d.py", core=settings.core, scheduler=settings.scheduler))

    store(OLD)
    run = scenario.trigger("d", run_id="r")
    scenario.turn()
    (message,) = scenario.messages()
    store(NEW)
    runner = pool_process(scenario)
    overtaken_by_a_switch(scenario, run, lambda: runner.run(*message))
    assert (scenario.states()["work"], ran.exists()) == ("success", True)


def mapped(edges: dict[str, Sequence[str]]) -> SerializedDag:
    literal = product({"literal": 2})
    return dag("d", edges, options={"many": literal, "other": literal}, **FREE)


def test_a_running_task_reads_the_xcoms_and_instances_of_the_task_that_it_names(scenario: Scenario) -> None:
    scenario.add(mapped({"other": [], "many": [], "sum": ["other", "many"]}))
    run = scenario.trigger("d", run_id="r")
    scenario.turn()
    claims: list[Claim] = []
    for message in scenario.messages():
        claim = scenario.claim(message)
        assert claim is not None
        claims.append(claim)
        push(scenario, claim, f'["{claim.task_id}{claim.map_index}"]')
    summing = running(scenario)
    scenario.add(mapped({"new": [], "many": [], "other": [], "sum": ["other", "many"]}))
    switch(scenario, run)
    store = DatabaseStore(scenario.settings, scenario.hot, scenario.follower)
    number = scenario.hot.dag(summing.version_id).number["many"]
    assert store.pull_xcoms(summing, number, "return_value") == [["many0"], ["many1"]]
    assert store.entry(summing, number, "return_value", 1, is_mapped=True) == [["many1"]]
    assert store.count_entries(summing, number, "return_value", is_mapped=True) == 2
    assert store.count_instances(summing) == 1
    many = next(claim for claim in claims if claim.task_id == "many")
    assert store.count_instances(many) == 2


def test_a_result_to_map_over_is_found_under_its_new_number(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"list": [], "use": ["list"]}, options={"use": product(of("list"))}, **FREE), run_id="r")
    push(scenario, running(scenario), "[1, 2, 3]")
    using = running(scenario)
    store = DatabaseStore(scenario.settings, scenario.hot, scenario.follower)
    assert store.entry(using, 0, "return_value", 1, is_mapped=False) == [2]
    newer = {"new": [], "list": [], "use": ["list"]}
    scenario.add(dag("d", newer, options={"use": product(of("list"))}, **FREE))
    switch(scenario, run)
    assert store.entry(using, 0, "return_value", 2, is_mapped=False) == [3]
    assert store.count_entries(using, 0, "return_value", is_mapped=False) == 3


def test_states_of_a_task_of_another_dag_are_counted_by_its_id(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "c": ["a"]}, **FREE), run_id="r")
    push(scenario, running(scenario))
    scenario.add(dag("d", {"c": ["a"], "a": []}, **FREE))

    class Switching(HotPath):
        """After it has read the version of the run, the run switches."""

        def objects(self, kind: Any, statement: str, parameters: Any) -> Any:
            found = super().objects(kind, statement, parameters)
            if statement is external_runs.RUNS:
                switch(scenario, run)
            return found

    target = Target(dag_id="d", run_id="r", logical_date=None, task_id="a", group_id=None)
    with closing(Switching(scenario.settings, scenario.worker_id)) as reads:
        assert external_runs.states(reads, scenario.hot.dag, [target]) == [{"success": 1}]


def test_the_loss_of_a_worker_delays_a_retry_as_its_own_task_says(scenario: Scenario) -> None:
    slow = {"a": {"retry_delay_s": 1000.0, "retries": 1}}
    run = scenario.triggered(dag("d", {"a": [], "c": ["a"]}, options=slow, **FREE), run_id="r")
    claim = running(scenario)
    scenario.add(dag("d", {"new": [], "a": ["new"], "c": ["a"]}, options=slow, **FREE))

    engine = scenario.engine
    overtaken_by_a_switch(scenario, run, lambda: transact(engine, processes.fail_lost, claim.id, claim.dispatch_id, "lost"))
    assert scenario.rows(
        "select state, round(extract(epoch from due_at - ended_at)) from task_instance where id = %s", claim.id
    ) == [("up_for_retry", 1000)]
