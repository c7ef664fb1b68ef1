"""A worker that goes deaf becomes unhealthy and restarts itself, and its own health agrees with the check of its container."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import commands
from support.processes import free_port, health
from support.waiting import eventually

from scheduler.process import health_server, pidfile

from .. import conftest

#: While the file exists, the worker stops listening, as if its consumer had been lost; or its loop hangs.
DEAF = """
import os, time
from workers.celery_worker import app
from workers.supervision import task_stopper
task_stopper.REACTION_S = task_stopper.CLOSING_S = 0.5
tick = app.Worker._tick
def deaf(self):
    tick(self)
    if os.path.exists({file!r}) and self.consumer.task_consumer is not None:
        {what}
app.Worker._tick = deaf
"""
CANCELLED = "self.consumer.task_consumer.cancel(); print('consumes nothing', flush=True)"
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
    report = health_server.ask(path)
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
