"""Clear and mark at random moments and in parallel: each run ends, no deadlock, and no try runs or succeeds twice."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from support.faulty import FULL
from support.run_actions import clear_, end, mark_, schedule_and_work
from support.scenario import Scenario, chain, dag

from paceline.states import FAILURES, FINISHED, STARTED, RunState, TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.actions import mark
from scheduler.store.db.database import rehearse, transact
from scheduler.store.moves.lose import lose
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Claim

S = TaskState
MOST_ACTIVE = 3
MOST_RUNS = 2
SHAPE = dag(
    "d",
    {"a": [], "b": ["a"], "c": ["a"], "each": ["b"], "join": ["b", "c", "each"], "last": ["join"], "always": ["b", "c"],
     "down": ["join"]},
    rules={"always": "all_done"},
    max_active_tasks=MOST_ACTIVE,
    max_active_runs=MOST_RUNS,
    task={"retries": 1},
    options={
        "each": {"expand": {"kind": "product", "inputs": [{"task": "b", "key": "return_value"}]}},
        "c": {"is_setup": True},
        "join": {"setups": ("c",)},
        "last": {"depends_on_past": True, "setups": ("c",)},
        "down": {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("c",), "scope": ("join",)},
    },
)  # fmt: skip
OUTCOMES = st.sampled_from([S.SUCCESS, S.SUCCESS, S.SUCCESS, S.FAILED, S.SKIPPED, S.UP_FOR_RETRY])
NAMES = st.sampled_from([task.task_id for task in SHAPE.tasks])
TASKS = st.builds(
    lambda name, upstream, downstream, states: Tasks(
        task_ids=() if name is None else (name,), upstream=upstream, downstream=downstream, states=states
    ),
    st.none() | NAMES,
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, None, FAILURES, STARTED]),
)
RUNS = st.sampled_from(["r0", "r1", "r2"])
SELECTED = st.sampled_from(
    [
        *(Runs(dag_id="d", run_id=run_id) for run_id in ("r0", "r1", "r2")),
        Runs(dag_id="d"),
        Runs(dag_id="d", run_id="r1", past=True),
        Runs(dag_id="d", run_id="r0", future=True),
    ]
)


class Actions(RuleBasedStateMachine):
    """Actions of people and a worker on one database. Each example begins with runs of its own."""

    scenario: ClassVar[Scenario]

    def __init__(self) -> None:
        super().__init__()
        self.inbox: list[tuple[int, str]] = []
        #: The running claims of the worker, by task instance.
        self.held: dict[int, Claim] = {}
        self.succeeded: set[tuple[int, int]] = set()
        #: Runs that a user ended, with their states; only a clear changes these.
        self.marked: dict[str, str] = {}

    @initialize()
    def trigger(self) -> None:
        self.scenario.sql("delete from dag_run")
        for number in range(3):
            self.scenario.trigger("d", run_id=f"r{number}")

    @rule()
    def turn(self) -> None:
        self.scenario.sql("update process set heartbeat_at = clock_timestamp()")
        self.scenario.turn()
        self.inbox += self.scenario.messages()

    @precondition(lambda self: self.inbox)
    @rule(data=st.data(), twice=st.booleans())
    def deliver(self, data: st.DataObject, twice: bool) -> None:
        place = data.draw(st.integers(0, len(self.inbox) - 1))
        message = self.inbox[place] if twice else self.inbox.pop(place)
        claim = self.scenario.claim(message)
        if claim is not None:
            assert claim.id not in self.held, "one task instance runs twice at a time"
            self.held[claim.id] = claim

    @precondition(lambda self: self.held)
    @rule(data=st.data(), outcome=OUTCOMES, result=st.sampled_from(["[]", "[1]", "[1, 2]", "[1, 2, 3, 4]"]))
    def finish(self, data: st.DataObject, outcome: S, result: str) -> None:
        claim = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        if outcome is S.UP_FOR_RETRY and claim.try_number > claim.max_tries:
            outcome = S.FAILED
        if end(self.scenario, claim, outcome, result if outcome is S.SUCCESS else None) and outcome is S.SUCCESS:
            assert (claim.id, claim.try_number) not in self.succeeded, "one try succeeds twice"
            self.succeeded.add((claim.id, claim.try_number))
        self.inbox += self.scenario.messages()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        claim = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        with self.scenario.engine.begin() as connection:
            lose(connection, ti_id=claim.id, dispatch_id=claim.dispatch_id, reason="it died", at_once=True)

    @rule(runs=SELECTED, tasks=TASKS)
    def clear(self, runs: Runs, tasks: Tasks) -> None:
        planned = clear_(self.scenario, tasks, runs=runs, dry_run=True)
        assert clear_(self.scenario, tasks, runs=runs) == planned
        for change in planned:
            self.marked.pop(change.run_id, None)

    @rule(runs=SELECTED, tasks=TASKS, state=st.sampled_from(mark.STATES), below=st.booleans())
    def mark(self, runs: Runs, tasks: Tasks, state: S, below: bool) -> None:
        planned = mark_(self.scenario, state, runs=runs, tasks=tasks, clear_downstream=below, dry_run=True)
        assert mark_(self.scenario, state, runs=runs, tasks=tasks, clear_downstream=below) == planned
        for change in planned:
            if change.becomes == "none":
                self.marked.pop(change.run_id, None)

    @rule(run_id=RUNS, state=st.sampled_from([RunState.SUCCESS, RunState.FAILED]))
    def mark_run(self, run_id: str, state: RunState) -> None:
        planned = rehearse(self.scenario.engine, mark.mark_run, "d", run_id, state)
        changes = transact(self.scenario.engine, mark.mark_run, "d", run_id, state)
        assert (changes, changes.teardowns) == (planned, planned.teardowns)
        self.marked[run_id] = state.value

    @invariant()
    def the_limits_hold(self) -> None:
        active = self.scenario.rows(
            "select count(*) from task_instance where state in ('queued', 'running', 'shutdown') group by dag_run_id"
        )
        assert all(row[0] <= MOST_ACTIVE for row in active)
        assert self.scenario.rows("select count(*) from dag_run where state = 'running'")[0][0] <= MOST_RUNS

    @invariant()
    def what_was_said_of_a_run_stays(self) -> None:
        for run_id, state in self.marked.items():
            says = self.scenario.rows("select coalesce(requested_state, state) from dag_run where run_id = %s", run_id)
            assert says == [(state,)]

    @invariant()
    def only_teardowns_are_left_of_a_run_that_a_user_ended(self) -> None:
        left = self.scenario.rows(
            "select distinct t.task_id from task_instance t join dag_run r on r.id = t.dag_run_id"
            " where r.requested_state is not null and coalesce(t.state, 'none') <> all(%s)",
            [*FINISHED, "shutdown"],
        )
        assert left in ([], [("down",)])

    @invariant()
    def an_ended_run_has_nothing_left_but_what_is_being_stopped(self) -> None:
        left = self.scenario.rows(
            "select distinct coalesce(t.state, 'none') from task_instance t join dag_run r on r.id = t.dag_run_id"
            " where r.state in ('success', 'failed')"
        )
        assert {row[0] for row in left} <= FINISHED | {S.SHUTDOWN}

    @invariant()
    def the_worker_has_what_the_database_says(self) -> None:
        started = self.scenario.rows("select id from task_instance where state in ('running', 'shutdown')")
        assert {row[0] for row in started} == set(self.held)

    def teardown(self) -> None:
        self.work_on()
        self.what_was_said_of_a_run_stays()
        self.go_on()
        # A later run waits for an earlier one whose `last` failed, and a run without a place for that one; nothing else waits.
        left = self.scenario.rows(
            "select distinct t.task_id, coalesce(t.state, 'none') from task_instance t join dag_run r on r.id = t.dag_run_id"
            " where r.state = 'running' and (t.state is null or t.state <> all(%s))",
            [state.value for state in FINISHED],
        )
        assert left in ([], [("last", "none")])
        clear_(self.scenario, run_id=None)
        self.go_on()
        assert self.scenario.rows("select distinct state from dag_run") == [("success",)]
        # An instance for which the list has no entry any more stays as removed.
        left = self.scenario.rows("select distinct state, state = 'removed' and map_index >= 0 from task_instance order by 1")
        assert left in ([("success", False)], [("removed", True), ("success", False)])

    def go_on(self) -> None:
        """Turn and work until no run is open, or nothing moves."""
        before = None
        for _ in range(60):
            self.turn()
            self.work_on()
            now = self.scenario.rows("select state, count(*), sum(try_number) from task_instance group by 1 order by 1")
            runs = self.scenario.rows("select state from dag_run order by id")
            if before == (now, runs) or {row[0] for row in runs} <= {"success", "failed"}:
                return
            before = now, runs
        raise AssertionError("it goes on and on")

    def work_on(self) -> None:
        """End all that runs, and all that was sent, as a success."""
        while self.held or self.inbox:
            for claim in self.held.values():
                end(self.scenario, claim, result="[1, 2]")
                self.inbox += self.scenario.messages()
            claims = [self.scenario.claim(message) for message in self.inbox]
            self.held = {claim.id: claim for claim in claims if claim is not None}
            self.inbox.clear()


@pytest.mark.parametrize("follow", [True, False])
def test_clear_and_mark_at_random_moments(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(follow=follow)
    scenario.add(SHAPE)
    chosen = settings(
        max_examples=(10 if follow else 5) if FULL else (6 if follow else 3),
        stateful_step_count=25,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        phases=(Phase.explicit, Phase.generate),  # an example takes a second: it is not worth minutes to shorten it
    )

    run_state_machine_as_test(type("OfScenario", (Actions,), {"scenario": scenario}), settings=chosen)


def test_a_task_cleared_a_hundred_times_while_it_runs_ends_once_each_time(scenario: Scenario) -> None:
    scenario.add(chain("d", 1, task={"retries": 1}))
    dice = random.Random(23)
    run = scenario.trigger("d", run_id="r")
    tries = ends = stops = 0
    while tries < 100:
        scenario.turn()
        claims = [claim for claim in map(scenario.claim, scenario.messages()) if claim]
        assert len(claims) <= 1
        before, after = dice.choice([(True, False), (False, True), (True, True)])
        for claim in claims:
            tries += 1
            if before:
                clear_(scenario)
            reported = end(scenario, claim)
            assert reported is not before
            ends += reported
            stops += not reported
            assert not scenario.follower.end_as_requested(claim), "it was stopped once"
        if claims and after:
            clear_(scenario)
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"
    kept = dict(scenario.rows("select state, count(*) from task_try group by 1"))
    assert kept == {"shutdown": stops, "success": ends - (scenario.rows("select try_number from task_instance")[0][0] == tries)}


WIDTH = 6
RACING_RUNS = 4
DURATION_S = 4.0


def version(number: int) -> SerializedDag:
    """A fan-out and fan-in whose tasks change places, and one of which comes and goes."""
    middle = [f"m{place}" for place in range(WIDTH)]
    random.Random(number).shuffle(middle)
    extra = {"extra": [middle[0]]} if number % 2 else {}
    edges = {"first": [], **{name: ["first"] for name in middle}, "join": middle, **extra}
    return dag("d", edges, disable_bundle_versioning=True, description=str(number), rules={"join": "all_done"})


def test_actions_schedulers_and_workers_never_wait_for_each_other_in_a_circle(make_scenario: Callable[..., Scenario]) -> None:
    people, *engines = [make_scenario() for _ in range(4)]
    people.add(version(0))
    for number in range(RACING_RUNS):
        people.trigger("d", run_id=f"r{number}")
    over = threading.Event()
    dice = random.Random(11)

    accepted: list[Claim] = []

    def act() -> int:
        changed = 0
        until = time.monotonic() + DURATION_S
        # Longer on a busy machine, until enough has met.
        while time.monotonic() < until or ((changed <= 20 or len(accepted) <= 20) and time.monotonic() < until + 60):
            run_id = f"r{dice.randrange(RACING_RUNS)}"
            name = dice.choice(["first", "join", *(f"m{place}" for place in range(WIDTH))])
            around = Tasks(task_ids=(name,), downstream=dice.random() < 0.5, upstream=dice.random() < 0.5)
            hand = dice.randrange(5)
            if hand <= 1:
                changed += len(clear_(people, around, run_id=run_id))
            elif hand == 2:
                changed += len(mark_(people, dice.choice(mark.STATES), run_id=run_id, tasks=around, clear_downstream=True))
            elif hand == 3:
                changed += len(
                    transact(people.engine, mark.mark_run, "d", run_id, dice.choice([RunState.SUCCESS, RunState.FAILED]))
                )
            else:
                people.add(version(people.rows("select max(number) from dag_version")[0][0]))
        return changed

    with ThreadPoolExecutor(len(engines)) as pool:
        working = [pool.submit(schedule_and_work, scenario, over, accepted) for scenario in engines]
        try:
            assert act() > 20
        finally:
            over.set()
        for one in working:
            one.result(timeout=60)
        assert len(accepted) > 20

    people.run_to_end(turns=60)
    clear_(people, run_id=None)
    people.run_to_end(turns=60)
    assert people.rows("select distinct state from dag_run") == [("success",)]
    assert {row[0] for row in people.rows("select distinct state from task_instance")} <= {"success", "removed"}
    assert people.rows("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
