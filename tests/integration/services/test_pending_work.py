"""One query tells which services may have work. The others send no query, and no work is missed."""

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import event
from support.scenario import Scenario, dag
from support.waiting import eventually

from scheduler.messaging.wakeups import Wakeups
from scheduler.services.loop import SchedulerLoop
from scheduler.services.queue import Queue
from scheduler.services.service import LONGEST_SHARED_SKIP_S
from scheduler.store.upkeep import pending_work

MakeScenario = Callable[..., Scenario]
RUN = "(select max(id) from dag_run)"
#: By service: how something comes to be there for it.
CAUSES = {
    "plan": ["update dag_schedule set planned_version_id = null"],
    "plan, soon": ["update dag_schedule set next_run_after = clock_timestamp() + interval '1 second'"],
    "assets, a notice": [
        f"insert into notice (kind, task_instance_id, dag_run_id) select 'asset', min(id), {RUN} from task_instance"
    ],
    "assets, updates": [
        "insert into asset (uri, name) values ('x', 'x')",
        "insert into asset_event (uri, created_by) values ('x', 'task')",
        "insert into asset_waiting (dag_id, uri, event_id) select 'd', 'x', id from asset_event",
    ],
    "backfill": [
        "insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess)"
        " select 'd', max(id), now(), now(), 1, 'none' from dag_version"
    ],
    "deadlines": [f"insert into deadline (dag_run_id, kind, due_at) values ({RUN}, 'deadline', now())"],
    "timeouts": ["update dag_run set state = 'running', ended_at = null, timeout_at = clock_timestamp() - interval '1 second'"],
    "promote": ["update dag_run set state = 'queued', ended_at = null"],
    "promote, soon": ["update task_instance set state = 'up_for_retry', due_at = clock_timestamp() + interval '1 second'"],
    "sweep": ["update dag_run set state = 'running', ended_at = null"],
    "queue": ["update task_instance set state = 'scheduled', scheduled_at = clock_timestamp()"],
    "queue_report, waiting": ["update task_instance set state = 'scheduled', scheduled_at = clock_timestamp()"],
    "queue_report, a new worker": [
        "insert into process (id, kind, name, host, pid) values ('new#1', 'worker', 'new', 'h', 1)",
    ],
    "rescue, queued": ["update task_instance set state = 'queued', dispatch_id = gen_random_uuid(), queued_at = clock_timestamp()"],
    "rescue, silent": ["update process set heartbeat_at = clock_timestamp() - interval '1 hour'"],
    "rescue, crashed": ["delete from crash_free"],
    "notify": [f"insert into notice (kind, dag_run_id) values ('run_failure', {RUN})"],
}


@pytest.fixture
def still(make_scenario: MakeScenario) -> Scenario:
    """A scheduler with a DAG whose one run has ended."""
    scenario = make_scenario()
    run = scenario.triggered(dag("d", {"a": []}))
    eventually(lambda: (scenario.turn(), scenario.work(), scenario.run_state(run) == "success")[-1])
    scenario.turn()
    scenario.sql("update process set started_at = started_at - interval '1 hour'")
    return scenario


def test_each_service_has_a_cause_here(scenario: Scenario) -> None:
    assert {cause.partition(",")[0] for cause in CAUSES} == scenario.schedulers[0].conditions.keys()


def look(scenario: Scenario) -> frozenset[str]:
    with scenario.engine.connect() as connection:
        _, services = pending_work.look(connection, scenario.settings, scenario.schedulers[0].conditions)
        return services


def test_nothing_is_pending_where_all_has_ended(still: Scenario) -> None:
    assert look(still) == frozenset()


@pytest.mark.parametrize("cause", CAUSES)
def test_work_that_a_service_would_find_is_pending(cause: str, still: Scenario) -> None:
    for statement in CAUSES[cause]:
        still.sql(statement)

    assert cause.partition(",")[0] in look(still)


def test_a_pass_without_pending_work_sends_one_query(still: Scenario) -> None:
    (scheduler,) = still.schedulers
    statements: list[str] = []
    event.listen(scheduler.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))

    def become_due() -> None:
        for timer in scheduler.timers.values():
            timer.skip()
            timer.due_at = 1e-9
        scheduler.timers["heartbeat"].due_at = scheduler.timers["prune"].due_at = float("inf")
        statements.clear()
        scheduler.run_once()

    become_due()
    assert [statement for statement in statements if not statement.startswith("prepare")] == [pending_work.EXECUTE]

    still.sql("update dag_run set state = 'running', ended_at = null")
    become_due()
    assert len(statements) > 1
    eventually(lambda: (become_due(), still.rows("select state from dag_run") == [("success",)])[-1])


def pass_of(scheduler: SchedulerLoop) -> list[str]:
    """The services that ran in one pass."""
    before = {name: timer._ran_at for name, timer in scheduler.timers.items()}
    scheduler.run_once()
    return [service.name for service in scheduler.services if scheduler.timers[service.name]._ran_at != before[service.name]]


def test_a_scheduler_leaves_shared_polls_to_the_listening_scheduler_for_a_while(still: Scenario) -> None:
    (scheduler,) = still.schedulers
    other = Wakeups(still.settings)

    def turn(*, ran_s_ago: float = 0.0, woken: str = "") -> list[str]:
        still.sql("update dag_run set state = 'running', ended_at = null")
        still.sql("update task_instance set state = 'scheduled', scheduled_at = clock_timestamp()")
        for timer in scheduler.timers.values():
            timer.ran()
            timer.due_at, timer._ran_at = 1e-9, timer._ran_at - ran_s_ago
        scheduler.wake({woken} - {""})
        return [name for name in pass_of(scheduler) if name in {"sweep", "queue"}]

    assert turn() == ["sweep", "queue"]
    other._listener.listen(4)  # type: ignore[union-attr]
    assert scheduler._wakeups.wait(0.001) == set()
    assert turn() == []
    assert turn(woken="queue") == ["queue"]
    assert turn(ran_s_ago=LONGEST_SHARED_SKIP_S) == ["sweep", "queue"]

    other.close()
    scheduler._wakeups.wait(0.001)
    assert turn() == ["sweep", "queue"]


def test_a_scheduler_without_its_database_lets_another_scheduler_listen(still: Scenario) -> None:
    (scheduler,) = still.schedulers
    other, stop = Wakeups(still.settings), threading.Event()
    stop.set()
    scheduler._wakeups._listener.listen(4)  # type: ignore[union-attr]
    for timer in scheduler.timers.values():
        timer.ran(60)
    scheduler.service(Queue).wakeups_paused_until = 0.0
    scheduler.health.database.failed("It does not answer.")

    scheduler._wait(stop)
    other.wake("queue")

    assert "queue" in (other.wait(0.001) or ())


def test_a_service_runs_at_times_even_if_nothing_is_pending(still: Scenario) -> None:
    (scheduler,) = still.schedulers
    for timer in scheduler.timers.values():
        timer.ran()
    scheduler.timers["queue"].due_at = 1e-9
    scheduler.timers["queue"]._ran_at -= 60

    assert pass_of(scheduler) == ["queue"]
