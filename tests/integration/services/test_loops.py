"""The loop: its order and end, PostgreSQL's clock, services without work, much work at once, and a scheduler that was away."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event
from support.clock import Clock
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.exceptions import ConflictError
from paceline.states import Branched, TaskState
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.messaging.wakeups import Wakeups
from scheduler.serialized.dag import SerializedDag
from scheduler.services.loop import SchedulerLoop
from scheduler.services.promote import Promote
from scheduler.services.queue import Queue
from scheduler.services.service import LONGEST_SHARED_SKIP_S
from scheduler.settings import Settings
from scheduler.store.dags import files
from scheduler.store.dags.current import ParsedDag
from scheduler.store.dags.files import ParsedFile
from scheduler.store.db.database import transact
from scheduler.store.upkeep import pending_work, processes
from scheduler.store.worker.claims import Claim, Ending

IN_LOOP = {
    "expand": {"kind": "product", "inputs": [{"literal": 4}]}, "mapped_group": "loop", "group": "loop", "loop_gate": "gate",
}  # fmt: skip


def looping() -> SerializedDag:
    return dag(
        "d",
        {"before": [], "first": ["before"], "last": ["first"], "gate": ["last"], "after": ["gate"]},
        options={"first": IN_LOOP, "last": IN_LOOP, "gate": {**IN_LOOP, "branches": True}},
    )


@pytest.mark.parametrize("stop_at", [0, 2])
def test_iterations_run_one_after_the_other_until_the_gate_stops(scenario: Scenario, stop_at: int) -> None:
    scenario.add(looping())
    run = scenario.trigger("d")
    order: list[tuple[str, int]] = []

    def outcome(claim: Claim) -> Ending:
        order.append((claim.task_id, claim.map_index))
        skip = ((Branched.LOOP_STOP,) if claim.map_index == stop_at else ()) if claim.task_id == "gate" else None
        return Ending(TaskState.SUCCESS, skip=skip)

    scenario.run_to_end(outcome=outcome)

    turns = [(name, at) for at in range(stop_at + 1) for name in ("first", "last", "gate")]
    assert order == [("before", -1), *turns, ("after", -1)]
    assert scenario.run_state(run) == "success"
    states = scenario.states(run)
    assert {state for name, state in states.items() if name.endswith("[3]")} == {"removed"}


def test_a_failure_ends_the_loop_and_the_run(scenario: Scenario) -> None:
    scenario.add(looping())
    run = scenario.trigger("d")

    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED if claim.map_index == 1 else Ending(TaskState.SUCCESS, skip=()))

    states = scenario.states(run)
    assert scenario.run_state(run) == "failed" and states["after"] == "upstream_failed"
    assert (states["gate[0]"], states["first[1]"], states["first[3]"]) == ("success", "failed", "upstream_failed")


HOUR = timedelta(hours=1)
SCHEDULED = "select count(*) from dag_run where run_type = 'scheduled'"


@pytest.fixture
def clock(settings: Settings) -> Iterator[Clock]:
    clock = Clock(settings)
    yield clock
    clock.close()


@pytest.fixture
def moved(clock: Clock, scenario: Scenario) -> Scenario:
    """A scenario whose connections were made after the clock."""
    return scenario


def test_a_retry_is_due_after_its_delay(clock: Clock, moved: Scenario) -> None:
    moved.add(chain("c", 1, task={"retries": 1}))
    moved.trigger("c")
    moved.turn()
    moved.work(lambda _: Ending(TaskState.UP_FOR_RETRY, delay_s=HOUR.total_seconds()))
    moved.turn()
    assert set(moved.states().values()) == {"up_for_retry"}

    clock.advance(HOUR)
    moved.turn()

    assert set(moved.states().values()) == {"queued"}


def test_runs_that_are_triggered_in_the_same_microsecond_get_dates_of_their_own(clock: Clock, moved: Scenario) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    moved.add(chain("c", 1))
    clock.freeze(noon)

    made = [moved.trigger("c"), moved.trigger("c", run_id="mine"), moved.trigger("c")]

    dates = [noon + timedelta(microseconds=number) for number in range(3)]
    assert moved.rows("select logical_date from dag_run order by 1") == [(date,) for date in dates]
    assert len({*made}) == 3
    with pytest.raises(ConflictError, match="already has a run"):
        moved.trigger("c", logical_date=noon)
    with pytest.raises(ConflictError, match="run ID 'mine'"):
        moved.trigger("c", run_id="mine")


def test_a_run_ends_at_its_timeout(clock: Clock, moved: Scenario) -> None:
    moved.add(chain("c", 1, dagrun_timeout_s=HOUR.total_seconds()))
    run = moved.trigger("c")
    moved.turn()
    assert moved.run_state(run) == "running"

    clock.advance(HOUR)
    moved.turn()

    assert moved.run_state(run) == "failed"


def test_a_schedule_makes_the_next_run(clock: Clock, moved: Scenario) -> None:
    schedule = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
    moved.add(dag("d", {"a": []}, schedule=schedule, start_date="2026-03-01T00:00:00+00:00", catchup=False))
    moved.turn()
    assert moved.rows(SCHEDULED) == [(1,)]

    clock.advance(HOUR)
    moved.turn()

    assert moved.rows(SCHEDULED) == [(2,)]


ONE_DAG = "from paceline import DAG\nwith DAG('one', schedule=None):\n    pass\n"
MakeScenario = Callable[..., Scenario]


@contextmanager
def running(scenario: Scenario) -> Iterator[None]:
    """The scenario's scheduler takes its turns by itself, as its process would."""
    stop = threading.Event()
    thread = threading.Thread(target=scenario.schedulers[0].run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def test_1000_task_instances_that_become_ready_at_once_do_not_delay_a_heartbeat(make_scenario: MakeScenario) -> None:
    scenario = make_scenario(follow=False, worker={"heartbeat_timeout": 300})  # its worker has no heartbeat
    interval_s = scenario.settings.scheduler.scheduler_heartbeat_sec
    run = scenario.triggered(dag("fan", {"root": [], **{f"leaf{number}": ["root"] for number in range(1000)}}))
    scenario.sql("create table beats (at timestamptz)")
    scenario.sql(
        """
        create function beat() returns trigger language plpgsql as $$ begin
            insert into beats values (new.heartbeat_at);
            return null;
        end $$;
        create trigger beat after update of heartbeat_at on process for each row execute function beat();
        """
    )

    def worked_off() -> bool:
        scenario.work()
        return scenario.run_state(run) == "success"

    with running(scenario):
        eventually(worked_off, timeout=90)
        eventually(lambda: scenario.rows("select count(*) from beats")[0][0] >= 2)

    gaps = scenario.rows("select extract(epoch from at - lag(at) over (order by at)) from beats")
    assert max(float(gap) for (gap,) in gaps if gap is not None) < 2 * interval_s


def test_a_file_of_500_dags_that_is_being_stored_holds_nothing_up(make_scenario: MakeScenario) -> None:
    """Its transaction stays open here for as long as it takes to plan, start, run and end runs of these very DAGs."""
    scenario = make_scenario()
    names = [f"d{number:03}" for number in range(500)]
    dags = [chain(name, 2, file="many.py") for name in names]
    for one in dags[:20]:
        scenario.add(one)
    now = datetime.now(UTC)
    transact(scenario.engine, files.sync, {"many.py": now}, complete=False)
    transact(scenario.engine, files.claim, claimed_by="reader", lease_s=3600, limit=1,
                sort_mode="alphabetical", host="h")  # fmt: skip
    parsed = ParsedFile(
        path="many.py", modified_at=now, duration_s=1.0,
        dags=tuple(ParsedDag(dag_id=one.dag_id, content_hash=f"new {one.dag_id}", data=one.to_json()) for one in dags),
    )  # fmt: skip

    with scenario.engine.begin() as elsewhere:
        elsewhere.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")
        stored = files._record(elsewhere, parsed, claimed_by="reader", min_interval=timedelta(minutes=1))
        runs = [scenario.trigger(name) for name in names[:20]]
        scenario.run_to_end()

        assert len(stored.new_versions) == 500
        assert {scenario.run_state(run) for run in runs} == {"success"}


def test_a_scheduler_that_was_stopped_changes_nothing_from_stale_data(make_scenario: MakeScenario) -> None:
    """The runs of its wakeups have ended or are deleted, its connections are cut, and it was declared lost."""
    scenario = make_scenario(schedulers=2)
    away, other = scenario.schedulers
    scenario.add(chain("c", 2))
    ended, gone, fresh = (scenario.trigger("c", run_id=name) for name in ("ended", "gone", "fresh"))
    away.service(Promote).hint([ended, gone, fresh])
    scenario.schedulers[:] = [other]
    scenario.sql("update dag_run set state = 'queued', started_at = null where id = %s", fresh)
    for _ in range(6):
        scenario.turn()
        scenario.work()
    scenario.sql("delete from dag_run where id = %s", gone)
    before = scenario.rows("select id, state, try_number, dispatch_id from task_instance where dag_run_id = %s order by id", ended)
    scenario.sql("update process set stopped_at = clock_timestamp() where id = %s", away.scheduler_id)
    scenario.broker.client_kill_filter(_type="normal", skipme=True)
    scenario.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid() and application_name = 'paceline'"
    )
    former = away.scheduler_id

    scenario.schedulers[:] = [away]
    scenario.hot.close()
    for _ in range(6):
        scenario.turn()
        scenario.work()

    assert away.scheduler_id != former
    assert scenario.rows("select id, state, try_number, dispatch_id from task_instance where dag_run_id = %s order by id",
                         ended) == before  # fmt: skip
    assert scenario.run_state(fresh) == "success"
    assert scenario.rows("select count(*) from task_try") == [(0,)]
    assert away.service(Promote).hints == {}


def test_a_scheduler_that_was_declared_lost_claims_its_files_again(make_scenario: MakeScenario) -> None:
    scenario = make_scenario()
    (scenario.settings.dags_folder / "one.py").write_text(ONE_DAG)
    scheduler_id = "s#1"
    manager = DagFileManager(scenario.engine, scenario.settings, lambda: scheduler_id)
    claimed_by = "select claimed_by from dag_file"
    try:
        manager.run_once()
        assert scenario.rows(claimed_by) == [("s#1",)]
        with scenario.engine.begin() as connection:
            files.release_dead(connection, ["s#1"])
        scheduler_id = "s#2"
        manager.run_once()
        assert scenario.rows(claimed_by) == [("s#2",)]

        eventually(lambda: manager.run_once() and scenario.rows("select 1 from dag"), timeout=60)
    finally:
        manager.stop()

    assert scenario.rows("select count(*) from dag_version") == [(1,)]


def test_tasks_under_the_name_of_an_ended_worker_are_lost_immediately(make_scenario: MakeScenario) -> None:
    scenario = make_scenario()
    scenario.start(chain("c", 1, task={"retries": 1}))
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    transact(scenario.engine, processes.stop, scenario.worker_id)

    scenario.turn()

    ((state, reason),) = scenario.rows("select state, reason from task_try")
    assert state == "failed"
    assert reason.endswith("has ended")
    assert not scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored


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
    (only,) = [statement for statement in statements if not statement.startswith("prepare ")]
    assert "; execute pending_rescue_plan_" in only

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
    next(iter(other._listeners.values())).listen(4)
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
    next(iter(scheduler._wakeups._listeners.values())).listen(4)
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
