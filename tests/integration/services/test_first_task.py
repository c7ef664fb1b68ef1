"""The first task of a new run: the process that creates the run queues it, within every limit, or leaves it to a scheduler."""

import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, event
from support.scenario import Scenario, chain, dag, of, product, wide

from paceline.states import Decision, TaskState
from scheduler.actions import runs as run_actions
from scheduler.actions.actor import Actor
from scheduler.deciding.evaluate import FEW_TASKS
from scheduler.messaging.message import Message
from scheduler.services.plan import Plan
from scheduler.services.promote import Promote
from scheduler.services.service import HELD_PAUSE_S
from scheduler.settings import Settings
from scheduler.store.actions import mark
from scheduler.store.dags import dags
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.moves.first import Limits, schedule_first
from scheduler.store.runs import manual_runs
from scheduler.store.runs.runs import CreatedRun
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker.claims import Ending, NextInPlace

DAG = chain("c", 2)


def trigger(scenario: Scenario, dag_id: str = "c", *, parallelism: int | None = None, **options: Any) -> CreatedRun:
    """Trigger a run that may begin in the same transaction."""
    limits = Limits.of(scenario.settings, "cli:ada")
    if parallelism is not None:
        limits = Limits(parallelism=parallelism, window=limits.window, silent=limits.silent, queued_by=limits.queued_by)
    return transact(scenario.engine, manual_runs.trigger, dag_id, limits=limits, **options)


def held(scenario: Scenario, undo: ExitStack, statement: str) -> None:
    """Hold the locks of this statement in a transaction of another process."""
    other = undo.enter_context(scenario.engine.connect())
    other.exec_driver_sql(statement)


def test_a_triggered_run_can_be_worked_on_before_a_scheduler_has_seen_it(scenario: Scenario) -> None:
    scenario.add(DAG)

    created = trigger(scenario)

    (message,) = created.messages
    assert (message.dag_id, message.task_id, message.queue) == ("c", "t000", "default")
    assert created.tokens == [], "nothing is left to a scheduler"
    assert scenario.run_state(created.id) == "running"
    assert scenario.states() == {"t000": "queued", "t001": "none"}
    claim = scenario.claim((message.ti_id, message.dispatch_id))
    assert claim is not None and claim.try_number == 1
    assert scenario.rows("select queued_by from task_instance where state = 'running'") == [("cli:ada",)]


def test_a_trigger_takes_three_messages_between_begin_and_commit(scenario: Scenario) -> None:
    """Each is a round trip before the first task starts."""
    scenario.add(DAG)
    versions, sent = Versions(), []
    trigger(scenario, versions=versions)  # its connection prepares the statements

    event.listen(scenario.engine, "before_cursor_execute", note := lambda *arguments: sent.append(arguments[2]))
    created = trigger(scenario, versions=versions)
    event.remove(scenario.engine, "before_cursor_execute", note)

    assert len(created.messages) == 1
    assert len(sent) == 3, sent


def test_the_creator_announces_until_its_commit_what_it_takes_of_shared_limits(scenario: Scenario) -> None:
    scenario.add(DAG)

    def announced(connection: Connection) -> list[int]:
        manual_runs.trigger(connection, "c", limits=Limits.of(scenario.settings, "cli:ada"))
        own = "select objid from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        return list(connection.exec_driver_sql(own).scalars())

    assert transact(scenario.engine, announced) == [1, 1]


def test_a_run_that_no_scheduler_has_seen_goes_on_in_place(scenario: Scenario) -> None:
    """The queue service has never looked at the pool, so the creator says that its slots may be passed on."""
    scenario.add(DAG)
    assert scenario.rows("select passes_slots_on from pool") == [(False,)]

    (message,) = trigger(scenario).messages
    claim = scenario.claim((message.ti_id, message.dispatch_id))
    assert claim is not None
    reported = scenario.follower.report(claim, Ending(TaskState.SUCCESS), NextInPlace(str(uuid.uuid4())))

    assert reported.continues is not None and reported.continues.task_id == "t001"
    assert scenario.states() == {"t000": "success", "t001": "running"}


def test_the_foremost_of_several_first_tasks_is_queued_and_the_others_wait(scenario: Scenario) -> None:
    scenario.add(dag("c", {"a": [], "b": [], "z": ["a", "b"]}, options={"b": {"priority_weight": 7}}))

    created = trigger(scenario)

    assert [message.task_id for message in created.messages] == ["b"]
    assert created.tokens == ["queue"]
    assert scenario.states() == {"a": "scheduled", "b": "queued", "z": "none"}


def paused(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.add(DAG)
    transact(scenario.engine, dags.pause, "c")
    return trigger(scenario)


def at_most_one_run(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.add(chain("c", 2, max_active_runs=1))
    assert trigger(scenario).has_begun
    return trigger(scenario)


def behind_an_older_run(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.triggered(DAG)
    return trigger(scenario)


def due_later(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.add(DAG)
    return trigger(scenario, run_after=datetime.now(UTC) + timedelta(hours=1))


def mapped(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.add(dag("c", {"a": [], "m": ["a"]}, options={"m": {"expand": product(of("a"))}}))
    return trigger(scenario)


def large(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.add(wide("c", FEW_TASKS + 1))
    return trigger(scenario)


def counted_elsewhere(scenario: Scenario, undo: ExitStack) -> CreatedRun:
    scenario.add(DAG)
    held(scenario, undo, "select from dag_schedule where dag_id = 'c' for no key update")
    return trigger(scenario)


@pytest.mark.parametrize("case", [paused, at_most_one_run, behind_an_older_run, due_later, mapped, large, counted_elsewhere])
def test_a_run_that_may_not_begin_is_left_to_a_scheduler(
    scenario: Scenario, case: Callable[[Scenario, ExitStack], CreatedRun]
) -> None:
    with ExitStack() as undo:
        created = case(scenario, undo)

    assert (created.has_begun, created.messages, created.tokens) == (False, (), [f"run:{created.id}"])
    assert scenario.run_state(created.id) == "queued"
    assert set(scenario.states(created.id).values()) == {"none"}


def full_pool(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.sql("update pool set slots = 1")
    assert trigger(scenario).messages
    return trigger(scenario)


def pool_of_another_pass(scenario: Scenario, undo: ExitStack) -> CreatedRun:
    held(scenario, undo, "select from pool for no key update")
    return trigger(scenario)


def another_pool_waits(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.pool("other", 1)
    scenario.start(wide("w", 2, options={f"t{number:04}": {"pool": "other"} for number in range(2)}))
    return trigger(scenario)


def no_worker(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.sql("update process set heartbeat_at = heartbeat_at - interval '1 day'")
    return trigger(scenario)


def own_limit(scenario: Scenario, _: ExitStack) -> CreatedRun:
    scenario.add(dag("c", {"a": []}, options={"a": {"max_active_tis_per_dag": 4}}))
    return trigger(scenario)


def parallelism(scenario: Scenario, _: ExitStack) -> CreatedRun:
    assert trigger(scenario, parallelism=1).messages
    return trigger(scenario, parallelism=1)


def parallelism_of_another_pass(scenario: Scenario, undo: ExitStack) -> CreatedRun:
    held(scenario, undo, "select pg_advisory_xact_lock_shared(hashtext('paceline limit parallelism'), 3)")
    assert trigger(scenario, parallelism=4).messages
    return trigger(scenario, parallelism=4)


def queue_of_another_pass(scenario: Scenario, undo: ExitStack) -> CreatedRun:
    held(scenario, undo, "select pg_advisory_xact_lock_shared(hashtext('paceline limit queue default'), 1000)")
    return trigger(scenario)


NO_SLOT = [
    full_pool, pool_of_another_pass, another_pool_waits, no_worker, own_limit, parallelism, parallelism_of_another_pass,
    queue_of_another_pass,
]  # fmt: skip


@pytest.mark.parametrize("case", NO_SLOT)
def test_a_first_task_without_a_slot_waits_for_the_queue_service(
    scenario: Scenario, case: Callable[[Scenario, ExitStack], CreatedRun]
) -> None:
    scenario.add(DAG)
    with ExitStack() as undo:
        created = case(scenario, undo)

    assert (created.has_begun, list(created.messages), created.tokens) == (True, [], ["queue"])
    assert next(iter(scenario.states(created.id).values())) == "scheduled"


def test_many_at_once_stay_within_the_pool_and_the_active_runs(scenario: Scenario) -> None:
    """Each thread triggers runs of two DAGs: the one has a limit on its runs, both share a pool of five slots."""
    scenario.sql("update pool set slots = 5")
    scenario.add(chain("few", 1, max_active_runs=3))
    scenario.add(chain("c", 1, max_active_runs=100))
    begin = threading.Barrier(6)
    failures: list[BaseException] = []

    def many() -> None:
        begin.wait(timeout=30)
        try:
            for number in range(10):
                trigger(scenario, ("few", "c")[number % 2], run_id=f"r{threading.get_ident()}-{number}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=many) for _ in range(6)]
    for thread in threads:
        thread.start()
    scheduler = scenario.schedulers[0]
    for thread in threads:
        while thread.is_alive():
            scheduler.run_once()
            thread.join(timeout=0.01)

    assert not failures
    assert scenario.rows("select count(*) from task_instance where state = 'queued'")[0][0] <= 5
    assert scenario.rows("select count(*) from dag_run where dag_id = 'few' and state = 'running'")[0][0] <= 3
    scenario.run_to_end()
    assert scenario.rows("select distinct state from dag_run") == [("success",)]


def test_an_action_sends_the_message_itself(scenario: Scenario) -> None:
    scenario.add(DAG)
    sent: list[Message] = []
    announced: list[Any] = []
    actor = Actor(
        settings=scenario.settings, engine=scenario.engine, announce=lambda *what: announced.append(what), publish=sent.extend,
        name="cli:ada", made_by="cli",
    )  # fmt: skip

    row = run_actions.trigger(actor, "c")

    assert (row["state"], [message.task_id for message in sent], announced) == ("running", ["t000"], [])


def test_a_run_that_is_due_begins_with_its_row_and_is_queued_in_the_same_pass(scenario: Scenario) -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    scenario.add(
        chain("c", 1, schedule={"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}, start_date=start.isoformat())
    )
    plan = Plan(scenario.engine, scenario.settings, Versions())

    result = plan.run_once(start + timedelta(hours=1))

    assert (list(result.runs), list(result.services)) == ([], ["queue"]), "promote has nothing to do"
    assert scenario.states() == {"t000": "scheduled"}


def test_promote_returns_to_a_dag_whose_runs_another_process_counts(scenario: Scenario) -> None:
    scenario.triggered(DAG)
    promote = scenario.schedulers[0].service(Promote)
    with ExitStack() as undo:
        held(scenario, undo, "select from dag_schedule where dag_id = 'c' for no key update")
        result = promote.run_once()

    assert result.again_in_s == HELD_PAUSE_S
    promote.run_once()
    assert scenario.rows("select state from dag_run") == [("running",)]


def test_a_first_task_that_someone_has_moved_stays_as_it_is(scenario: Scenario) -> None:
    run = scenario.triggered(DAG)
    transact(scenario.engine, mark.mark, Runs(dag_id="c"), Tasks(task_ids=["t000"]), TaskState.SUCCESS)

    def again(connection: Connection) -> tuple[list[Message], bool]:
        limits = Limits.of(Settings.load({}), "cli:ada")
        return schedule_first(connection, run, [Decision(0, TaskState.SCHEDULED, "because")], limits=limits)

    assert transact(scenario.engine, again) == ([], False)
    assert scenario.states()["t000"] == "success"
