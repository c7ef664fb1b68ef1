"""Clearing: decisions are reverted, ended tasks run again, running tasks are stopped first, and mapped ones expanded again."""

from collections.abc import Callable

import pytest
from support.run_actions import brief, clear_, end, failing, push, running
from support.scenario import Scenario, chain, dag

from paceline.exceptions import NotFoundError, PacelineError
from paceline.states import FAILURES, STARTED, TaskState
from scheduler.store.actions import clear
from scheduler.store.runs.selection import Tasks
from scheduler.store.worker.claims import Ending

S = TaskState


def test_a_cleared_failure_runs_again_with_all_its_retries_and_keeps_its_try(scenario: Scenario) -> None:
    run = scenario.triggered(dag("d", {"a": [], "b": ["a"], "c": ["b"]}, task={"retries": 1}), run_id="r")
    scenario.run_to_end(outcome=failing("b"))
    before = scenario.rows("select started_at, ended_at from dag_run")[0]

    changes = clear_(scenario, Tasks(task_ids=("b",), downstream=True))

    assert brief(changes) == [("b", -1, "failed", "none"), ("c", -1, "upstream_failed", "none")]
    assert scenario.states(run) == {"a": "success", "b": "none", "c": "none"}
    assert scenario.rows("select state, started_at, ended_at, examined_at, timeout_at, clear_number from dag_run") == [
        ("queued", None, None, None, None, 1)
    ]
    assert scenario.rows(
        "select try_number, max_tries, started_at, worker, dispatch_id from task_instance where task_id = 'b'"
    ) == [(1, 2, None, None, None)]
    assert scenario.rows("select try_number, state from task_try") == [(1, "failed")]

    scenario.run_to_end()
    assert scenario.run_state(run) == "success"
    assert scenario.rows("select started_at from dag_run")[0][0] > before[0]
    assert scenario.rows("select try_number from task_instance where task_id = 'b'") == [(2,)]


def test_undecided_task_instances_stay(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 2), run_id="r")

    assert clear_(scenario) == []
    assert scenario.rows("select clear_number from dag_run") == [(0,)]


def test_a_running_run_continues_unchanged(scenario: Scenario) -> None:
    run = scenario.start(dag("d", {"a": [], "b": [], "c": ["b"]}), run_id="r")
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    push(scenario, claims["a"], "1")
    started = scenario.rows("select started_at from dag_run")

    clear_(scenario, Tasks(task_ids=("a",)))

    assert scenario.rows("select state, clear_number from dag_run") == [("running", 0)]
    assert scenario.rows("select started_at from dag_run") == started
    assert scenario.rows("select count(*) from xcom") == [(0,)], "the XComs of the try are gone at once"
    push(scenario, claims["b"], "1")
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_a_running_task_is_stopped_first_then_runs_again(scenario: Scenario) -> None:
    run = scenario.triggered(chain("d", 1, task={"retries": 2}), run_id="r")
    claim = running(scenario)

    assert brief(clear_(scenario)) == [("t000", -1, "running", "shutdown")]

    assert scenario.rows("select state, requested_state, max_tries from task_instance") == [("shutdown", "none", 3)]
    assert not scenario.follower.report(claim, Ending(state=S.SUCCESS)).is_stored, "its own end does not count any more"
    assert scenario.follower.end_as_requested(claim)
    assert scenario.states(run) == {"t000": "none"}
    assert scenario.rows("select try_number, state from task_try") == [(1, "shutdown")]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"
    assert scenario.rows("select try_number from task_instance") == [(2,)]


def test_clearing_a_task_that_is_being_stopped_replaces_the_earlier_request(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1), run_id="r")
    claim = running(scenario)
    scenario.sql("update task_instance set state = 'shutdown', requested_state = 'failed'")

    assert brief(clear_(scenario)) == [("t000", -1, "shutdown", "shutdown")]
    assert clear_(scenario) == [], "it was asked for already"

    scenario.follower.end_as_requested(claim)
    scenario.run_to_end()
    assert scenario.states() == {"t000": "success"}


def test_a_queued_task_loses_its_message(scenario: Scenario) -> None:
    scenario.start(chain("d", 1), run_id="r")
    (message,) = scenario.messages()

    clear_(scenario)

    assert scenario.claim(message) is None
    scenario.run_to_end()
    assert scenario.states() == {"t000": "success"}


@pytest.mark.parametrize("state", ["up_for_retry", "up_for_reschedule", "deferred"])
def test_a_waiting_task_is_cleared_with_all_that_it_waits_for(scenario: Scenario, state: str) -> None:
    run = scenario.triggered(chain("d", 1), run_id="r")
    running(scenario)
    scenario.sql("update task_instance set state = %s, resume = '{}', due_at = now() + interval '1 day', decision = '{}'", state)
    scenario.sql("insert into deferral (task_instance_id, dispatch_id, classpath) select id, dispatch_id, 'x' from task_instance")

    assert brief(clear_(scenario)) == [("t000", -1, state, "none")]

    assert scenario.rows("select resume, due_at, decision, dispatch_id from task_instance") == [(None, None, None, None)]
    assert scenario.rows("select count(*) from deferral") == [(0,)]
    scenario.run_to_end()
    assert scenario.run_state(run) == "success"


def test_upstream_downstream_and_only_failed(scenario: Scenario) -> None:
    scenario.triggered(dag("d", {"a": [], "b": ["a"], "c": ["b"], "d": ["c"], "x": []}, rules={"d": "all_done"}), run_id="r")
    scenario.run_to_end(outcome=failing("b"))

    def dry(tasks: Tasks) -> str:
        return "".join(one.task_id for one in clear_(scenario, tasks, dry_run=True))

    assert dry(Tasks(task_ids=("c",))) == "c"
    assert dry(Tasks(task_ids=("c",), upstream=True)) == "abc"
    assert dry(Tasks(task_ids=("c",), downstream=True)) == "cd"
    assert dry(Tasks(task_ids=("b",), upstream=True, downstream=True)) == "abcd"
    assert dry(Tasks(task_ids=("a",), downstream=True, states=FAILURES)) == "bc"
    assert dry(Tasks(states=FAILURES)) == "bc"
    assert dry(Tasks(states=STARTED)) == ""
    assert dry(Tasks(regex="^[ax]$")) == "ax"


def test_a_task_or_run_that_is_not_there_is_named(scenario: Scenario) -> None:
    scenario.triggered(chain("d", 1), run_id="r")

    with pytest.raises(NotFoundError, match="has no run 'other'"):
        clear_(scenario, run_id="other")
    with pytest.raises(NotFoundError, match="has no task 'other'"):
        clear_(scenario, Tasks(task_ids=("other",)))
    with pytest.raises(NotFoundError, match="no instance of map index 4"):
        clear_(scenario, Tasks(task_ids=("t000",), map_index=4))
    with pytest.raises(NotFoundError, match="There is no DAG 'other'"):
        clear_(scenario, dag_id="other", run_id=None)
    with pytest.raises(PacelineError, match="not a regular expression"):
        clear_(scenario, Tasks(regex="("))


def test_a_work_task_takes_its_setup_and_teardown_along(scenario: Scenario) -> None:
    scenario.triggered(
        dag(
            "d",
            {"up": [], "work": ["up"], "more": ["work"], "down": ["up", "more"], "else": []},
            rules={"down": "all_done_setup_success"},
            options={
                "up": {"is_setup": True},
                "work": {"setups": ("up",)},
                "more": {"setups": ("up",)},
                "down": {"is_teardown": True, "setups": ("up",), "scope": ("work", "more")},
            },
        ),
        run_id="r",
    )
    scenario.run_to_end(outcome=failing("work"))

    found = clear_(scenario, Tasks(states=FAILURES))

    assert [one.task_id for one in found] == ["up", "work", "more", "down"]
    scenario.run_to_end()
    assert set(scenario.states().values()) == {"success"}


def test_an_older_run_that_is_cleared_gets_the_place_of_a_later_run_that_waits_for_it(scenario: Scenario) -> None:
    older = scenario.finish(chain("d", 2, max_active_runs=1, task={"depends_on_past": True}), run_id="older")
    later = scenario.trigger("d", run_id="later")
    claim = running(scenario)
    assert scenario.run_state(later) == "running"

    clear_(scenario, run_id="older")

    assert [scenario.run_state(run) for run in (older, later)] == ["queued", "queued"]
    push(scenario, claim, "1")
    scenario.run_to_end()
    assert [scenario.run_state(run) for run in (older, later)] == ["success", "success"]
    ends = scenario.rows("select run_id from dag_run order by ended_at")
    assert ends == [("older",), ("later",)]


def test_a_later_run_that_needs_nothing_more_of_the_older_keeps_its_place(scenario: Scenario) -> None:
    scenario.finish(chain("d", 1, max_active_runs=1, task={"depends_on_past": True}), run_id="older")
    later = scenario.trigger("d", run_id="later")
    claim = running(scenario)

    clear_(scenario, run_id="older")

    assert scenario.run_state(later) == "running"
    push(scenario, claim, "1")
    scenario.run_to_end()


def test_runs_of_a_dag_are_cleared_at_the_same_time_while_none_is_started(make_scenario: Callable[..., Scenario]) -> None:
    scenario, other = make_scenario(), make_scenario()
    scenario.add(chain("d", 1))
    first, second = (scenario.trigger("d", run_id=name) for name in ("first", "second"))
    scenario.run_to_end()
    waiting = scenario.trigger("d", run_id="waiting")

    with scenario.engine.begin() as connection:
        assert clear.lock_run(connection, first) is not None
        with other.engine.begin() as meanwhile:
            meanwhile.exec_driver_sql("set local lock_timeout = '2s'")
            assert clear.lock_run(meanwhile, second) is not None
        other.turn()
        assert other.run_state(waiting) == "queued"

    scenario.run_to_end()
    assert scenario.run_state(waiting) == "success"


def test_an_old_cleared_run_does_not_time_out_at_once(scenario: Scenario) -> None:
    run = scenario.finish(chain("d", 1, dagrun_timeout_s=3600.0), run_id="r")
    scenario.sql("update dag_run set started_at = now() - interval '2 days', timeout_at = now() - interval '2 days'")

    clear_(scenario)
    scenario.run_to_end()

    assert scenario.run_state(run) == "success"


def test_a_cleared_run_has_new_deadlines(scenario: Scenario) -> None:
    deadline = {"reference": "dagrun_queued_at", "interval_s": 3600.0}
    run = scenario.finish(chain("d", 1, deadlines=(deadline,)), run_id="r")
    scenario.sql("delete from deadline")
    scenario.sql("insert into deadline (dag_run_id, kind, due_at) values (%s, 'deadline', now() - interval '1 day')", run)

    clear_(scenario)

    assert scenario.rows("select due_at > now() + interval '50 minutes', missed_at from deadline") == [(True, None)]


MAPPED = dag(
    "d",
    {"source": [], "each": ["source"], "after": ["each"]},
    options={"each": {"expand": {"kind": "product", "inputs": [{"task": "source", "key": "return_value"}]}}},
)


def mapped(scenario: Scenario, value: str) -> None:
    scenario.add(MAPPED)
    scenario.trigger("d", run_id="r")
    push(scenario, running(scenario), value)
    scenario.run_to_end()


def each(scenario: Scenario) -> dict[int, str]:
    return dict(scenario.rows("select map_index, coalesce(state, 'none') from task_instance where task_id = 'each' order by 1"))


def test_a_mapped_task_cleared_with_its_source_is_expanded_again(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    changes = clear_(scenario, Tasks(task_ids=("source",), downstream=True))

    assert [one[:2] + one[3:] for one in brief(changes)] == [
        ("source", -1, "none"), ("each", 0, "none"), ("each", 1, "none"), ("each", 2, "none"), ("after", -1, "none"),
    ]  # fmt: skip
    push(scenario, running(scenario), "[1, 2]")
    scenario.run_to_end()
    assert each(scenario) == {0: "success", 1: "success", 2: "removed"}
    assert scenario.states()["after"] == "success"
    tries = scenario.rows("select try_number from task_instance where task_id = 'each' order by map_index")
    assert tries == [(2,), (2,), (1,)]


def test_a_source_that_returns_nothing_now_leaves_the_old_instances_removed_until_it_returns_something(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    clear_(scenario, Tasks(task_ids=("source",), downstream=True))
    push(scenario, running(scenario), "[]")
    scenario.run_to_end()

    assert each(scenario) == {-1: "skipped", 0: "removed", 1: "removed", 2: "removed"}
    assert (scenario.states()["after"], scenario.rows("select state from dag_run")) == ("skipped", [("success",)])
    tries = "select count(*) from task_try o join task_instance t on t.id = o.task_instance_id where t.task_id = 'each'"
    assert scenario.rows(tries) == [(3,)], "what ran is still told"

    clear_(scenario)
    push(scenario, running(scenario), "[1, 2, 3, 4]")
    scenario.run_to_end()
    assert each(scenario) == dict.fromkeys(range(4), "success")


def test_a_source_that_fails_now_leaves_the_old_instances_removed(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    clear_(scenario, Tasks(task_ids=("source",), downstream=True))
    scenario.run_to_end(outcome=lambda claim: S.FAILED)

    assert each(scenario) == {-1: "upstream_failed", 0: "removed", 1: "removed", 2: "removed"}
    assert scenario.rows("select state from dag_run") == [("failed",)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_instance_is_removed_if_there_is_nothing_at_its_index_any_more(scenario: Scenario, order: tuple[int, int]) -> None:
    mapped(scenario, "[1, 2, 3]")
    for one in order:
        clear_(scenario, (Tasks(task_ids=("source",)), Tasks(task_ids=("each",), map_index=2))[one])
    assert each(scenario) == {-1: "none", 0: "success", 1: "success", 2: "none"}

    push(scenario, running(scenario), "[1, 2]")
    scenario.run_to_end()

    assert each(scenario) == {0: "success", 1: "success", 2: "removed"}


def test_instances_that_run_are_stopped_before_a_mapped_task_is_expanded_again(scenario: Scenario) -> None:
    scenario.add(MAPPED)
    scenario.trigger("d", run_id="r")
    push(scenario, running(scenario), "[1, 2, 3, 4]")
    scenario.turn()
    claims = {claim.map_index: claim for claim in map(scenario.claim, scenario.messages()) if claim}
    push(scenario, claims.pop(0))

    changes = clear_(scenario, Tasks(task_ids=("source",), downstream=True))

    assert [one[1:] for one in brief(changes) if one[0] == "each"] == [
        (0, "success", "none"), (1, "running", "shutdown"), (2, "running", "shutdown"), (3, "running", "shutdown"),
    ]  # fmt: skip
    push(scenario, running(scenario), "[1, 2]")
    scenario.turn()
    for index in (1, 3):
        assert not end(scenario, claims[index])
        scenario.turn()
        assert not scenario.messages(), "one of the old instances is still being stopped"
    assert not end(scenario, claims[2])
    scenario.run_to_end()
    assert each(scenario) == {0: "success", 1: "success", 2: "removed", 3: "removed"}
    assert scenario.states()["after"] == "success"


def test_a_mapped_task_cleared_without_its_source_keeps_its_instances(scenario: Scenario) -> None:
    mapped(scenario, "[1, 2, 3]")

    clear_(scenario, Tasks(task_ids=("each",)))

    assert list(each(scenario)) == [0, 1, 2]
    scenario.run_to_end()
    assert set(scenario.states().values()) == {"success"}
