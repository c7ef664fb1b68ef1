"""The heartbeat thread of a worker, its watchdog, and the health of a worker that receives no messages."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery.worker import state as celery_state
from support import commands
from support.processes import free_port, health
from support.scenario import Scenario, chain, pool_process
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher
from scheduler.process import health as process_health
from scheduler.process import pidfile
from scheduler.settings import Settings
from scheduler.store.upkeep.processes import Registration
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from workers.process.logs import worker_log
from workers.supervision import heartbeat
from workers.supervision.heartbeat import HeartbeatThread, Watchdog
from workers.supervision.running_tasks import RunningTasks
from workers.supervision.slots import InPlace, Running
from workers.task.follow import DatabaseStore

from .. import conftest


def thread(scenario: Scenario, running_tasks: RunningTasks, interval_s: float) -> HeartbeatThread:
    """A heartbeat thread with this interval."""
    settings = scenario.settings
    settings = settings.model_copy(update={"worker": settings.worker.model_copy(update={"heartbeat_sec": interval_s})})
    registration = Registration(
        scenario.engine, settings, kind="worker", name="w", silent_s=settings.worker.heartbeat_timeout, log=worker_log,
        queues=["default"], concurrency=running_tasks._children,
    )  # fmt: skip
    return HeartbeatThread(scenario.engine, running_tasks, registration, settings)


def test_a_heartbeat_thread_without_a_database_logs_it_once_and_has_no_answer_until_it_is_back(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "paceline.worker")
    scenario = Scenario(settings)
    beating = thread(scenario, RunningTasks(1), 0.02)
    beating.registration.enter()
    scenario.sql("alter table process rename to away")
    beating.start()
    try:
        eventually(lambda: beating.database.since is not None)
        since, seen = beating.database.since, beating._beats
        eventually(lambda: beating._beats >= seen + 5)
        assert beating.database.since == since
        scenario.sql("alter table away rename to process")
        eventually(lambda: beating.database.since is None)
    finally:
        beating.finish()
    # A library may log from a thread of its own.
    logged = [record for record in caplog.records if record.name == worker_log.name]
    assert [record.getMessage().partition(" (")[0] for record in logged] == [
        "PostgreSQL does not answer", "PostgreSQL answers again",
    ]  # fmt: skip
    scenario.close()


def test_a_task_recorded_as_running_here_that_no_child_runs_is_retried(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim got through, its answer was lost with the connection, and the child dropped the message as a duplicate."""
    monkeypatch.setattr(heartbeat, "UNKNOWN_S", 0.2)
    scenario = Scenario(settings)
    scenario.triggered(chain("c", 1, task={"retries": 1}), run_id="lost")
    scenario.trigger("c", run_id="known")
    scenario.trigger("c", run_id="offered")
    running_tasks = RunningTasks(2)
    beating = thread(scenario, running_tasks, 0.1)
    scenario.hot.worker_id = beating.registration.enter()
    scenario.turn()
    lost, known, offered = (scenario.claim(message) for message in sorted(scenario.messages()))
    assert lost and known and offered
    running_tasks.slot(0).enter(Running(ti_id=known.id, dispatch_id=known.dispatch_id, pid=os.getpid(), log=os.devnull))
    # Its process has reported the task before, and waits for Redis, which does not answer the wakeup.
    running_tasks.slot(1).continues(
        InPlace(message="m", ti_id=known.id, dispatch_id="before", next_dispatch_id=offered.dispatch_id)
    )

    beating.start()
    try:
        eventually(lambda: scenario.rows("select state from task_instance where id = %s", lost.id) == [("up_for_retry",)])
    finally:
        beating.finish()

    assert "no process of that worker runs it" in scenario.rows("select reason from task_instance where id = %s", lost.id)[0][0]
    for running in (known, offered):
        assert scenario.rows("select state from task_instance where id = %s", running.id) == [("running",)]
    scenario.close()


@dataclass(slots=True)
class Interrupted(DatabaseStore):
    """The server takes no more writes once the code of a task has ended."""

    server: PostgresServer = field(kw_only=True)
    ended: threading.Event = field(default_factory=threading.Event)

    def report(self, claim: Claim, ending: Ending, following: NextInPlace | None = None) -> Reported | Refused:
        self.server.take_writes(False)
        self.ended.set()
        return DatabaseStore.report(self, claim, ending, following)


def test_a_report_that_waits_for_a_server_without_writes_is_not_lost(
    settings: Settings, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server can be read all the time, and has the task as running; no process runs its code any more."""
    monkeypatch.setattr(heartbeat, "UNKNOWN_S", 0.2)
    scenario = Scenario(settings)
    scenario.add(chain("c", 1, task={"retries": 1}))
    running_tasks = RunningTasks(1)
    beating = thread(scenario, running_tasks, 0.02)
    beating.registration.enter()
    scenario.trigger("c", run_id="r")
    scenario.turn()
    (message,) = scenario.messages()
    process = pool_process(scenario, running=running_tasks)
    store = Interrupted(settings, scenario.hot, scenario.follower, server=postgres_server)
    running = threading.Thread(target=replace(process, store=store).run, args=message)
    beating.start()
    try:
        running.start()
        assert store.ended.wait(20)
        seen = beating._beats
        eventually(lambda: beating._beats >= seen + 6 * heartbeat.BEATS_PER_SWEEP, timeout=20)
    finally:
        postgres_server.take_writes(True)
        running.join(20)
        beating.finish()

    assert scenario.rows("select state, try_number from task_instance") == [("success", 1)]
    assert running_tasks.in_progress() == set()
    scenario.close()


#: While the file exists, the worker stops listening, as if its consumer had been lost; or its loop hangs.
DEAF = """
import os, time
from celery.signals import worker_ready
from workers.supervision import task_stopper
task_stopper.REACTION_S = task_stopper.CLOSING_S = 0.5
def look(consumer):
    if os.path.exists({file!r}) and consumer.task_consumer is not None:
        {what}
@worker_ready.connect(weak=False)
def start_looking(sender, **_):
    sender.hub.call_repeatedly(0.1, look, sender)
"""
CANCELLED = "consumer.task_consumer.cancel(); print('consumes nothing', flush=True)"
STANDING = "print('stands still', flush=True); time.sleep(3600)"
ONE_TASK = """
with DAG("d", schedule=None):
    EmptyOperator(task_id="t")
"""


@pytest.fixture
def port() -> int:
    return free_port()


def doctor(bench: Any, role: str = "worker") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PACELINE_HOME": str(bench.settings.home)}
    return commands.run(["doctor", "--role", role], env=environment, timeout=60)


def deaf_worker(bench: Any, monkeypatch: pytest.MonkeyPatch, port: int, what: str, **env: str) -> tuple[Any, Path]:
    file = bench.folder / "deaf"
    monkeypatch.setattr(conftest, "RUN", DEAF.format(file=str(file), what=what) + conftest.RUN)
    settings = {"PACELINE_WORKER_HEALTH_PORT": str(port), "PACELINE_WORKER_DEAF_TIMEOUT": "4", "PACELINE_WORKER_GRACE_SEC": "1"}
    worker = bench.worker(**settings, **env)
    eventually(lambda: health(port)[0] == 200)
    return worker, file


def test_a_deaf_worker_becomes_unhealthy_restarts_and_takes_waiting_messages(
    bench: Any, monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    worker, file = deaf_worker(bench, monkeypatch, port, CANCELLED)
    assert doctor(bench).returncode == 0
    file.touch()
    eventually(lambda: "consumes nothing" in worker.output)
    bench.dag(ONE_TASK)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="queued")

    _, report = eventually(lambda: found if (found := health(port))[0] == 503 else None)
    # It may start again, and be deaf again, while the doctor starts.
    unhealthy = eventually(lambda: found if "has taken no message for" in (found := doctor(bench)).stderr else None, timeout=120)
    file.unlink()

    assert report["parts"]["messages"]["message"].startswith("It has taken no message for")
    assert unhealthy.returncode == 1
    bench.wait(run)
    assert bench.scenario.states(run) == {"t": "success"}
    assert bench.scenario.rows("select try_number from task_instance") == [(1,)]
    eventually(lambda: worker.output.count("takes 1 tasks at once") >= 2)
    assert worker.process.poll() is None, "it is the same process"
    eventually(lambda: health(port)[0] == 200)
    assert doctor(bench).returncode == 0


@pytest.mark.long
def test_a_worker_whose_event_loop_hangs_restarts_too(bench: Any, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    worker, file = deaf_worker(bench, monkeypatch, port, STANDING)
    file.touch()
    eventually(lambda: "stands still" in worker.output)
    file.unlink()
    bench.dag(ONE_TASK)
    run = bench.scenario.trigger("d", run_id="r1")

    bench.wait(run, timeout_s=90)

    assert bench.scenario.states(run) == {"t": "success"}
    assert worker.output.count("takes 1 tasks at once") == 2


def test_a_stopped_worker_and_none_at_all_are_unhealthy(bench: Any) -> None:
    worker = bench.worker()
    (path,) = pidfile.sockets(bench.settings.run_folder, "worker")
    report = process_health.ask(path)
    assert report is not None and report["process"].startswith("w0@")

    worker.signal(signal.SIGSTOP)
    stopped = doctor(bench)
    worker.signal(signal.SIGCONT)
    worker.signal(signal.SIGTERM)
    worker.wait()

    assert (stopped.returncode, "does not answer" in stopped.stderr) == (1, True)
    gone = doctor(bench)
    assert (gone.returncode, "No worker runs on this machine" in gone.stderr) == (1, True)
    assert not list(bench.settings.run_folder.glob("worker-*"))


def test_tasks_of_a_killed_worker_are_retried_as_soon_as_it_starts_again(bench: Any) -> None:
    """The kernel reports its death: no process has to wait for its heartbeats."""
    bench.dag("""
        import os, time
        @dag(schedule=None)
        def d():
            @task(retries=1)
            def t(ti):
                ti.try_number == 1 and time.sleep(120)
            t()
        d()
    """)
    worker = bench.worker(PACELINE_WORKER_HEARTBEAT_TIMEOUT="60")
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="running")
    children = psutil.Process(worker.process.pid).children(recursive=True)
    worker.process.kill()
    worker.wait()
    psutil.wait_procs(children, timeout=10)

    bench.worker(PACELINE_WORKER_HEARTBEAT_TIMEOUT="60")
    bench.wait(run)

    assert bench.scenario.states(run) == {"t": "success"}
    ((reason,),) = bench.scenario.rows("select reason from task_try")
    assert reason.endswith("is gone from its machine")


def test_a_worker_that_was_declared_lost_claims_nothing_until_it_has_registered_again(bench: Any) -> None:
    scenario = bench.scenario
    bench.dag(ONE_TASK)
    scenario.trigger("d", run_id="r1")
    scenario.turn()
    (message,) = scenario.messages()
    scenario.sql("update process set stopped_at = clock_timestamp() where id = %s", scenario.worker_id)

    assert scenario.claim(message) is None
    assert scenario.rows("select state, try_number from task_instance") == [("queued", 1)]


@pytest.fixture
def watchdog(settings: Settings) -> Iterator[Watchdog]:
    watchdog = Watchdog(settings, ("default",), concurrency=1)
    watchdog.has_listened = True
    yield watchdog
    watchdog._brokers.close()


def publish(settings: Settings) -> None:
    message = Message(ti_id=1, dispatch_id="a", queue="default", dag_id="d", run_id="r", task_id="t", priority_weight=1000)
    publisher = Publisher(settings)
    publisher.publish([message])
    publisher.close()


def test_a_worker_with_free_slots_that_takes_no_waiting_message_is_deaf(settings: Settings, watchdog: Watchdog) -> None:
    publish(settings)

    assert [watchdog.must_restart(now) for now in (0.0, 29.0, 30.0)] == [False, False, True]


def test_a_worker_that_takes_long_to_start_is_not_deaf(settings: Settings, watchdog: Watchdog) -> None:
    watchdog.has_listened = False
    publish(settings)
    assert [watchdog.must_restart(now) for now in (0.0, 29.0, 60.0)] == [False, False, False]

    watchdog.has_listened = True

    assert [watchdog.must_restart(now) for now in (89.0, 90.0)] == [False, True]


def test_an_empty_queue_is_no_deafness(watchdog: Watchdog) -> None:
    assert [watchdog.must_restart(now) for now in (0.0, 29.0, 60.0)] == [False, False, False]


def test_a_worker_that_took_a_message_meanwhile_is_not_deaf(
    settings: Settings, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(settings)
    watchdog.must_restart(0.0)

    monkeypatch.setattr(celery_state, "all_total_count", [1])

    assert [watchdog.must_restart(now) for now in (29.0, 58.0, 59.0)] == [False, False, True]


def test_a_busy_worker_is_not_deaf(settings: Settings, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(settings)
    busy: Any = {object()}
    monkeypatch.setattr(celery_state, "reserved_requests", busy)

    assert [watchdog.must_restart(now) for now in (0.0, 60.0)] == [False, False]
