"""`paceline doctor --deep`: each broken row is named, repaired by an ordinary transition, and its run ends."""

from collections.abc import Iterator

import pytest
from support.repair import repair
from support.scenario import Scenario, dag

from scheduler.messaging.publisher import dispatch_ids_in_broker
from scheduler.store.upkeep import invariants
from scheduler.store.upkeep.invariants import Tools

#: Every moment of the last year is this long ago.
AGED = "interval '1 hour'"
MAPPED = {"each": {"expand": {"kind": "product", "inputs": [{"literal": 2}]}}}


@pytest.fixture
def tools(scenario: Scenario) -> Tools:
    """The worker of the scenario lives, and rows older than a minute count."""
    scenario.add(dag("pair", {"first": [], "second": ["first"]}))
    return Tools(scenario.engine, scenario.settings, scenario.brokers, grace_s=60)


def start(scenario: Scenario, dag_id: str = "pair") -> int:
    """A run whose first tasks are queued, and their messages taken out of the broker."""
    run = scenario.trigger(dag_id, run_id="r")
    scenario.turn()
    return run


def claimed(scenario: Scenario, dag_id: str = "pair") -> int:
    """A run whose first task runs."""
    run = start(scenario, dag_id)
    (message,) = scenario.messages()
    assert scenario.claim(message) is not None
    return run


def age(scenario: Scenario) -> None:
    """Move everything except heartbeats an hour into the past."""
    scenario.sql(
        f"update dag_run set started_at = started_at - {AGED}, ended_at = ended_at - {AGED}, run_after = run_after - {AGED}"
    )
    scenario.sql(
        f"update task_instance set scheduled_at = scheduled_at - {AGED}, queued_at = queued_at - {AGED}, due_at = due_at - {AGED},"
        f" dispatched_at = dispatched_at - {AGED}, started_at = started_at - {AGED}, ended_at = ended_at - {AGED}"
    )


def named(tools: Tools) -> list[str]:
    return sorted(one.name for one in invariants.find(tools))


@pytest.fixture
def ends(scenario: Scenario) -> Iterator[None]:
    """At its end, every run of the test is brought to its end by schedulers and a worker."""
    yield
    scenario.run_to_end()
    assert scenario.rows("select distinct state from dag_run") in ([("success",)], [("failed",)])


def test_a_healthy_run_breaks_nothing_at_any_step(scenario: Scenario, tools: Tools) -> None:
    tools = Tools(scenario.engine, scenario.settings, scenario.brokers, grace_s=60)
    scenario.add(dag("m", {"each": [], "after": ["each"]}, options=MAPPED))
    for dag_id in ("pair", "m"):
        scenario.trigger(dag_id)
    for _ in range(8):
        assert invariants.find(tools) == []
        scenario.turn()
        assert invariants.find(tools) == []
        scenario.work()
    assert scenario.rows("select distinct state from dag_run") == [("success",)]


LATE = f"now() - {AGED}"
DEFER = "update task_instance set state = 'deferred', resume = '{}' where state = 'running'"
TRIGGER = "insert into deferral (task_instance_id, dispatch_id, classpath, created_at, waiter) select id, dispatch_id, 'c', "
LOST = "update task_instance set worker = 'nobody', max_tries = 1 where state = 'running'"
WAITS_AGAIN = "select state = 'up_for_retry' from task_instance where task_id = 'first'"
#: What breaks a run of `pair` whose first task runs or, marked with *, is queued without its message; the name and the task of
#: what is found, and a part of its text; what is true after the repair; and what lets the run end.
BREAKS: dict[str, tuple[str, str, str | None, str, str, str]] = {
    "its worker never existed": (
        LOST, "dead worker", "first", "is lost or never existed", WAITS_AGAIN, ""),
    "its worker has stopped": (
        f"update process set stopped_at = {LATE} where kind = 'worker'; update task_instance set max_tries = 1", "dead worker",
        "first", "is lost or never existed", WAITS_AGAIN,
        "update process set stopped_at = null where kind = 'worker'"),
    "* everything has ended": (
        "update task_instance set state = 'success', ended_at = now()", invariants.UNCLOSED, None,
        "all its task instances have ended: it should be success", "select state = 'success' from dag_run", ""),
    "* the upstream task has succeeded": (
        "update task_instance set state = 'success', ended_at = now() where task_id = 'first'", invariants.UNDECIDED, "second",
        "undecided, and it should be scheduled: ", "select state = 'scheduled' from task_instance where task_id = 'second'", ""),
    "its trigger is gone": (
        DEFER, "deferred without a trigger", "first", "",
        "select state = 'scheduled' and resume->>'error' like '%%was lost%%' from task_instance where task_id = 'first'", ""),
    "a trigger waits for a running task": (
        f"{TRIGGER} {LATE}, null from task_instance where state = 'running'", "trigger without a deferred task", "first",
        "a trigger waits for it, but it is running", "select not exists (select from deferral)",
        "update task_instance set state = 'failed', ended_at = now() where state = 'running'"),
    "the waiter of its trigger is gone": (
        f"{DEFER}; update task_instance set due_at = now() + interval '61 minutes' where state = 'deferred';"
        f" {TRIGGER} {LATE}, 'nobody' from task_instance where state = 'deferred'", "trigger of a dead waiter", "first", "",
        "select waiter is null from deferral", "update task_instance set due_at = now() where state = 'deferred'"),
    "it should look again": (
        "update task_instance set state = 'up_for_reschedule', due_at = now() where state = 'running'", "overdue", "first", "",
        "select state = 'scheduled' from task_instance where task_id = 'first'", ""),
}  # fmt: skip


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_row_is_named_repaired_and_its_run_ends(scenario: Scenario, tools: Tools, broken: str) -> None:
    breaks, name, task_id, what, holds, end = BREAKS[broken]
    if broken.startswith("*"):
        start(scenario)
        scenario.messages()
    else:
        claimed(scenario)
    scenario.sql(breaks)
    age(scenario)

    (found,) = invariants.find(tools)
    assert (found.name, found.task_id) == (name, task_id), found
    assert what in found.what
    assert repair(tools, [found]) == []
    assert scenario.rows(holds) == [(True,)]
    if end:
        scenario.sql(end)


@pytest.mark.usefixtures("ends")
def test_a_queued_task_without_a_message_is_sent_again(scenario: Scenario, tools: Tools) -> None:
    start(scenario)
    scenario.messages()
    age(scenario)

    found = invariants.find(tools)

    assert [(one.name, one.task_id) for one in found] == [(invariants.UNSENT, "first")]
    assert repair(tools, found) == []
    assert len(dispatch_ids_in_broker(scenario.broker, {"default"})) == 1
    assert scenario.rows("select try_number from task_instance where task_id = 'first'") == [(1,)]


def test_a_backfill_with_nothing_left_is_ended(scenario: Scenario, tools: Tools) -> None:
    scenario.sql(
        "insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess, created_at)"
        f" select dag_id, id, now(), now(), 1, 'none', {LATE} from dag_version"
    )

    found = invariants.find(tools)

    assert [one.name for one in found] == ["backfill without an end"]
    assert repair(tools, found) == []
    assert scenario.rows("select ended_at is not null from backfill") == [(True,)]


def test_a_worker_is_lost_once_it_was_silent_for_its_timeout(scenario: Scenario, tools: Tools) -> None:
    claimed(scenario)
    scenario.sql(f"update process set heartbeat_at = now() - {AGED} where kind = 'worker'")
    assert named(tools) == [], "PostgreSQL started after that: no process could send a heartbeat"
    soon = scenario.settings.model_copy(update={"worker": scenario.settings.worker.model_copy(update={"heartbeat_timeout": 0.001})})

    found = invariants.find(Tools(scenario.engine, soon, scenario.brokers, grace_s=0))

    assert ("dead worker", "first") in {(one.name, one.task_id) for one in found}


@pytest.mark.usefixtures("ends")
def test_open_task_instances_of_a_finished_run_are_ended(scenario: Scenario, tools: Tools) -> None:
    run = start(scenario)
    scenario.messages()
    scenario.sql("update dag_run set state = 'failed', ended_at = now() where id = %s", run)
    scenario.sql("update task_instance set state = 'scheduled' where task_id = 'first'")
    age(scenario)

    found = invariants.find(tools)
    assert [(one.name, one.task_id, one.what) for one in found] == [
        ("open in a finished run", "first", "scheduled although its run has ended: failed"),
        ("open in a finished run", "second", "undecided although its run has ended: failed"),
    ]
    assert repair(tools, found) == []
    assert scenario.states() == {"first": "skipped", "second": "skipped"}


def test_a_task_that_is_being_stopped_in_a_finished_run_is_no_fault(scenario: Scenario, tools: Tools) -> None:
    claimed(scenario)
    scenario.sql("update task_instance set state = 'shutdown', requested_state = 'failed' where state = 'running'")
    scenario.sql("update task_instance set state = 'skipped', ended_at = now() where state is null")
    scenario.sql("update dag_run set state = 'failed', ended_at = now()")
    age(scenario)

    assert named(tools) == []


@pytest.mark.usefixtures("ends")
def test_leases_that_are_long_over_are_given_back(scenario: Scenario, tools: Tools) -> None:
    run = start(scenario)
    scenario.sql("insert into notice (kind, dag_run_id, claimed_by, claimed_until)"
                 " values ('dag_success', %s, 'nobody/1', now() - interval '1 hour')", run)  # fmt: skip
    scenario.sql("insert into dag_file (path, modified_at, claimed_by, claimed_until)"
                 " values ('f.py', now(), 'nobody', now() - interval '1 hour')")  # fmt: skip

    found = invariants.find(tools)
    assert [(one.name, one.run_id) for one in found] == [("stale notice", "r"), ("stale DAG file", None)]
    assert repair(tools, found) == []
    assert scenario.rows("select claimed_by from notice union all select claimed_by from dag_file") == [(None,), (None,)]


@pytest.mark.parametrize(
    ("limit", "name"),
    [
        ("update pool set slots = 1", "pool over its slots"),
        ("update process set concurrency = 1 where kind = 'worker'", "worker over its concurrency"),
        ("update task_instance set max_active_tis_per_dag = 1", "task over its limit"),
        ("update task_instance set max_active_tis_per_dagrun = 1", "task over its limit in a run"),
        ("update dag_version set data = data || '{\"max_active_tasks\": 1}'", "run over max_active_tasks"),
    ],
)
def test_task_instances_over_a_limit_are_named_and_left_to_end(scenario: Scenario, tools: Tools, limit: str, name: str) -> None:
    scenario.add(dag("m", {"each": []}, options=MAPPED))
    start(scenario, "m")
    for message in scenario.messages():
        assert scenario.claim(message) is not None
    scenario.sql(limit)

    assert named(tools) == [name]
    assert [one.name for one in repair(tools, invariants.find(tools))] == [name]

    scenario.sql("update task_instance set state = 'success', ended_at = now()")
    assert named(tools) == []


def test_a_row_of_a_deleted_task_instance_is_named(scenario: Scenario, tools: Tools) -> None:
    scenario.sql("insert into xcom (task_instance_id, key, value) values (777, 'k', '1')")

    (found,) = invariants.find(tools)

    assert (found.name, found.what) == (
        "row without its task instance", "the table xcom has a row of task instance 777, which is deleted"
    )  # fmt: skip
    assert repair(tools, [found]) == [found]


def test_a_pool_over_its_slots_counts_slots_and_deferred_task_instances_if_included(scenario: Scenario, tools: Tools) -> None:
    each = {"expand": {"kind": "product", "inputs": [{"literal": 4}]}, "pool_slots": 2}
    scenario.add(dag("m", {"each": []}, options={"each": each}))
    start(scenario, "m")
    claim = scenario.claim(scenario.messages()[0])
    assert claim is not None
    scenario.sql("update task_instance set state = 'deferred', resume = '{}' where state = 'running'")
    scenario.sql("update pool set slots = 5, include_deferred = true")

    found = [one for one in invariants.find(tools) if one.name == "pool over its slots"]
    assert [one.what for one in found] == ["pool default_pool has 5 slots and 8 are taken"]


def test_runs_and_task_instances_over_all_limits_are_named(scenario: Scenario, tools: Tools) -> None:
    narrow = scenario.settings.model_copy(update={"core": scenario.settings.core.model_copy(update={"parallelism": 1})})
    for number in range(2):
        scenario.trigger("pair", run_id=f"r{number}")
    scenario.turn()
    scenario.sql("update dag_version set data = data || '{\"max_active_runs\": 1}'")

    found = invariants.find(Tools(scenario.engine, narrow, scenario.brokers, grace_s=60))

    assert sorted(one.name for one in found) == ["DAG over max_active_runs", "parallelism exceeded"]
    assert {one.dag_id for one in found} == {"pair", None}
