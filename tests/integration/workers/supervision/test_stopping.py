"""The end of a worker and of its tasks: SIGTERM, kill -9, unreachable database or broker."""

import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes import is_running
from support.waiting import eventually

from paceline.exceptions import ConflictError, NotFoundError
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes

from ..conftest import wait_for

SLEEPING = """
import os, time
@dag(schedule=None)
def d():
    @task(retries=1, retry_delay=0.1)
    def t(ti):
        print("started", flush=True)
        {body}
    t()
d()
"""


def started(bench: Any, body: str, **worker: Any) -> tuple[Any, int]:
    """A worker, and a run whose task has begun."""
    worker_process = bench.worker(**worker)
    bench.dag(SLEEPING.format(body=body))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="running")
    eventually(lambda: bench.log_path("t").exists() and "started" in bench.log("t"))
    return worker_process, run


def test_a_worker_that_receives_sigterm_lets_its_task_end_and_takes_no_other(bench: Any) -> None:
    worker, run = started(bench, wait_for(bench.folder / "go"))

    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping: 1 tasks" in worker.output)
    (bench.folder / "go").touch()

    assert worker.wait() == 0
    assert bench.scenario.states(run) == {"t": "success"}
    assert bench.scenario.rows("select 1 from process where name like 'w0@%%' and stopped_at is null") == []


def test_a_task_that_outlasts_the_grace_period_is_stopped_and_tried_again_elsewhere(bench: Any) -> None:
    worker, run = started(bench, "ti.try_number == 1 and time.sleep(120)", PACELINE_WORKER_GRACE_SEC="0.3")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert bench.last_line("t").endswith("up for retry in 0 s: worker was stopped")
    bench.worker()
    bench.wait(run)
    assert bench.scenario.states(run) == {"t": "success"}
    assert bench.scenario.rows("select reason from task_try") == [("worker was stopped",)]


def test_a_task_that_will_not_stop_is_killed(bench: Any) -> None:
    body = "exec('while True:\\n try: time.sleep(99)\\n except BaseException: pass')"
    worker, _ = started(bench, body, PACELINE_WORKER_GRACE_SEC="0.1")

    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert bench.column("t", "reason") == "worker was stopped"
    assert bench.last_line("t").endswith("failed: worker was stopped")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_ends_it_immediately_and_records_the_end_of_its_task(bench: Any, number: int) -> None:
    worker, _ = started(bench, "time.sleep(600)", PACELINE_WORKER_GRACE_SEC="600")
    left = psutil.Process(worker.process.pid).children(recursive=True)

    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping: 1 tasks" in worker.output)
    worker.signal(number)

    assert worker.wait() == 1
    assert bench.column("t", "state") == "up_for_retry"
    assert bench.column("t", "reason") == "worker was stopped"
    eventually(lambda: not any(map(is_running, left)))


def test_nothing_outlives_a_killed_worker(bench: Any) -> None:
    worker, _ = started(bench, "import subprocess; subprocess.run(['true']); time.sleep(120)", concurrency=2)
    left = psutil.Process(worker.process.pid).children(recursive=True)
    assert len(left) >= 2

    worker.process.kill()
    worker.wait()

    eventually(lambda: not any(map(is_running, left)))


def test_processes_that_a_dead_child_left_are_ended(bench: Any) -> None:
    pid_file = bench.folder / "pid"
    body = (
        "import subprocess; ti.try_number == 1 and ("
        f"open({str(pid_file)!r}, 'w').write(str(subprocess.Popen(['sleep', '120']).pid)), os.kill(os.getpid(), 9))"
    )
    _, run = started(bench, body)
    bench.wait(run)

    left = int(pid_file.read_text())
    eventually(lambda: not psutil.pid_exists(left))


def test_a_task_continues_while_the_database_is_unreachable_and_reports_later(bench: Any) -> None:
    link = bench.folder / "run"
    real = Path(bench.settings.database_url.split("host=")[1])
    link.symlink_to(real)
    away = bench.settings.database_url.replace(str(real), str(link))
    worker, run = started(bench, wait_for(bench.folder / "go"), PACELINE_DATABASE_URL=away)

    link.unlink()
    bench.scenario.rows("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'paceline %%'")
    (bench.folder / "go").touch()
    eventually(lambda: "trying until it does" in worker.output)
    eventually(lambda: "heartbeats continue when it does" in worker.output)
    assert bench.column("t", "state") == "running"
    link.symlink_to(real)

    bench.wait(run)
    assert bench.scenario.states(run) == {"t": "success"}
    assert bench.column("t", "try_number") == 1
    eventually(lambda: "PostgreSQL answers again" in worker.output)


def test_a_worker_that_was_declared_lost_registers_again(bench: Any) -> None:
    worker = bench.worker()

    bench.scenario.sql("update process set stopped_at = now() where name like 'w0@%%'")

    eventually(lambda: bench.scenario.rows("select 1 from process where name like 'w0@%%' and stopped_at is null"))
    eventually(lambda: "was declared lost; it continues as" in worker.output)
    bench.run("""
        with DAG("d", schedule=None):
            EmptyOperator(task_id="t")
    """)
    alive = bench.scenario.rows("select id from process where name like 'w0@%%' and stopped_at is null")[0][0]
    assert bench.column("t", "worker") == alive


def test_a_worker_waits_for_database_and_broker_and_then_works(bench: Any) -> None:
    link = bench.folder / "run"
    real = Path(bench.settings.database_url.split("host=")[1])
    socket = bench.folder / "redis.sock"
    real_socket, _, number = bench.settings.broker_url.removeprefix("redis+socket://").partition("?")
    worker = bench.worker(
        ready=False,
        PACELINE_DATABASE_URL=bench.settings.database_url.replace(str(real), str(link)),
        PACELINE_BROKER_URL=f"redis+socket://{socket}?{number}",
    )

    eventually(lambda: "PostgreSQL does not answer" in worker.output)
    link.symlink_to(real)
    eventually(lambda: "Redis does not answer" in worker.output)
    socket.symlink_to(real_socket)

    bench.run("""
        with DAG("d", schedule=None):
            EmptyOperator(task_id="t")
    """)
    assert worker.output.count("does not answer") == 2


def test_a_worker_whose_broker_connections_were_cut_continues(bench: Any) -> None:
    bench.worker()
    bench.scenario.broker.client_kill_filter(_type="normal", skipme=True)

    bench.run("""
        with DAG("d", schedule=None):
            EmptyOperator(task_id="t")
    """)

    assert bench.scenario.states() == {"t": "success"}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_shuts_down_cleanly_while_the_broker_is_unreachable(bench: Any, concurrency: int) -> None:
    socket = bench.folder / "redis.sock"
    real_socket, _, number = bench.settings.broker_url.removeprefix("redis+socket://").partition("?")
    socket.symlink_to(real_socket)
    url = f"redis+socket://{socket}?{number}"
    worker, run = started(bench, wait_for(bench.folder / "go"), concurrency=concurrency, PACELINE_BROKER_URL=url)

    socket.unlink()
    bench.scenario.broker.client_kill_filter(_type="normal", skipme=True)
    if concurrency > 1:  # a worker without a free place does not listen, so it does not notice yet
        eventually(lambda: "Cannot connect" in worker.output, message=lambda: worker.output)
    worker.signal(signal.SIGTERM)
    eventually(lambda: "stopping: 1 tasks" in worker.output)
    (bench.folder / "go").touch()

    assert worker.wait() == 0
    assert bench.scenario.states(run) == {"t": "success"}


def test_a_refused_database_user_stops_the_worker_at_once(bench: Any) -> None:
    url = bench.settings.database_url.replace("postgres@", "nobody@")
    worker = bench.worker(ready=False, PACELINE_DATABASE_URL=url)

    assert worker.wait() == 4
    assert "PostgreSQL rejects the connection" in worker.output


def test_a_refused_broker_password_stops_the_worker_at_once(bench: Any) -> None:
    url = bench.settings.broker_url.replace("redis+socket://", "redis+socket://nobody:wrong@")
    worker = bench.worker(ready=False, PACELINE_BROKER_URL=url)

    assert worker.wait() == 4
    assert "Redis rejects the connection" in worker.output
    assert "wrong@" not in worker.output


def test_an_old_schema_stops_the_worker_with_the_command_to_run(bench: Any, empty_database_url: str) -> None:
    worker = bench.worker(ready=False, PACELINE_DATABASE_URL=empty_database_url)

    assert worker.wait() == 4
    assert "paceline db migrate" in worker.output


def test_a_worker_that_drains_lets_its_task_end(bench: Any) -> None:
    worker, run = started(bench, wait_for(bench.folder / "go"))
    (worker_id,) = bench.scenario.rows("select id from process where name like 'w0@%%'")[0]

    transact(bench.scenario.engine, processes.drain, worker_id, "api:ada")

    eventually(lambda: "asked to drain" in worker.output)
    (bench.folder / "go").touch()
    assert worker.wait() == 0
    assert bench.scenario.states(run) == {"t": "success"}
    with pytest.raises(ConflictError):
        transact(bench.scenario.engine, processes.drain, worker_id, "api:ada")
    with pytest.raises(NotFoundError):
        transact(bench.scenario.engine, processes.drain, "nobody", "api:ada")
