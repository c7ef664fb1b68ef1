"""Random DAGs reach the same states with follow on (by message and in place), with follow off, and in memory."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import memory
from support.faulty import FULL
from support.random_dags import POOLS, Plan, authored, random_plan
from support.scenario import Scenario, pool_process

from paceline.states import FINISHED, RUN_FINISHED
from paceline.states import TaskState as S
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from scheduler.testing.in_memory.run import LoadedDag
from workers.task.execute import TryRunner
from workers.task.follow import DatabaseStore

#: With RANDOM_DAGS=40 and --hypothesis-seed, more of them and others.
COUNT = int(os.environ.get("RANDOM_DAGS", 6 if FULL else 4))
ENGINES = settings(max_examples=COUNT, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MOST_TURNS = 40
#: Claims of this test are held for longer than a worker may be silent.
PATIENT = {"worker": {"heartbeat_timeout": 3600.0}}


@dataclass
class Drive:
    """One run of a plan on a real engine: the task instance of the smallest rank always ends next, once nothing else moves."""

    scenario: Scenario
    plan: Plan
    number: int
    in_place: bool = False
    order: list[memory.Instance] = field(default_factory=list)
    _running: dict[memory.Instance, Claim] = field(default_factory=dict)

    def to_the_end(self) -> None:
        self.scenario.add(self.plan.dag)
        self.run = self.scenario.trigger(self.plan.dag.dag_id, run_id=f"r{self.number}")
        while True:
            self._quieten()
            if not self._running:
                break
            one = min(self._running, key=lambda instance: self.plan.rank(*instance))
            self.order += self.end(one, self._running.pop(one))
            self._no_limit_is_exceeded()
        assert self.scenario.run_state(self.run) in RUN_FINISHED, "nothing moves and the run is open"

    def end(self, one: memory.Instance, claim: Claim) -> list[memory.Instance]:
        """The task instances that have ended, in order."""
        following = NextInPlace(str(uuid4())) if self.in_place else None
        answer = self.scenario.follower.report(claim, self.plan.ending(*one), following)
        assert answer.is_stored
        if (found := answer.continues) is not None:
            self._running[found.task_no, found.map_index] = found
        return [one]

    def named(self) -> dict[tuple[str, int], str]:
        rows = self.scenario.rows(
            "select task_id, map_index, coalesce(state, 'none') from task_instance where dag_run_id = %s", self.run
        )
        return {(task_id, index): state for task_id, index, state in rows}

    def _quieten(self) -> None:
        """Turn and claim until a turn changes nothing."""
        seen: list[object] = []
        for _ in range(MOST_TURNS):
            self.scenario.turn()
            for message in self.scenario.messages():
                claim = self.scenario.claim(message)
                if claim is not None:
                    self._running[claim.task_no, claim.map_index] = claim
            self._no_limit_is_exceeded()
            seen.append((self.named(), self.scenario.run_state(self.run)))
            if len(seen) > 1 and seen[-2] == seen[-1]:
                return
        raise AssertionError(f"still moving after {MOST_TURNS} turns")

    def _no_limit_is_exceeded(self) -> None:
        over = self.scenario.rows(
            """
            select 'pool ' || p.name from pool p join task_instance t on t.pool = p.name
             where t.state in ('queued', 'running') and p.slots >= 0 group by p.name, p.slots having sum(t.pool_slots) > p.slots
            union all
            select 'max_active_tasks of ' || r.dag_id from dag_run r join dag_version v on v.id = r.version_id
              join task_instance t on t.dag_run_id = r.id where t.state in ('queued', 'running')
             group by r.id, v.max_active_tasks having count(*) > v.max_active_tasks
            union all
            select 'max_active_tis of ' || task_id from task_instance where state in ('queued', 'running')
             group by dag_run_id, task_id
            having count(*) > least(min(max_active_tis_per_dag), min(max_active_tis_per_dagrun))
            union all
            select 'max_active_runs of ' || r.dag_id from dag_run r join dag d using (dag_id)
              join dag_version v on v.id = d.version_id where r.state = 'running'
             group by r.dag_id, v.max_active_runs having count(*) > v.max_active_runs
            """
        )
        assert over == []


def replayed(plan: Plan, order: list[memory.Instance]) -> memory.Run:
    """The same task instances ending in the same order, in memory."""
    run = memory.Run(plan.dag)
    for one in order:
        assert run.states[one[0]].get(one[1]) is S.SCHEDULED, f"{one} ran, and in memory it may not"
        run.end(one, plan.ending(*one))
    return run


@pytest.fixture
def engines(make_scenario: Callable[..., Scenario]) -> tuple[Scenario, Scenario]:
    """Follow on with two schedulers, and follow off with one."""
    both = make_scenario(schedulers=2, **PATIENT), make_scenario(schedulers=1, follow=False, **PATIENT)
    for name, slots in POOLS.items():
        if name != "default_pool":
            both[0].pool(name, slots)
    return both


numbers = iter(range(10**9))


@pytest.mark.parametrize("limits", [False, pytest.param(True, marks=pytest.mark.long)])
@ENGINES
@given(size=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_follow_on_follow_off_and_memory_agree(engines: tuple[Scenario, Scenario], limits: bool, size: int, seed: int) -> None:
    ends = []
    for scenario, in_place in ((engines[0], False), (engines[0], True), (engines[1], False)):
        number = next(numbers)
        plan = random_plan(f"dag{number}", size=size, seed=seed, limits=limits)
        drive = Drive(scenario, plan, number, in_place)
        drive.to_the_end()
        run = replayed(plan, drive.order)

        same = memory.certain(run, same_order=True)
        is_, should = drive.named(), run.named()
        assert {key: state for key, state in is_.items() if key[0] in same} == {
            key: state for key, state in should.items() if key[0] in same
        }
        assert set(is_.values()) <= {*FINISHED, S.NONE}
        if len(same) == len(plan.dag.tasks):
            assert scenario.run_state(drive.run) == run.state
        ends.append((drive, run, is_))

    *others, (off, memory_off, is_off) = ends
    for on, memory_on, is_on in others:
        same = memory.certain(memory_on, same_order=on.order == off.order)
        same &= memory.certain(memory_off, same_order=on.order == off.order)
        assert {key: state for key, state in is_on.items() if key[0] in same} == {
            key: state for key, state in is_off.items() if key[0] in same
        }


@dataclass
class Claimed(DatabaseStore):
    """The store of a worker that has one claim already. `ended` are the task instances that it reports."""

    held: Claim = field(kw_only=True)
    ended: list[memory.Instance] = field(default_factory=list)

    def claim(self, *_: object) -> Claim:
        return self.held

    def report(self, claim: Claim, ending: Ending, following: NextInPlace | None = None) -> Reported | Refused:
        self.ended.append((claim.task_no, claim.map_index))
        return super().report(claim, ending, following)


@dataclass
class Worked(Drive):
    """The same with the code of a worker, which runs each task instance and reports it."""

    worker: TryRunner = field(kw_only=True)

    def end(self, one: memory.Instance, claim: Claim) -> list[memory.Instance]:
        scenario = self.scenario
        store = Claimed(scenario.settings, scenario.hot, scenario.follower, held=claim)
        assert replace(self.worker, store=store).run(claim.id, claim.dispatch_id) is not None
        return store.ended

    def results(self) -> dict[tuple[str, int], tuple[str, int, object]]:
        """(task_id, map index) -> state, number of tries, return value."""
        rows = self.scenario.rows(
            "select task_id, map_index, coalesce(state, 'none'), try_number, value from task_instance"
            " left join xcom on task_instance_id = id where dag_run_id = %s",
            self.run,
        )
        return {(task_id, index): result for task_id, index, *result in rows}


@pytest.mark.parametrize("in_place_seconds", [0, 60])
@ENGINES
@given(size=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_a_worker_and_a_run_in_memory_agree(
    engines: tuple[Scenario, Scenario], in_place_seconds: float, size: int, seed: int
) -> None:
    number, (scenario, _) = next(numbers), engines
    plan, dag = authored(random_plan(f"dag{number}", size=size, seed=seed))
    worker = replace(pool_process(scenario, in_place_seconds=in_place_seconds), files=LoadedDag(scenario.settings, dag))
    drive = Worked(scenario, plan, number, worker=worker)
    drive.to_the_end()

    run = memory.Run(plan.dag)
    for one in drive.order:
        assert replace(worker, store=run).run(*run.queue(run.at[one])) is not None

    same = memory.certain(run, same_order=True)
    results = {
        (plan.dag.tasks[no].task_id, index): [
            one.state.value, one.try_number, json.loads(one.xcoms.get("return_value", "null"))
        ]
        for (no, index), one in run.at.items()
    }  # fmt: skip
    assert {key: value for key, value in drive.results().items() if key[0] in same} == {
        key: value for key, value in results.items() if key[0] in same
    }
