"""Marking, and clear and mark over several runs, tasks and map indexes: all of it or nothing, as the dry run lists it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from support.run_actions import brief, clear_, end, failing, mark_, running
from support.scenario import Scenario, chain, dag, of, product

from paceline.exceptions import ConflictError, NotFoundError, PacelineError, UnreadableVersionError
from paceline.states import RunState, TaskState
from scheduler.store.actions import clear, delete, mark
from scheduler.store.db.database import rehearse, transact
from scheduler.store.runs.selection import Changes, Runs, Tasks
from scheduler.store.worker.claims import Claim, Deferral, Ending

S = TaskState


def test_a_waiting_task_instance_takes_the_state_and_the_run_continues(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"], "c": ["b"]}), run_id="r")
    claim = running(scenario)

    assert brief(mark_(scenario, S.SUCCESS, "b")) == [("b", -1, None, "success")]

    assert end(scenario, claim)
    scenario.run_to_end()
    assert scenario.states(run) == {"a": "success", "b": "success", "c": "success"}
    assert scenario.rows("select try_number from task_instance order by id") == [(1,), (0,), (1,)]


def test_the_message_of_a_queued_task_instance_is_dropped(scenario: Scenario) -> None:
    scenario.start(chain("d", 1), run_id="r")
    (message,) = scenario.messages()

    mark_(scenario, S.SKIPPED, "t000")

    assert scenario.claim(message) is None
    scenario.run_to_end()
    assert scenario.states() == {"t000": "skipped"}


@pytest.mark.parametrize("state", mark.STATES)
def test_a_running_task_instance_is_stopped_first(scenario: Scenario, state: S) -> None:
    scenario.triggered(chain("d", 1), run_id="r")
    claim = running(scenario)

    assert brief(mark_(scenario, state, "t000")) == [("t000", -1, "running", "shutdown")]
    assert mark_(scenario, state, "t000") == []

    assert not end(scenario, claim, S.FAILED if state is S.SUCCESS else S.SUCCESS)
    assert scenario.states() == {"t000": state.value}


def test_of_a_clear_and_a_mark_the_last_counts(scenario: Scenario) -> None:
    run = scenario.triggered(chain("d", 1), run_id="r")
    claim = running(scenario)

    clear_(scenario)
    mark_(scenario, S.FAILED, "t000")
    mark_(scenario, S.SKIPPED, "t000")

    end(scenario, claim)
    scenario.run_to_end()
    assert scenario.states() == {"t000": "skipped"}
    assert scenario.run_state(run) == "success"


def test_a_run_that_ended_keeps_its_state_unless_its_failed_tasks_are_cleared(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"], "c": ["b"]}), run_id="r")
    scenario.run_to_end(outcome=failing("a"))

    mark_(scenario, S.SUCCESS, "a")
    assert scenario.run_state(run) == "failed"
    assert scenario.states() == {"a": "success", "b": "upstream_failed", "c": "upstream_failed"}

    changes = mark_(scenario, S.SUCCESS, "a", clear_downstream=True)
    assert brief(changes) == [("b", -1, "upstream_failed", "none"), ("c", -1, "upstream_failed", "none")]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_past_future_upstream_and_downstream(scenario: Scenario) -> None:
    scenario.add(dag("d", {"a": [], "b": ["a"], "c": ["b"]}))
    for day in (1, 2, 3):
        scenario.trigger("d", run_id=f"r{day}", logical_date=datetime(2025, 1, day, tzinfo=UTC))

    def dry(**options: object) -> list[str]:
        changes = mark_(scenario, S.FAILED, dry_run=True, **options)
        return [f"{change.run_id}{change.task_id}" for change in changes]

    only = Tasks(task_ids=("b",))
    assert dry(runs=Runs(dag_id="d", run_id="r2", past=True), tasks=only) == ["r1b", "r2b"]
    assert dry(runs=Runs(dag_id="d", run_id="r2", future=True), tasks=only) == ["r2b", "r3b"]
    assert dry(runs=Runs(dag_id="d", run_id="r2", past=True, future=True), tasks=only) == ["r1b", "r2b", "r3b"]
    assert dry(run_id="r1", tasks=Tasks(task_ids=("b",), upstream=True)) == ["r1a", "r1b"]
    assert dry(run_id="r1", tasks=Tasks(task_ids=("b",), downstream=True)) == ["r1b", "r1c"]
    assert scenario.rows("select count(*) from task_instance where state is not null") == [(0,)]


def test_a_run_marked_failed_stays_failed_when_its_last_task_ends(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": ["a"], "x": []}), run_id="r")
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert end(scenario, claims["x"])

    changes = transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)

    assert sorted(brief(changes)) == [("a", -1, "running", "shutdown"), ("b", -1, None, "skipped")]
    assert scenario.run_state(run) == "failed"
    end(scenario, claims["a"])
    scenario.turn()
    assert scenario.states() == {"a": "failed", "b": "skipped", "x": "success"}
    assert scenario.run_state(run) == "failed"


@pytest.mark.parametrize(
    ("ending", "becomes"),
    [
        (Ending(S.DEFERRED, delay_s=60, deferral=Deferral(classpath="x.Y", kwargs={})), "failed"),
        (Ending(S.UP_FOR_RESCHEDULE, delay_s=60), "failed"),
        (Ending(S.UP_FOR_RETRY, delay_s=60), "skipped"),
    ],
)
def test_a_task_that_waits_within_its_try_fails_with_its_run_as_a_running_one(
    scenario: Scenario, ending: Ending, becomes: str
) -> None:
    scenario.triggered(dag("d", {"a": []}, options={"a": {"retries": 1}}), run_id="r")
    assert scenario.follower.report(running(scenario), ending).is_stored

    changes = transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)

    assert brief(changes) == [("a", -1, ending.state.value, becomes)]
    assert scenario.states() == {"a": becomes}


def test_a_run_marked_success_has_succeeded_everywhere(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": ["a"], "x": []}), run_id="r")
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    assert end(scenario, claims["x"], S.FAILED)

    planned = rehearse(scenario.engine, mark.mark_run, "d", "r", RunState.SUCCESS)
    assert scenario.run_state(run) == "running"
    assert transact(scenario.engine, mark.mark_run, "d", "r", RunState.SUCCESS) == planned

    end(scenario, claims["a"], S.FAILED)
    scenario.turn()
    assert set(scenario.states().values()) == {"success"}
    assert scenario.run_state(run) == "success"


def test_marking_a_run_gives_its_place_to_the_next(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1, max_active_runs=1), run_id="r")
    following = scenario.trigger("d", run_id="next")
    scenario.turn()

    transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)
    scenario.turn()

    assert scenario.run_state(following) == "running"


def test_states_that_cannot_be_marked_are_refused(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1), run_id="r")

    with pytest.raises(PacelineError, match="cannot be marked running"):
        mark_(scenario, S.RUNNING, "t000")
    with pytest.raises(PacelineError, match="cannot be marked queued"):
        transact(scenario.engine, mark.mark_run, "d", "r", RunState.QUEUED)
    with pytest.raises(NotFoundError, match="has no run 'other'"):
        transact(scenario.engine, mark.mark_run, "d", "other", RunState.FAILED)


def test_a_run_is_deleted_once_nothing_of_it_runs(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 2), run_id="r")
    claim = running(scenario)

    with pytest.raises(ConflictError, match="1 task instance of it runs: stop them with `paceline runs mark d r failed`"):
        transact(scenario.engine, delete.delete_run, "d", "r")

    transact(scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)
    end(scenario, claim)
    transact(scenario.engine, delete.delete_run, "d", "r")
    assert scenario.rows("select 1 from dag_run union all select 1 from task_instance") == []
    with pytest.raises(NotFoundError):
        transact(scenario.engine, delete.delete_run, "d", "r")
    scenario.turn()


def test_a_message_of_a_deleted_run_finds_nothing(scenario: Scenario) -> None:
    scenario.start(chain("d", 2), run_id="r")

    transact(scenario.engine, delete.delete_run, "d", "r")

    assert scenario.work() == 0


def test_a_dag_is_deleted_with_all_that_is_its_own(scenario: Scenario) -> None:
    scenario.add(chain("d", 2))
    scenario.add(chain("d", 3))
    scenario.add(chain("other", 1))
    scenario.trigger("d", run_id="r")
    scenario.trigger("other")
    scenario.sql("insert into dag_file (path, modified_at, next_parse_at) values ('d.py', now(), now() + interval '1 day')")

    deleted = transact(scenario.engine, delete.delete_dag, "d")

    assert ([run.run_id for run in deleted.runs], deleted.file) == (["r"], "d.py")
    assert scenario.rows("select next_parse_at <= now() from dag_file") == [(True,)], "its file is read again at once"
    for table in ("dag", "dag_version", "dag_schedule", "dag_run"):
        assert scenario.rows(f"select dag_id from {table}") == [("other",)]
    with pytest.raises(NotFoundError, match="There is no DAG 'd'"):
        transact(scenario.engine, delete.delete_dag, "d")


ALL_RUNS = Runs(dag_id="d")
FROM_FIRST = Runs(dag_id="d", run_id="r1", future=True)
Act = Callable[..., Changes]


def clear_tasks(scenario: Scenario, tasks: Tasks, **options: Any) -> Any:
    return clear_(scenario, tasks, **options)


def mark_tasks(scenario: Scenario, tasks: Tasks, **options: Any) -> Any:
    return mark_(scenario, S.SKIPPED, tasks=tasks, **options)


@pytest.fixture(params=[clear_tasks, mark_tasks], ids=["clear", "mark"])
def act(request: pytest.FixtureRequest) -> Act:
    action: Act = request.param
    return action


@pytest.fixture
def three(scenario: Scenario) -> Scenario:
    """Three ended runs: `work` has five instances in the first two and three in the last one, which alone has the task `new`."""
    edges: dict[str, list[str]] = {"items": [], "work": ["items"]}

    def outcome(claim: Claim) -> Ending:
        length = 3 if claim.run_id == "r3" else 5
        return Ending(S.SUCCESS, result=str(list(range(length))) if claim.task_id == "items" else None)

    for day in (1, 2, 3):
        if day != 2:
            scenario.add(dag("d", edges | ({"new": []} if day == 3 else {}), options={"work": product(of("items"))}))
        scenario.trigger("d", run_id=f"r{day}", logical_date=datetime(2026, 1, day, tzinfo=UTC))
        scenario.run_to_end(outcome=outcome)
    return scenario


def everything(scenario: Scenario) -> Any:
    return scenario.rows("select * from task_instance order by id"), scenario.rows("select * from dag_run order by id")


def changed(act: Act, scenario: Scenario, tasks: Tasks, runs: Runs) -> tuple[list[str], int]:
    """The task instances that the action changes, which its dry run lists too, and the runs passed over."""
    before = everything(scenario)
    planned = act(scenario, tasks, runs=runs, dry_run=True)
    assert everything(scenario) == before
    done = act(scenario, tasks, runs=runs)
    assert (done, done.passed_over) == (planned, planned.passed_over)
    return [f"{one.run_id}.{one.task_id}[{one.map_index}]" for one in done], done.passed_over


def test_runs_without_the_task_or_map_index_are_passed_over(act: Act, three: Scenario) -> None:
    first_two = Runs(dag_id="d", to_date=datetime(2026, 1, 2, tzinfo=UTC))

    assert changed(act, three, Tasks(task_ids=("new",)), first_two) == ([], 2), "only later runs have it"
    assert changed(act, three, Tasks(task_ids=(("work", 4),)), FROM_FIRST) == (["r1.work[4]", "r2.work[4]"], 1)
    untouched = three.rows(
        "select r.run_id, r.state from dag_run r where not exists"
        " (select 1 from task_instance t where t.dag_run_id = r.id and (t.state is null or t.state = 'skipped'))"
    )
    assert untouched == [("r3", "success")]
    assert changed(act, three, Tasks(task_ids=("new",)), ALL_RUNS) == (["r3.new[-1]"], 2)


@pytest.mark.parametrize("named", [{"task_ids": (("work", 4),)}, {"regex": "^work$", "map_index": 4}])
def test_in_a_run_that_is_passed_over_no_relative_changes(act: Act, three: Scenario, named: dict[str, Any]) -> None:
    done, _ = changed(act, three, Tasks(**named, upstream=True, downstream=True), FROM_FIRST)

    assert {"r1.items[-1]", "r2.items[-1]"} <= set(done)
    assert not any(name.startswith("r3.") for name in done)


NOT_FOUND: list[tuple[Tasks, Runs, str]] = [
    (Tasks(task_ids=(("work", 0), ("work", 99))), Runs(dag_id="d", run_id="r3"), "no instance of map index 99"),
    (Tasks(task_ids=("items", ("work", 99))), ALL_RUNS, "no instance of map index 99 in any of these runs"),
    (Tasks(task_ids=("items", "wrok")), FROM_FIRST, "no task 'wrok'; did you mean 'work'"),
    (Tasks(task_ids=("new",)), Runs(dag_id="d", run_id="r1"), "no task 'new'"),
    (Tasks(task_ids=("wrok",)), Runs(dag_id="d", from_date=datetime(2030, 1, 1, tzinfo=UTC)), "no task 'wrok'"),
]


def test_after_an_error_nothing_is_changed(act: Act, three: Scenario) -> None:
    before = everything(three)

    for tasks, runs, error in NOT_FOUND:
        for dry_run in (True, False):
            with pytest.raises(NotFoundError, match=error):
                act(three, tasks, runs=runs, dry_run=dry_run)
    assert everything(three) == before

    three.sql("update dag_version set data = '{}' where id = (select version_id from dag_run where run_id = 'r3')")
    with pytest.raises(UnreadableVersionError):
        act(three, Tasks(task_ids=("items",)), runs=ALL_RUNS)
    assert everything(three) == before


def test_a_running_task_prevents_the_clear_of_all(scenario: Scenario) -> None:
    scenario.finish(dag("d", {"a": [], "b": ["a"]}), run_id="r1")
    scenario.trigger("d", run_id="r2")
    running(scenario)
    before = everything(scenario)

    with pytest.raises(ConflictError, match="is running"):
        clear_(scenario, Tasks(task_ids=("a",)), runs=ALL_RUNS, prevent_running=True)

    assert everything(scenario) == before


GROUP: dict[str, Any] = {"mapped_group": "one", "expand": {"kind": "product", "inputs": [{"literal": 3}]}}


def groups(scenario: Scenario) -> None:
    """A mapped group of a setup, work, a last task and a teardown, with a setup and a teardown around it; the last tasks fail."""
    own = {
        "create": GROUP | {"is_setup": True, "setups": ("all",)},
        "work": GROUP | {"setups": ("create", "all")},
        "last": GROUP | {"setups": ("create", "all")},
        "delete": GROUP | {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("create",),
                           "scope": ("work", "last")},
        "all": {"is_setup": True},
        "end": {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("all",),
                "scope": ("create", "work", "last", "delete")},
    }  # fmt: skip
    edges: dict[str, list[str]] = {
        "all": [], "create": ["all"], "work": ["create"], "last": ["work"], "delete": ["last"], "end": ["delete"],
    }  # fmt: skip
    scenario.triggered(dag("d", edges, options=own), run_id="r")
    scenario.run_to_end(outcome=failing("last"))


def places(changes: list[Any]) -> set[str]:
    return {f"{one.task_id}{one.map_index}" for one in changes}


def test_an_instance_of_a_mapped_group_takes_only_its_own_setup_and_teardown_along(scenario: Scenario) -> None:
    groups(scenario)

    found = clear_(scenario, Tasks(task_ids=("work",), map_index=1))

    assert places(found) == {"all-1", "create1", "work1", "delete1", "end-1"}
    scenario.run_to_end()
    again = scenario.rows("select task_id, map_index from task_instance where try_number = 2 order by task_no, map_index")
    assert again == [("all", -1), ("create", 1), ("work", 1), ("delete", 1), ("end", -1)]


def test_downstream_of_an_instance_of_a_mapped_group_is_its_own_index_until_the_group_ends(scenario: Scenario) -> None:
    groups(scenario)

    below = clear_(scenario, Tasks(task_ids=(("work", 1),), downstream=True), dry_run=True)
    again = mark_(scenario, S.SUCCESS, tasks=Tasks(task_ids=("work",), map_index=2), clear_downstream=True, dry_run=True)

    assert places(below) == {"all-1", "create1", "work1", "last1", "delete1", "end-1"}
    assert places(again) == {"all-1", "create2", "last2", "delete2", "end-1"}


def test_a_queued_run_runs_only_what_has_not_ended(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"]}), run_id="r")
    scenario.run_to_end(outcome=failing("b"))

    transact(scenario.engine, clear.queue_run, run)

    assert scenario.run_state(run) == "queued"
    scenario.run_to_end()
    assert scenario.rows("select task_id, state, try_number from task_instance order by id") == [
        ("a", "success", 1),
        ("b", "failed", 1),
    ]
    assert scenario.run_state(run) == "failed"
    assert brief(clear_(scenario, Tasks(states=frozenset({S.FAILED})))) == [("b", -1, "failed", "none")]
    transact(scenario.engine, clear.queue_run, run)
    scenario.run_to_end()
    assert scenario.rows("select task_id, try_number from task_instance order by id") == [("a", 1), ("b", 2)]
