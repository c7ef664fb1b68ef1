"""The end of a task is stored in spite of errors; a claim whose answer is lost is repeated and costs no try."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from support.scenario import Scenario, chain, pool_process
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.process import fault_points
from scheduler.store.worker.claims import Claim
from scheduler.store.worker.hot_path import HotPath
from workers.supervision.running_tasks import RunningTasks
from workers.task.follow import DatabaseStore
from workers.task.outcome import Outcome

JOIN = """
with DAG("d", schedule=None):
    first = [task(task_id=name)(lambda: 1)() for name in ("a", "b")]
    first >> task(task_id="join")(lambda: None)() >> task(task_id="last")(lambda: None)()
"""
WAITS = """
import os, time
with DAG("d", schedule=None):
    @task
    def t(ti):
        while not os.path.exists({go!r}):
            time.sleep(0.05)
        ti.xcom_push("key", "value")
        Variable.set("name", "text")
        return 1

    t() >> task(task_id="after")(lambda: None)()
"""


def test_an_error_while_following_leaves_the_report_and_a_scheduler_follows(bench: Any, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("")
    bench.worker(**{fault_points.FAULTS: f"@{plan}", fault_points.FOLDER: str(tmp_path)})
    bench.dag(JOIN)
    for point in ("follow.locked", "follow.commit", "report.after", "follow.published", "follow.closed", "follow.woken"):
        (tmp_path / "struck").unlink(missing_ok=True)
        plan.write_text(f"{point}=raise")

        run = bench.scenario.trigger("d", run_id=point)
        bench.wait(run, timeout_s=25)

        assert "raise" in (tmp_path / "struck").read_text()
        assert bench.scenario.run_state(run) == "success", point
        tries = bench.scenario.rows("select distinct state, try_number from task_instance where dag_run_id = %s", run)
        assert tries == [("success", 1)], point
    assert "downstream tasks of d.a" in bench.output
    assert "refused" not in bench.output


def test_the_end_of_a_task_on_a_read_only_server_is_stored_once_it_takes_writes(
    bench: Any, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = bench.worker(PACELINE_WORKER_HEARTBEAT_TIMEOUT="100")
    run = bench.run(WAITS.format(go=str(go)), t="running")
    try:
        postgres_server.take_writes(False)
        go.touch()
        eventually(lambda: "trying until it does" in worker.output, timeout=20, message=lambda: bench.output)
    finally:
        postgres_server.take_writes(True)
    bench.wait(run)

    assert bench.scenario.rows("select distinct state, try_number from task_instance") == [("success", 1)]
    assert bench.scenario.rows("select key, value #>> '{}' from xcom order by 1") == [("key", "value"), ("return_value", "1")]
    assert bench.scenario.rows("select key from variable") == [("name",)]


PRINTS = """
import sys
from paceline.operators import BashOperator
with DAG("d", schedule=None):
    @task
    def prints():
        print("a line")
        sys.stderr.write("another")
        return 1

    @task
    def fails():
        print("a line")
        raise ValueError("its own reason")

    @task
    def secret():
        print(Variable.get("password"))

    prints() >> BashOperator(task_id="shell", bash_command="echo a line; echo last") >> secret() >> fails()
"""
TASKS = ("prints", "shell", "secret", "fails")
FULL = "the log of this try is incomplete: No space left on device"


@pytest.fixture
def full_disk(bench: Any) -> Iterator[Path]:
    """The logs are on a disk of their own, which is full. Yields the file that fills it."""
    folder = bench.settings.logs_folder
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("only root can mount a disk")
    filler = folder / "filler"
    try:
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield filler
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_log_disk_changes_no_outcome_and_is_reported(bench: Any, full_disk: Path) -> None:
    worker = bench.worker(PACELINE_VAR_PASSWORD="hunter2")

    run = bench.run(PRINTS)

    ended = dict(bench.scenario.rows("select task_id, coalesce(reason, '') from task_instance where dag_run_id = %s", run))
    assert bench.scenario.states(run) == {"prints": "success", "shell": "success", "secret": "success", "fails": "failed"}
    assert {name: ended[name] for name in TASKS[:3]} == dict.fromkeys(TASKS[:3], FULL)
    assert ended["fails"].startswith("ValueError: its own reason") and ended["fails"].endswith(FULL)
    stored = "select value #>> '{}' from xcom x join task_instance t on t.id = task_instance_id order by t.id"
    assert bench.scenario.rows(stored) == [("1",), ("last",)]
    assert worker.process.poll() is None

    # As much of them as a disk may have taken.
    full_disk.unlink()
    for name in ("prints", "fails"):
        bench.log_path(name).write_text("a line\n")
    done = paceline(bench, "tasks", "logs", "d", "r1", "prints")
    assert (done.returncode, done.stdout) == (0, "a line\n")
    assert done.stderr.strip() == "Lines are missing in this log: No space left on device."
    as_json = json.loads(paceline(bench, "tasks", "logs", "d", "r1", "fails", "--json").stdout)
    assert as_json["incomplete"] == "No space left on device"


@pytest.mark.usefixtures("full_disk")
def test_a_worker_continues_after_a_child_dies_while_the_log_disk_is_full(bench: Any) -> None:
    source = """
    import os
    with DAG("d", schedule=None):
        task(task_id="dies")(lambda: os.kill(os.getpid(), 9))()
        task(task_id="after")(lambda: None)()
    """
    worker = bench.worker()

    run = bench.run(source)

    assert bench.scenario.states(run) == {"dies": "failed", "after": "success"}
    beaten = bench.scenario.rows("select max(heartbeat_at) from process where kind = 'worker'")
    eventually(
        lambda: bench.scenario.rows("select max(heartbeat_at) from process where kind = 'worker' and stopped_at is null") > beaten
    )
    assert worker.process.poll() is None


def paceline(bench: Any, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "PACELINE_HOME": str(bench.settings.home),
        "PACELINE_DATABASE_URL": bench.settings.database_url,
        "PACELINE_BROKER_URL": bench.settings.broker_url,
    }
    command = [sys.executable, "-P", "-m", "scheduler.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


class LosesFirst(HotPath):
    """The first claim ends without an answer, before or after it is stored; then `meanwhile` happens."""

    def __init__(self, scenario: Scenario, *, is_stored: bool, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__(scenario.settings, scenario.worker_id)
        self._is_stored, self._meanwhile, self._attempts = is_stored, meanwhile, 0

    def claim(self, ti_id: int, dispatch_id: str, is_repeated: bool = False) -> Claim | None:
        self._attempts += 1
        if self._attempts > 1:
            return super().claim(ti_id, dispatch_id, is_repeated)
        if self._is_stored:
            assert super().claim(ti_id, dispatch_id) is not None
        self._meanwhile()
        raise psycopg2.OperationalError("server closed the connection unexpectedly")


def run(scenario: Scenario, message: tuple[int, str], hot: LosesFirst, running: RunningTasks | None = None) -> Outcome | None:
    """Run the message in a pool process that loses the answer to its first claim."""
    runner = pool_process(scenario, running=running)
    with closing(hot):
        return replace(runner, store=DatabaseStore(scenario.settings, hot, scenario.follower)).run(*message)


def one_message(scenario: Scenario) -> tuple[int, str]:
    scenario.start(chain("c", 1), run_id="r")
    (message,) = scenario.messages()
    return message


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_repeated_claim_of_the_same_process_counts(scenario: Scenario, is_stored: bool) -> None:
    message = one_message(scenario)
    assert run(scenario, message, LosesFirst(scenario, is_stored=is_stored)) is not None
    assert scenario.rows("select state, try_number from task_instance") == [("success", 1)]


def test_what_another_process_of_the_worker_claimed_meanwhile_is_not_run_twice(scenario: Scenario) -> None:
    message = one_message(scenario)
    tasks = RunningTasks(2)
    tasks.worker_id = scenario.worker_id
    other = tasks.slot(1)

    def delivered_again() -> None:
        other.take(message[1])
        claim = scenario.hot.claim(*message)
        assert claim is not None
        other.take(message[1], claim.id)

    hot = LosesFirst(scenario, is_stored=False, meanwhile=delivered_again)
    assert run(scenario, message, hot, tasks) is None
    assert scenario.states() == {"t000": "running"}


def test_a_duplicate_that_another_process_puts_down_does_not_take_the_claim_away(scenario: Scenario) -> None:
    message = one_message(scenario)
    tasks = RunningTasks(2)
    tasks.worker_id = scenario.worker_id
    other = tasks.slot(1)
    down = threading.Timer(0.2, other.put_down)

    def delivered_again() -> None:
        other.take(message[1])
        down.start()

    hot = LosesFirst(scenario, is_stored=True, meanwhile=delivered_again)
    assert run(scenario, message, hot, tasks) is not None
    down.join()
    assert scenario.states() == {"t000": "success"}


def test_a_claim_that_is_not_repeated_finds_nothing_to_claim_twice(scenario: Scenario) -> None:
    message = one_message(scenario)
    assert scenario.hot.claim(*message) is not None
    assert scenario.hot.claim(*message) is None
