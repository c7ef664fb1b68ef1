"""Known failures of mini-schedulers: a worker decides from the whole DAG, and does not wait for readers of the run."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.scenario import Scenario, dag

from paceline.states import TaskState as S
from scheduler.store.worker.claims import Claim, Ending

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

    assert scenario.follower.report(running["a", -1], Ending(S.SKIPPED)).is_stored
    assert {scenario.states()[name] for name in rules} == {"none"}
    assert scenario.follower.report(running["b", -1], Ending(S.SUCCESS)).is_stored

    scenario.turn()
    assert {scenario.states()[name] for name in rules} == {"queued"}


def test_every_instance_of_a_mapped_task_is_seen(scenario: Scenario) -> None:
    spec = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}
    scenario.start(dag("d", {"each": [], "after": ["each"]}, options={"each": spec}))
    running = claims(scenario)

    for index in (0, 1):
        assert scenario.follower.report(running["each", index], Ending(S.SUCCESS)).is_stored
        assert scenario.states()["after"] == "none"
    assert scenario.follower.report(running["each", 2], Ending(S.SUCCESS)).is_stored

    assert scenario.states()["after"] == "queued"


def test_following_does_not_wait_for_a_reader_of_the_run(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": [], "join": ["a", "b"]}))
    running = claims(scenario)

    with scenario.engine.begin() as another_scheduler:
        another_scheduler.exec_driver_sql("select 1 from dag_run where id = %s for no key update", (run,))
        for one in running.values():
            # A lock that it waited for would end this with an error after 30 s.
            assert scenario.follower.report(one, Ending(S.SUCCESS)).is_stored

        assert scenario.states()["join"] == "queued"


def test_a_file_has_one_version_with_any_order_of_its_sets(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(FILE.format(schedule='[Asset("b"), Asset("a")]'), encoding="utf-8")

    def parse(_: int) -> str:
        command = [sys.executable, "-P", "-c", PARSE, str(tmp_path)]
        environment = os.environ | {"PYTHONHASHSEED": "random"}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(parse, range(PROCESSES)))) == 1
