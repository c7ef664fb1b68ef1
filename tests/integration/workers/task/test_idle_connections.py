"""Pool processes hold a connection only while they use it: idle ones and long tasks hold none."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from support.scenario import Scenario, chain
from support.servers import PostgresServer
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.store.worker.claims import Ending
from workers.task.follow import DatabaseStore
from workers.task.report_lock import WAITING_AT, ReportLock

SOON = {"PACELINE_WORKER_IDLE_CONNECTION_SECONDS": "0.3"}
OPEN = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"
WAITS = """
    import os, pathlib, time
    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.02)

    with DAG("d", schedule=None):
        @task
        def t(ti):
            wait_for({folder!r} + "/push")
            ti.xcom_push("mine", 1)
            pathlib.Path({folder!r}, "pushed").touch()
            wait_for({folder!r} + "/go")
            return ti.xcom_pull("t", key="mine")
        t()
"""


def connections(bench: Any, application: str = "paceline task") -> set[int]:
    return {pid for (pid,) in bench.scenario.rows(OPEN, application)}


def test_a_long_task_and_an_idle_process_hold_no_connection(bench: Any) -> None:
    bench.worker(**SOON)
    bench.run(WAITS.format(folder=str(bench.folder)), t="running")
    eventually(lambda: not connections(bench))

    (bench.folder / "push").touch()
    eventually(lambda: (bench.folder / "pushed").exists())
    assert bench.scenario.rows("select value from xcom where key = 'mine'") == [(1,)]
    eventually(lambda: not connections(bench))

    (bench.folder / "go").touch()
    bench.wait(bench.scenario.rows("select id from dag_run")[0][0])
    assert bench.scenario.rows("select value from xcom where key = 'return_value'") == [(1,)]
    eventually(lambda: not connections(bench))


def test_a_worker_keeps_only_the_connection_of_its_heartbeat(bench: Any) -> None:
    bench.worker(concurrency=2, **SOON)
    bench.run(WAITS.format(folder=str(bench.folder)), t="running")
    before = bench.scenario.rows("select max(heartbeat_at) from process where name like 'w0@%%'")

    eventually(lambda: len(connections(bench, "paceline worker")) == 1 and not connections(bench))

    (heartbeat,) = connections(bench, "paceline worker")
    eventually(lambda: bench.scenario.rows("select max(heartbeat_at) from process where name like 'w0@%%'") > before)
    assert heartbeat in connections(bench, "paceline worker")


def test_quick_tasks_share_a_connection(bench: Any) -> None:
    """In place and by message; the pool process that runs them is the only one."""
    bench.worker(PACELINE_WORKER_IDLE_CONNECTION_SECONDS="60", PACELINE_WORKER_IN_PLACE_SECONDS="0.01")
    bench.dag('with DAG("d", schedule=None):\n    chain(*[task(task_id=f"t{n:03}")(lambda: None)() for n in range(100)])')
    seen: set[int] = set()
    for number in range(2):
        run = bench.scenario.trigger("d", run_id=f"r{number}")
        bench.wait(run)
        seen |= connections(bench)
        assert set(bench.scenario.states(run).values()) == {"success"}

    assert len(seen) == 1


def test_a_task_that_forks_shares_no_connection(bench: Any) -> None:
    bench.worker(PACELINE_WORKER_IDLE_CONNECTION_SECONDS="60")
    bench.run("""
        import os
        with DAG("d", schedule=None):
            @task
            def t(ti):
                child = os.fork()
                if child == 0:
                    for n in range(50):
                        ti.xcom_push(f"child{n}", n)
                    os._exit(0)
                for n in range(50):
                    ti.xcom_push(f"parent{n}", n)
                return os.waitpid(child, 0)[1]
            t()
    """)

    assert bench.scenario.rows("select value from xcom where key = 'return_value'") == [(0,)]
    assert bench.scenario.rows("select count(*) from xcom") == [(101,)]


@contextmanager
def another_process_waits(lock: ReportLock) -> Iterator[None]:
    """A forked process that is marked as waiting for the lock."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            fcntl.lockf(lock._file, fcntl.LOCK_SH, 1, WAITING_AT)
            os.write(writer, b"x")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reader, 1) == b"x"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_connection_that_opens_for_a_report_closes_immediately_if_other_processes_wait_for_theirs(
    scenario: Scenario, others_wait: bool
) -> None:
    scenario.start(chain("d", 1))
    claim = scenario.claim(scenario.messages()[0])
    assert claim is not None
    store = DatabaseStore(scenario.settings, scenario.hot, scenario.follower)
    scenario.hot.close()

    with another_process_waits(store.lock) if others_wait else nullcontext():
        assert store.report(claim, Ending(TaskState.SUCCESS)).is_stored

    assert scenario.hot.is_open != others_wait


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_claim_that_gets_nothing_leaves_its_place_to_reports_that_wait(scenario: Scenario, others_wait: bool) -> None:
    """The message of a claimed task came twice. When the claim returns, the server has ended the connection already."""
    scenario.start(chain("d", 1))
    (message,) = scenario.messages()
    assert scenario.claim(message) is not None
    store = DatabaseStore(scenario.settings, scenario.hot, scenario.follower)
    scenario.hot.close()
    eventually(lambda: not scenario.rows(OPEN, "paceline task"))

    with another_process_waits(store.lock) if others_wait else nullcontext():
        assert store.claim(*message[:2], scenario.hot.worker_id) is None

        assert len(scenario.rows(OPEN, "paceline task")) == (0 if others_wait else 1)


def test_tasks_that_end_at_the_same_moment_report_one_after_another(bench: Any, postgres_server: PostgresServer) -> None:
    """Twelve tasks start at the same moment, and end at the same moment. Their worker may have six connections, of which its parent
    process uses some: claims are refused, which delays them, and reports are not.
    """
    names = [f"t{number:02}" for number in range(12)]
    with postgres_server.few_connections(bench.settings.database_url, 6) as url:
        bench.worker(concurrency=len(names), PACELINE_DATABASE_URL=url, **SOON)
        run = bench.run(
            f"""
            import os, time
            def wait():
                while not os.path.exists({str(bench.folder / "go")!r}):
                    time.sleep(0.02)
            with DAG("d", schedule=None):
                for name in {names!r}:
                    task(task_id=name)(wait)()
            """,
            **dict.fromkeys(names, "running"),
        )
        eventually(lambda: not connections(bench))
        claiming = bench.output
        (bench.folder / "go").touch()
        bench.wait(run)
        output = bench.output
        bench.workers[0].signal(signal.SIGTERM)
        bench.workers[0].wait()

    assert bench.scenario.states(run) == dict.fromkeys(names, "success")
    assert bench.scenario.rows("select max(try_number) from task_instance") == [(1,)]
    assert "too many connections" in claiming
    assert "too many connections" not in output.removeprefix(claiming)
