"""The heartbeat thread of a worker against a real database, without a worker around it."""

import os
import threading
from dataclasses import dataclass, field, replace

import pytest
from support.scenario import Scenario, chain, pool_process
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.settings import Settings
from scheduler.store.upkeep.registration import Registration
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from workers.process.logs import worker_log
from workers.supervision import heartbeat
from workers.supervision.heartbeat import HeartbeatThread
from workers.supervision.running_tasks import InPlace, Running, RunningTasks
from workers.task.database_store import DatabaseStore


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
