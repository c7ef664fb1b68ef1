"""Much work at once or a large DAG file does not delay a scheduler, and a scheduler that was away does no harm."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.services.promote import Promote
from scheduler.store.dags import files
from scheduler.store.dags.files import ParsedDag, ParsedFile
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.worker.claims import Ending

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
